"""Loaders on small files of the same forms; a test on the real ones where they are there."""

import bz2
import gzip
import io
import lzma
import os
import struct
import zlib

import numpy as np
import pytest
import sklearn.datasets
import torch
from PIL import Image

from benchmarks import data
from benchmarks.data import Task, class_table, number_table, tables
from benchmarks.data.rdata import read_rda, read_rdb


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LAPWING_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def random():
    return np.random.default_rng(5)


def idx(array: np.ndarray) -> bytes:
    code = {np.dtype("u1"): 8, np.dtype(">i4"): 12, np.dtype(">f8"): 14}[array.dtype]
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def image_set(random, *shape, train=7, test=5):
    return {
        "x_train": random.integers(0, 256, (train, *shape), np.uint8),
        "y_train": random.integers(0, 10, train).astype(np.uint8),
        "x_test": random.integers(0, 256, (test, *shape), np.uint8),
        "y_test": random.integers(0, 10, test).astype(np.uint8),
    }


def check(task, arrays, to_channels):
    for (x, y), part in ((task.train, "train"), (task.test, "test")):
        expected = to_channels(arrays[f"x_{part}"]).astype(np.float32) / 255
        np.testing.assert_array_equal(x.numpy(), expected)
        np.testing.assert_array_equal(y.numpy(), arrays[f"y_{part}"])
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert len(task.classes) == 10


