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

from lapwing import arrays

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("reader", ["posterior", "record", "npz", "csv", "idx"])
def test_readers_refuse_or_are_right(reader):
    """In a process of its own: a crash must not end the tests, and the limits of memory are its own."""
    code = f"import bench_fuzz, json; print(json.dumps(bench_fuzz.measure({reader!r}, 150, 7)))"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found["wrong"] == 0, found
    assert found["executed"] == 0
    assert found["refused"] > 30


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
