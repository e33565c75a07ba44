"""Files of more kinds for bench_fuzz: pictures, DICOM, Parquet, weights, fits of other families, data, settings of a run."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Check = Callable[[Path], None]


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double().eval()


def sound(found: Any) -> None:
    assert len(found.inputs) == len(found.targets)
    assert np.isfinite(found.inputs).all()


def picture_bytes(mode: str) -> bytes:
    from PIL import Image

    shape = (9, 9, 3) if mode == "RGB" else (9, 9)
    values = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint16 if mode == "I;16" else np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def pictures(folder: Path) -> tuple[list[bytes], Check]:
    """PNG files as training data, in a folder of class folders, and as an image to scan."""
    from lapwing.app.cli import data
    from lapwing.studies.tomography.scanning import images

    for name in ("one", "two"):
        (folder / "classes" / name).mkdir(parents=True, exist_ok=True)
    (folder / "classes" / "two" / "whole.png").write_bytes(picture_bytes("RGB"))

    def check(path: Path) -> None:
        (folder / "classes" / "one" / "file.png").write_bytes(path.read_bytes())
        errors = []
        for read in (lambda: sound(data.read(str(folder / "classes"))), lambda: within_one(images.read(path))):
            try:
                read()
            except ValueError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    return [picture_bytes(mode) for mode in ("RGB", "L", "I;16")], check


def within_one(image: torch.Tensor) -> None:
    assert bool(image.isfinite().all())
    assert 0 <= float(image.min()) <= float(image.max()) <= 1


def in_png(content: bytes, random: np.random.Generator) -> bytes:
    """A PNG with one chunk changed inside, its sum right: sizes in the header, or other pixels."""
    chunks, at = [], 8
    while at + 12 <= len(content):
        size = struct.unpack(">I", content[at : at + 4])[0]
        chunks.append([content[at + 4 : at + 8], content[at + 8 : at + 8 + size]])
        at += 12 + size
    chosen = chunks[int(random.integers(len(chunks)))]
    body = bytearray(chosen[1])
    if chosen[0] == b"IHDR" and random.integers(2):
        size = int(random.choice([0, 1, 10_000, 60_000, 2**31 - 1]))
        body[:4] = struct.pack(">I", size)
    elif body:
        for _ in range(int(random.integers(1, 4))):
            body[int(random.integers(len(body)))] = int(random.integers(256))
    chosen[1] = bytes(body)
    packed = (struct.pack(">I", len(b)) + kind + b + struct.pack(">I", zlib.crc32(kind + b)) for kind, b in chunks)
    return content[:8] + b"".join(packed)


def dicom(folder: Path) -> tuple[list[bytes], Check]:
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless

    from lapwing.studies.tomography.scanning import images

    def made(name: str, syntax: Any) -> bytes:
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, "1.2.3"
        meta.TransferSyntaxUID = ExplicitVRLittleEndian if syntax == RLELossless else syntax
        slice_ = FileDataset(str(folder / name), {}, file_meta=meta, preamble=b"\0" * 128)
        slice_.SOPClassUID, slice_.SOPInstanceUID, slice_.Modality = CTImageStorage, "1.2.3", "CT"
        slice_.Rows = slice_.Columns = 9
        slice_.SamplesPerPixel, slice_.PhotometricInterpretation = 1, "MONOCHROME2"
        slice_.BitsAllocated, slice_.BitsStored, slice_.HighBit, slice_.PixelRepresentation = 16, 12, 11, 0
        slice_.RescaleSlope, slice_.RescaleIntercept = "1", "-1024"
        slice_.PixelData = np.random.default_rng(0).integers(0, 4000, (9, 9)).astype("<u2").tobytes()
        if syntax == RLELossless:
            slice_.compress(RLELossless)
        slice_.save_as(folder / name, enforce_file_format=True)
        return (folder / name).read_bytes()

    pydicom.config.settings.reading_validation_mode = pydicom.config.WARN
    syntaxes = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless)
    return [made(f"{i}.dcm", syntax) for i, syntax in enumerate(syntaxes)], lambda path: within_one(images.read(path))


def parquet(folder: Path) -> tuple[list[bytes], Check]:
    import pandas

    from lapwing.app.cli import data

    random = np.random.default_rng(0)
    table = pandas.DataFrame({name: random.normal(size=12) for name in ("a", "b")} | {"y": random.integers(0, 3, 12)})
    for i, compression in enumerate(("snappy", None, "gzip")):
        table.to_parquet(folder / f"{i}.parquet", compression=compression)
    return [(folder / f"{i}.parquet").read_bytes() for i in range(3)], lambda path: sound(data.read(str(path)))


def weights(folder: Path) -> tuple[list[bytes], Check]:
    """torch's own files, of today and of long ago, with nothing but tensors in them."""
    from lapwing.app.cli.models import load_weights

    state = network().state_dict()
    torch.save(state, folder / "0.pt")
    torch.save({"state_dict": state}, folder / "1.pt", _use_new_zipfile_serialization=False)

    def check(path: Path) -> None:
        model = network()
        load_weights(model, str(path))
        assert model(torch.zeros(2, 3, dtype=torch.float64)).shape == (2, 2)

    return [(folder / f"{i}.pt").read_bytes() for i in range(2)], check