class TestStorage:
    @pytest.mark.parametrize("kind", ["u1", ">i4", ">f8"])
    @pytest.mark.parametrize("zipped", [True, False])
    def test_idx(self, tmp_path, random, kind, zipped):
        array = (random.random((3, 4, 2)) * 100).astype(kind)
        path = tmp_path / ("file.gz" if zipped else "file")
        path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
        np.testing.assert_array_equal(data.read_idx(path), array)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "not an idx file"),
            (b"PK\3\4nonsense", "not an idx file"),
            (idx(np.zeros((3, 4), np.uint8))[:-1], r"has 23 bytes, but shape \(3, 4\) takes 24"),
            (idx(np.zeros((3, 4), np.uint8)) + b"\0", "has more than the 24 bytes"),
        ],
    )
    def test_what_is_no_idx_file(self, tmp_path, content, message):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            data.read_idx(path)

    def test_damaged_archives(self, tmp_path):
        for name, read in (("file.gz", data.read_idx), ("file.npz", lambda path: data.read_npz(path, "x"))):
            whole = io.BytesIO()
            np.savez(whole, x=np.zeros(300))
            content = gzip.compress(idx(np.arange(2304, dtype=">i4"))) if name == "file.gz" else whole.getvalue()
            (tmp_path / name).write_bytes(content[: len(content) // 2])
            with pytest.raises(ValueError, match="is damaged"):
                read(tmp_path / name)

    def test_npz_without_an_array(self, tmp_path):
        np.savez(tmp_path / "file.npz", x=np.zeros(3))
        with pytest.raises(ValueError, match=r"has the arrays \['x'\], but not \['y'\]"):
            data.read_npz(tmp_path / "file.npz", "x", "y")

    def test_npz_with_objects_is_refused(self, tmp_path):
        np.savez(tmp_path / "file.npz", x=np.array([{}], dtype=object))
        with pytest.raises(ValueError, match="nothing is unpickled"):
            data.read_npz(tmp_path / "file.npz", "x")

    def test_folders(self, tmp_path, monkeypatch):
        monkeypatch.delenv("LAPWING_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert data.folders() == (tmp_path / "lapwing",)
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert data.folders() == (tmp_path / "home" / ".cache" / "lapwing",)

    def test_the_first_folder_that_has_it(self, tmp_path, monkeypatch):
        places = [tmp_path / name for name in ("one", "two", "three")]
        monkeypatch.setenv("LAPWING_DATA", os.pathsep.join(map(str, places)))
        for place in places[1:]:
            place.mkdir()
            (place / "file").touch()
        assert data.find("other", "file", what="a file", brings="Make it.") == places[1] / "file"


class TestMissing:
    @pytest.mark.parametrize(
        ("load", "message"),
        [
            (data.mnist, "MNIST is not there: looked for mnist.npz or mnist in .*make data"),
            (data.fashion_mnist, "Fashion-MNIST is not there.*make data"),
            (data.notmnist, "notMNIST is not there.*notmnist_test.npz.*does not bring it"),
            (data.cifar10, "CIFAR-10 is not there.*cifar-10-batches-bin or .*cifar10_lossless_4k1k.npz"),
            (data.cifar10_jpeg, "JPEG-compressed CIFAR-10.*cifar10_jpeg_bytes.npz"),
            (lambda: data.uci("wine"), "the UCI set wine is not there: looked for uci/wine.npz"),
        ],
    )
    def test_the_error_says_what_brings_it(self, folder, load, message):
        with pytest.raises(FileNotFoundError, match=message) as caught:
            load()
        assert str(folder) in str(caught.value)
        assert "$LAPWING_DATA" in str(caught.value)


class TestPictures:
    @pytest.mark.parametrize(("load", "name"), [(data.mnist, "mnist"), (data.fashion_mnist, "fashion_mnist")])
    @pytest.mark.parametrize("form", ["npz", "idx.gz", "idx"])
    def test_mnist_and_fashion(self, folder, random, load, name, form):
        arrays = image_set(random, 28, 28)
        if form == "npz":
            np.savez_compressed(folder / f"{name}.npz", **arrays)
        else:
            (folder / name).mkdir()
            for part, prefix in (("train", "train"), ("test", "t10k")):
                for axis, kind in (("x", "images-idx3"), ("y", "labels-idx1")):
                    content = idx(arrays[f"{axis}_{part}"])
                    stem = folder / name / f"{prefix}-{kind}-ubyte"
                    stem.with_suffix(".gz" if form == "idx.gz" else "").write_bytes(
                        gzip.compress(content) if form == "idx.gz" else content
                    )
        check(load(), arrays, lambda x: x[:, None])
        part = load(train=3, test=2)
        assert (len(part.train[0]), len(part.train[1]), len(part.test[0])) == (3, 3, 2)
        with pytest.raises(ValueError, match="the first 8 were asked for, but there are 7"):
            load(train=8)

    def test_an_incomplete_folder(self, folder):
        (folder / "mnist").mkdir()
        with pytest.raises(FileNotFoundError, match=r"lacks train-images-idx3-ubyte.gz: `make data`"):
            data.mnist()

    def test_pictures_and_labels_that_do_not_fit(self, folder, random):
        arrays = image_set(random, 28, 28)
        np.savez(folder / "mnist.npz", **{**arrays, "y_train": arrays["y_train"][:-1]})
        with pytest.raises(ValueError, match="7 pictures of uint8 and 6 labels"):
            data.mnist()

    def test_notmnist(self, folder, random):
        arrays = image_set(random, 28, 28)
        np.savez(folder / "notmnist_test.npz", x_test=arrays["x_test"], y_test=arrays["y_test"])
        x, y = data.notmnist(4)
        np.testing.assert_array_equal(x.numpy(), arrays["x_test"][:4, None].astype(np.float32) / 255)
        np.testing.assert_array_equal(y.numpy(), arrays["y_test"][:4])


class TestCifar:
    def test_npz(self, folder, random):
        arrays = image_set(random, 32, 32, 3)
        np.savez(folder / "cifar10_lossless_4k1k.npz", **arrays)
        task = data.cifar10()
        check(task, arrays, lambda x: x.transpose(0, 3, 1, 2))
        assert task.name == "CIFAR-10 (7 + 5 exact)"

    def written(self, folder, random):
        arrays = image_set(random, 3, 32, 32, train=15, test=4)
        place = folder / "cifar-10-batches-bin"
        place.mkdir()
        for k in range(6):
            rows = slice(3 * k, 3 * k + 3) if k < 5 else slice(None)
            part, name = ("train", f"data_batch_{k + 1}") if k < 5 else ("test", "test_batch")
            x, y = arrays[f"x_{part}"][rows].reshape(-1, 3072), arrays[f"y_{part}"][rows]
            (place / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], 1).tobytes())
        return arrays

    def test_the_users_own_files(self, folder, random):
        arrays = self.written(folder, random)
        check(data.cifar10(), arrays, lambda x: x)

    def test_own_files_come_before_the_part(self, folder, random):
        np.savez(folder / "cifar10_lossless_4k1k.npz", **image_set(random, 32, 32, 3))
        self.written(folder, random)
        assert data.cifar10(1, 1).name == "CIFAR-10 (15 + 4 exact)"

    def test_the_version_of_pickles_is_not_opened(self, folder):
        (folder / "cifar-10-batches-py").mkdir()
        with pytest.raises(FileNotFoundError, match="binary version .* pickles, which are not opened"):
            data.cifar10()

    def test_incomplete_and_damaged_files(self, folder, random):
        self.written(folder, random)
        broken = folder / "cifar-10-batches-bin" / "data_batch_3.bin"
        broken.write_bytes(broken.read_bytes()[:-1])
        with pytest.raises(ValueError, match="not a multiple of 3,073"):
            data.cifar10()
        broken.unlink()
        with pytest.raises(FileNotFoundError, match="lacks data_batch_3.bin"):
            data.cifar10()

    def test_jpeg(self, folder, random):
        smooth = np.linspace(0, 200, 32).astype(np.uint8)
        colours = random.integers(0, 50, (20, 3)).astype(np.uint8)
        pictures = smooth[None, :, None, None] + np.zeros((1, 1, 32, 1), np.uint8) + colours[:, None, None, :]
        blobs = []
        for picture in pictures:
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, "JPEG", quality=95)
            blobs.append(buffer.getvalue())
        is_test = np.arange(20) % 4 == 0
        labels = np.arange(20) // 2  # class by class, as the files come
        offsets = np.cumsum([0, *map(len, blobs)])
        blob = np.frombuffer(b"".join(blobs), np.uint8)
        np.savez(
            folder / "cifar10_jpeg_bytes.npz",
            blob=blob,
            offsets=offsets,
            label=labels.astype(np.uint8),
            is_test=is_test,
        )
        task = data.cifar10_jpeg()
        assert (len(task.train[0]), len(task.test[0])) == (15, 5)
        assert sorted(task.test[1].tolist()) == labels[is_test].tolist()
        assert task.train[1].tolist() != labels[~is_test].tolist()
        # each decoded picture is that of its label: found by the nearest original
        originals = torch.tensor(pictures.transpose(0, 3, 1, 2)).float() / 255
        for x, y in zip(*task.train, strict=True):
            distance = (originals - x).abs().amax((1, 2, 3))
            assert float(distance.min()) < 0.02
            assert labels[int(distance.argmin())] == int(y)
        again = data.cifar10_jpeg(train=6, test=0)
        torch.testing.assert_close(again.train[0], task.train[0][:6])
        assert again.test[0].shape == (0, 3, 32, 32)


