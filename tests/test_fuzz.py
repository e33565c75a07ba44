"""Damaged and hostile files give an error message or a right result; bombs are refused before they unpack."""

import gzip
import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lapwing.runtime import arrays

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


OFTEN = dict.fromkeys(("posterior", "record", "npz", "csv", "idx"), 70)  # damaged files; bench_fuzz.py has thousands


def test_readers_refuse_or_are_right():
    """In a process of its own: a crash must not end the tests, and the limits of memory are its own."""
    code = f"""
import bench_fuzz, fuzz_readers, json
often = {{**{OFTEN}, **dict.fromkeys(fuzz_readers.readers(None, None), 50)}}
for name, count in often.items():
    print(json.dumps([name, bench_fuzz.measure(name, count, 7)]), flush=True)
"""
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert finished.returncode == 0, (finished.stdout[-200:], finished.stderr[-2000:])
    told = dict(map(json.loads, finished.stdout.splitlines()))
    assert OFTEN.keys() < told.keys()
    for name, found in told.items():
        assert found["wrong"] == found["executed"] == 0, (name, found)
        assert found["refused"] > 25, (name, found)


@pytest.mark.parametrize("wrong", [{}, [], 3, None, "nowhere"])
def test_an_array_of_a_record_that_is_named_by_no_name(wrong, tmp_path):
    from lapwing.app import records

    curve = records.Curve(np.logspace(-2, 2, 9), 1.0, log_evidence=np.linspace(0, 1, 9))
    path = records.save(records.Record("one", "regression", (), curve=curve), tmp_path)
    body = json.loads(path.read_text())
    body["curve"]["precision"] = {"array": wrong}
    path.write_text(json.dumps(body))
    with pytest.raises(ValueError, match="expected the name of a stored array"):
        records.load(path)


def test_pictures_and_weights_that_are_bombs(tmp_path):
    """Small files that say they hold 12,000 × 12,000 pixels, or unpack to 128 MB of zeros, with 100 MB of memory."""
    from PIL import Image

    from lapwing.app.cli import data, models
    from lapwing.runtime import memory
    from lapwing.studies.tomography.scanning import images

    (tmp_path / "one").mkdir()
    Image.new("1", (12_000, 12_000)).save(tmp_path / "one" / "bomb.png")
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(2**27))
    assert max(path.stat().st_size for path in (tmp_path / "one" / "bomb.png", tmp_path / "bomb.pt")) < 2**18
    with memory.within(1e8):
        with pytest.raises(ValueError, match=r"its pixels would take 1.15 GB"):
            data.read(str(tmp_path))
        with pytest.raises(ValueError, match=r"its pixels would take 1.15 GB"):
            images.read(tmp_path / "one" / "bomb.png")
        with pytest.raises(ValueError, match=r"would take 0.13 GB"):
            models.load_weights(torch.nn.Identity(), str(tmp_path / "bomb.pt"))


def test_dicom_files_that_are_bombs(tmp_path):
    import fuzz_readers
    import pydicom

    from lapwing.runtime import memory
    from lapwing.studies.tomography.scanning import images

    whole = fuzz_readers.dicom(tmp_path)[0][0]
    assert float(images.read(tmp_path / "0.dcm").max()) == 1
    (tmp_path / "many.dcm").write_bytes(whole.replace(b"\x28\0\x10\0US\x02\0\x09\0", b"\x28\0\x10\0US\x02\0\xff\xff"))
    with memory.within(1e6), pytest.raises(ValueError, match="65535 × 9 × 1 × 1 values, more than there is room for"):
        images.read(tmp_path / "many.dcm")
    deflated = pydicom.dcmread(tmp_path / "0.dcm")
    deflated.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    deflated.save_as(tmp_path / "deflated.dcm")
    with pytest.raises(ValueError, match="could unpack to any size"):
        images.read(tmp_path / "deflated.dcm")


def npz(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def header(kind: str = "<f8", shape: str = "(2,)") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


def test_arrays_are_those_of_numpy(tmp_path):
    given = {
        "a": np.arange(12.0).reshape(3, 4), "b": np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3)),
        "c": np.array(["x", "yz"]), "d": np.zeros((0, 3)), "e": np.array(2.5), "f": np.arange(3, dtype=">u4"),
        "g": np.array([True, False]),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "all.npz", **given)
    found = arrays.read_npz(tmp_path / "all.npz", limit=1e6)
    assert found.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        np.save(tmp_path / "one.npy", array)
        np.testing.assert_array_equal(arrays.read_npy(tmp_path / "one.npy", limit=1e6), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz(x=npy(header(shape="(2,)"), bytes(15))), r"shape \(2,\) and type float64 in 15 bytes"),
        (npz(x=npy(header(shape="(1000000000000,)"), bytes(16))), "in 16 bytes"),
        (npz(x=npy(header(shape="(4294967296, 4294967296)"))), "in 0 bytes"),  # a product that is 0 in 64 bits
        (npz(x=npy(header(shape="(-2,)"), bytes(16))), "in 16 bytes"),
        (npz(x=npy(header(kind="|O"), pickle.dumps(print))), "nothing is unpickled"),
        (npz(x=npy("__import__('os').system('true')", bytes(16))), "damaged|header"),
        (npz(x=npy("(" * 90, bytes(16))), "damaged|header"),
        (npz(x=b"\x93NUMPY\x07\x00"), "format"),
        (b"PK\x03\x04" + bytes(60), "damaged"),
        (b"", "damaged"),
    ],
)
def test_arrays_that_lie(content, message):
    with pytest.raises(ValueError, match=message):
        arrays.read_npz(content, limit=1e6)


def test_bombs_are_refused_before_they_unpack(tmp_path):
    bomb = npz(x=npy(header(shape=f"({2**24},)"), bytes(2**27)))
    assert len(bomb) < 2**18
    with pytest.raises(ValueError, match=r"would take 0.13 GB, more than the 0.10 GB"):
        arrays.read_npz(bomb, limit=1e8)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 2**27) + bytes(2**27)))
    with pytest.raises(ValueError, match=r"would take 0.13 GB, more than the 0.10 GB"):
        arrays.read_idx(path, limit=1e8)
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(2**27)))  # more than it says
    with pytest.raises(ValueError, match="more than the 13 bytes"):
        arrays.read_idx(path, limit=1e8)