def checkpoints(folder: Path) -> tuple[list[bytes], Check]:
    """What `train` resumes from."""
    import lapwing as lw
    from lapwing.training import train

    x = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(6, 3)
    y = x[:, :2] * 2

    def run(path: Path) -> None:
        found = train(network(), (x, y), lw.Gaussian(1.0), epochs=2, progress=False, checkpoint=path, batch_size=6)
        assert all(bool(weight.isfinite().all()) for weight in found.parameters())

    run(folder / "whole.pt")
    return [(folder / "whole.pt").read_bytes()], run


def variational(folder: Path) -> tuple[list[bytes], Check]:
    import lapwing as lw
    from lapwing.families import variational as family

    model = network()
    x = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(6, 3)
    files = []
    for likelihood, y in ((lw.Gaussian(0.5), 2 * x[:, :2]), (lw.Categorical(), torch.arange(6) % 2)):
        fit = family.fit(model, (x, y), likelihood, temperature=family.Cold(1.0), epochs=1, progress=False, draws=3)
        fit.save(folder / "one.safetensors")
        files.append((folder / "one.safetensors").read_bytes())

    def check(path: Path) -> None:
        assert bool(family.load(path, model).predict(x).mean.isfinite().all())

    return files, check


def symmetry(folder: Path) -> tuple[list[bytes], Check]:
    from lapwing.studies.symmetry import Affine, SymmetryModel
    from lapwing.studies.symmetry.inference import Training
    from lapwing.studies.symmetry.model import Settings

    images = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    files = []
    for shape in ("spline", "gaussian"):
        settings = Settings(8, Training(steps=2, batch_size=6), Training(steps=2, batch_size=6), shape=shape)
        model = SymmetryModel(Affine.of(rotation=1.0, scale=0.2), settings).fit(images, progress=False)
        files.append(model.save(folder / "one.safetensors").read_bytes())

    def check(path: Path) -> None:
        found = SymmetryModel.load(path)
        assert found.prototype(images[:3]).shape == (3, 1, 8, 8)

    return files, check


def cifar(folder: Path) -> tuple[list[bytes], Check]:
    """A batch of CIFAR-10 as its authors give it."""
    from lapwing.studies.datasets import images

    del folder
    random = np.random.default_rng(0)
    rows, labels = random.integers(0, 256, (3, 3072), dtype=np.uint8), np.array([1, 2, 0], np.uint8)
    plain = np.concatenate([labels[:, None], rows], axis=1).tobytes()

    def check(path: Path) -> None:
        found, answers = images._cifar_batch(path)
        assert found.nbytes <= path.stat().st_size
        assert len(found) == len(answers)

    return [plain], check


def runs(folder: Path) -> tuple[list[bytes], Check]:
    from lapwing.app.cli import folders

    folders.save(folders.RunSettings("model.py:make", "regression", (), ("a", "b"), "y", (2,), "one"), folder)

    def check(path: Path) -> None:
        (path.parent / "run.json").write_bytes(path.read_bytes())
        found, ours = folders.load(path.parent)
        assert isinstance(found, folders.RunSettings)
        assert isinstance(ours, bool)

    return [(folder / "run.json").read_bytes()], check


def in_header(content: bytes, random: np.random.Generator, odd: Callable[[Any, np.random.Generator], Any]) -> bytes:
    """A file of tensors with its header, or the JSON inside that, changed."""
    size = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    if random.integers(2):
        header = odd(header, random)
    else:
        metadata = header["__metadata__"]
        name = next(name for name in metadata if name.startswith("lapwing"))
        metadata[name] = json.dumps(odd(json.loads(metadata[name]), random))
        metadata.pop("checksum", None)  # files from before there was one are read too
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def readers(
    odd: Callable[[Any, np.random.Generator], Any], in_archive: Callable[[bytes, np.random.Generator], bytes]
) -> dict[str, tuple[Callable[[Path], tuple[list[bytes], Check]], str, Any]]:
    """The kinds of files, how each is read, and how one is changed inside."""
    warnings.filterwarnings("ignore", module="pydicom")

    def in_weights(content: bytes, random: np.random.Generator) -> bytes:
        return in_archive(content, random) if content[:2] == b"PK" else content[: int(random.integers(len(content)))]

    return {
        "pictures": (pictures, "file.png", in_png),
        "dicom": (dicom, "file.dcm", None),
        "parquet": (parquet, "file.parquet", None),
        "weights": (weights, "file.pt", in_weights),
        "checkpoint": (checkpoints, "file.pt", in_weights),
        "variational": (variational, "file.safetensors", lambda content, random: in_header(content, random, odd)),
        "symmetry": (symmetry, "file.safetensors", lambda content, random: in_header(content, random, odd)),
        "cifar": (cifar, "data_batch", None),
        "run": (runs, "file.json", lambda content, random: json.dumps(odd(json.loads(content), random)).encode()),
    }