class TestTables:
    def test_digits_are_all_there_once(self):
        task = data.digits(seed=3)
        assert (task.train[0].shape, task.test[0].shape) == ((1258, 1, 8, 8), (539, 1, 8, 8))
        bunch = sklearn.datasets.load_digits()
        together = torch.cat([torch.cat([x.flatten(1) * 16, y[:, None]], 1) for x, y in (task.train, task.test)])
        expected = np.concatenate([bunch.data, bunch.target[:, None]], 1)
        assert sorted(together.tolist()) == sorted(expected.tolist())

    def test_splits_follow_the_seed(self):
        one, same, other = (data.diabetes(seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one.train[0], same.train[0])
        assert not torch.equal(one.train[0], other.train[0])
        assert one.train[1].shape == (310, 1)
        with pytest.raises(ValueError, match="strictly between 0 and 1, not 1.5"):
            data.diabetes(test_share=1.5)

    def test_breast_cancer(self):
        task = data.breast_cancer(test_share=0.5)
        assert task.train[0].shape == (285, 30)
        assert set(task.train[1].tolist()) == {0, 1}

    def uci_file(self, folder, random, **changes):
        arrays = {
            "X": random.random((40, 3)),
            "y": random.random(40),
            "std_test_mask": random.random((20, 40)) < 0.1,
            "gap_test_mask": random.random((3, 40)) < 0.3,
        } | changes
        (folder / "uci").mkdir()
        np.savez(folder / "uci" / "yacht.npz", **arrays)
        return arrays

    @pytest.mark.parametrize("gap", [False, True])
    def test_uci_splits(self, folder, random, gap):
        arrays = self.uci_file(folder, random)
        masks = arrays["gap_test_mask" if gap else "std_test_mask"]
        assert data.uci_splits("yacht", gap=gap) == len(masks)
        task = data.uci("yacht", 2, gap=gap)
        np.testing.assert_array_equal(task.test[0], arrays["X"][masks[2]])
        np.testing.assert_array_equal(task.train[1][:, 0], arrays["y"][~masks[2]])
        assert task.name == ("yacht-gap" if gap else "yacht")
        with pytest.raises(ValueError, match=f"splits 0 to {len(masks) - 1}, not {len(masks)}"):
            data.uci("yacht", len(masks), gap=gap)

    def test_unknown_set(self):
        with pytest.raises(ValueError, match="no UCI set is called 'iris'; there are boston,"):
            data.uci("iris")

    def test_masks_that_do_not_fit(self, folder, random):
        self.uci_file(folder, random, std_test_mask=np.zeros((20, 39), bool))
        with pytest.raises(ValueError, match=r"masks \(20, 39\) \(bool\) do not fit"):
            data.uci("yacht")


class TestTask:
    def task(self, random) -> Task:
        x, y = (torch.tensor(random.random((11, k))) * 5 + 3 for k in (3, 2))
        x[:, 1] = 4.0
        return Task("toy", (x[:8], y[:8]), (x[8:], y[8:]))

    def test_standardised_is_scikit_learns(self, random):
        from sklearn.preprocessing import StandardScaler

        task = self.task(random)
        scaled, mean, std = task.standardised()
        for part, axis in (("train", 0), ("train", 1), ("test", 0), ("test", 1)):
            scaler = StandardScaler().fit(task.train[axis])
            expected = scaler.transform(getattr(task, part)[axis])
            np.testing.assert_allclose(getattr(scaled, part)[axis], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(scaled.test[1] * std + mean, task.test[1])
        assert float(scaled.test[0][:, 1].abs().max()) == 0.0

    def test_labels_are_not_standardised(self):
        task = data.breast_cancer()
        scaled, mean, std = task.standardised()
        assert torch.equal(scaled.train[1], task.train[1])
        assert (float(mean), float(std)) == (0.0, 1.0)

    def test_held_out_rows_leave_the_training_set(self, random):
        task = self.task(random)
        rest, (x, y) = task.held_out(3, seed=1)
        assert (len(rest.train[0]), len(x), len(y)) == (5, 3, 3)
        rows = torch.cat([torch.cat(pair, 1) for pair in (rest.train, (x, y))])
        assert sorted(rows.tolist()) == sorted(torch.cat(task.train, 1).tolist())
        assert torch.equal(rest.test[0], task.test[0])
        with pytest.raises(ValueError, match="of the 8 training rows of toy, 8 cannot be held out"):
            task.held_out(8)

    def test_first_and_to(self, random):
        task = self.task(random)
        part = task.first(5).to(torch.float32)
        assert (part.train[0].shape, part.test[0].shape, part.train[1].dtype) == ((5, 3), (3, 3), torch.float32)
        with pytest.raises(ValueError, match="toy has 3 test rows, so the first 4 cannot be taken"):
            task.first(test=4)


REAL = {
    "mnist": (data.mnist, (60_000, 10_000), 0.1307),
    "fashion_mnist": (data.fashion_mnist, (60_000, 10_000), 0.2860),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_files(name):
    load, sizes, mean = REAL[name]
    try:
        task = load()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert (len(task.train[0]), len(task.test[0])) == sizes
    assert torch.bincount(task.test[1]).sum() == 10_000
    assert float(task.train[0].mean()) == pytest.approx(mean, abs=5e-5)  # the published means of the training pixels


# tables of R packages


def number(value):
    return value.to_bytes(4, "big", signed=True)


def text(value):
    return number(9) + number(-1) if value is None else number(9) + number(len(value)) + value.encode()


def strings(values, flags=0):
    return number(16 | flags) + number(len(values)) + b"".join(text(value) for value in values)


def pairs(named, symbols):
    """Attributes; a name that was met before is a reference to it."""
    found = b""
    for name, value in named.items():
        found += number(2 | 1024)
        if name in symbols:
            found += number(255 | ((symbols.index(name) + 1) << 8))
        else:
            symbols.append(name)
            found += number(1) + text(name)
        found += value
    return found + number(254)


HEADER = b"X\n" + number(3) + number(0) + number(0) + number(5) + b"UTF-8"


def r_frame():
    """What R writes of data.frame(size = c(1.5, NA, -2), count = c(3L, NA, 5L), kind = factor(c("b", NA, "a")), rows 1:3)."""
    names = number(2 | 1024) + number(1) + text("frame")
    return b"RDX3\n" + HEADER + names + r_value(["frame"]) + number(254)


def r_value(symbols):
    """The frame itself, after these symbols."""
    size = number(14) + number(3) + struct.pack(">3d", 1.5, float("nan"), -2.0)
    run = number(238) + number(2) + number(1) + text("compact_intseq") + number(254)
    symbols.append("compact_intseq")
    run += number(14) + number(3) + struct.pack(">3d", 3, 7, 1) + number(254)
    levels = pairs({"levels": strings(["a", "b"]), "class": strings(["factor"])}, symbols)
    kind = number(13 | 512 | 256) + number(3) + number(2) + number(-(2**31)) + number(1) + levels
    told = pairs({"names": strings(["size", "row", "kind"]), "class": strings(["data.frame"])}, symbols)
    return number(19 | 512 | 256) + number(3) + size + run + kind + told


@pytest.mark.parametrize(
    "packed", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gzip", "bzip2", "xz"]
)
def test_data_frames_of_r_are_read(packed):
    found = read_rda(packed(r_frame()))["frame"]
    np.testing.assert_array_equal(found["size"], [1.5, np.nan, -2.0])
    assert found["row"].tolist() == [7, 8, 9]
    assert found["kind"].tolist() == ["b", None, "a"]


RAW_LZMA = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 6}]}
PACKED = {
    "zlib": zlib.compress,
    "bzip2": lambda plain: b"2" + bz2.compress(plain),
    "xz": lambda plain: b"Z" + lzma.compress(plain, **RAW_LZMA),
}


def r_list(values, symbols):
    """A list with names."""
    inside = b"".join(value(symbols) for value in values.values())
    return number(19 | 512) + number(len(values)) + inside + pairs({"names": strings(list(values))}, symbols)


@pytest.mark.parametrize("form", PACKED)
def test_databases_of_r_packages_are_read(form):
    plain = HEADER + r_value([])
    chunk = struct.pack(">I", len(plain)) + PACKED[form](plain)
    place = number(13) + number(2) + number(3) + number(len(chunk))
    places = lambda symbols: r_list({"frame": lambda _: place}, symbols)  # noqa: E731
    index = gzip.compress(HEADER + r_list({"variables": places}, []))
    found = read_rdb(index, b"..." + chunk)["frame"]
    assert found["kind"].tolist() == ["b", None, "a"]
    with pytest.raises(ValueError, match="bytes, expected"):
        read_rdb(index, b"..." + struct.pack(">I", 7) + chunk[4:])


def test_what_is_no_data_frame_of_r_is_refused():
    with pytest.raises(ValueError, match="not an .rda file"):
        read_rda(b"something else")
    with pytest.raises(ValueError, match="ends too early"):
        read_rda(r_frame()[:-40])
    code = r_frame().replace(number(14) + number(3), number(3) + number(3), 1)
    with pytest.raises(ValueError, match="type 3, which no table holds"):
        read_rda(code)


def test_tables_with_classes_say_what_brings_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LAPWING_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="fetch kernlab` brings it"):
        class_table("spam")
    with pytest.raises(ValueError, match="no table with class labels is called 'soup'; there are wine"):
        class_table("soup")


def test_tables_with_classes_are_numbers_and_class_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("LAPWING_DATA", str(tmp_path))
    monkeypatch.setitem(tables.CLASS_TABLES, "toy", ("package", "frame.rda", "kind"))
    (tmp_path / "package").mkdir()
    whole = r_frame().replace(number(-(2**31)), number(2))
    (tmp_path / "package" / "frame.rda.gz").write_bytes(gzip.compress(whole))
    x, y = class_table("toy")
    np.testing.assert_array_equal(x, [[1.5, 7], [np.nan, 8], [-2.0, 9]])
    assert y.tolist() == [1, 1, 0]


def test_tables_of_numbers_have_a_column_for_each_level_and_no_row_without_a_target(tmp_path, monkeypatch):
    monkeypatch.setenv("LAPWING_DATA", str(tmp_path))
    monkeypatch.setitem(tables.NUMBER_TABLES, "toy", ("package", "frame.RData", "size", ()))
    monkeypatch.setitem(tables.NUMBER_TABLES, "less", ("package", "frame.RData", "size", ("kind",)))
    (tmp_path / "package").mkdir()
    whole = r_frame().replace(number(-(2**31)), number(2))
    (tmp_path / "package" / "frame.RData.gz").write_bytes(gzip.compress(whole))
    x, y = number_table("toy")
    np.testing.assert_array_equal(x, [[7, 0, 1], [9, 1, 0]])
    np.testing.assert_array_equal(y, [1.5, -2.0])
    np.testing.assert_array_equal(number_table("less")[0], [[7], [9]])
    with pytest.raises(ValueError, match="no table of numbers is called 'soup'; there are diabetes, body"):
        number_table("soup")
