"""Arrays from files of strangers: nothing is unpickled, and what a file would unpack to is known before it is read."""

from __future__ import annotations

import gzip
import io
import math
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # the third byte of an idx file
ENTRIES = 10_000  # arrays that one archive may hold
AXES = 32
STEP = 2**24  # bytes read at once, so that a size that is a lie costs no more than that


class _Unfit(ValueError):
    """What we found wrong ourselves, in our words."""


def read_npz(source: Path | bytes, *, limit: float, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an npz file, all or those named; a ValueError for anything that is not plain arrays.

    `limit` is the number of bytes that they may take in memory.

    >>> buffer = io.BytesIO()
    >>> np.savez_compressed(buffer, x=np.zeros((1000, 1000)))
    >>> len(buffer.getvalue()) < 10_000, read_npz(buffer.getvalue(), limit=1e7)["x"].shape
    (True, (1000, 1000))
    >>> read_npz(buffer.getvalue(), limit=1e6)
    Traceback (most recent call last):
    ValueError: the arrays would take 0.01 GB, more than the 0.00 GB that may be used
    """
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as raw,
            zipfile.ZipFile(raw) as file,
        ):
            entries = {entry.filename.removesuffix(".npy"): entry for entry in _entries(file, limit)}
            _check_names(entries, names or ())
            return {name: _entry(file, entries[name]) for name in names or entries}
    except (_Unfit, OSError) as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # zipfile, zlib, struct and numpy each have their own for what is not an archive
        raise ValueError(f"it is damaged, or not an archive of plain arrays ({error})") from None


def read_npy(path: Path, *, limit: float) -> np.ndarray:
    """The array of an npy file; a ValueError for anything else."""
    try:
        with path.open("rb") as file:
            return _array(file, path.stat().st_size, limit)
    except (_Unfit, OSError) as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # numpy reads headers as Python literals, which fail in many ways
        raise ValueError(f"it is damaged, or not an array ({error})") from None


def read_idx(path: Path, *, limit: float) -> np.ndarray:
    """The array of an idx file, the format MNIST came in, gzipped or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _idx(file, limit)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it is damaged ({error})") from None


def check_archive(path: Path, *, limit: float) -> None:
    """Raise where a file is an archive, as torch's are, that would unpack to more than `limit` bytes."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as file:
            _entries(file, limit)
    except (_Unfit, OSError) as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # zipfile and struct each have their own
        raise ValueError(f"it is damaged ({error})") from None


def check_picture(path: Path, *, limit: float) -> None:
    """Raise where the pixels of a picture, which its header tells, would take more than `limit` bytes."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is ours
        try:
            with Image.open(path) as picture:
                size = 8.0 * math.prod(picture.size) * len(picture.getbands())
        except Exception as error:  # every format has its own
            raise ValueError(f"it is no picture that can be read ({str(error)[:80]})") from None
    if size > limit:
        raise ValueError(f"its pixels would take {size / 1e9:.2f} GB, more than the {limit / 1e9:.2f} GB allowed")


def _idx(file: IO[bytes] | gzip.GzipFile, limit: float) -> np.ndarray:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in IDX_TYPES or start[3] > AXES:
        raise ValueError(f"it is not an idx file: it starts with {start!r}")
    axes, kind = start[3], np.dtype(IDX_TYPES[start[2]])
    sizes = file.read(4 * axes)
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4", len(sizes) // 4))
    size, before = kind.itemsize * math.prod(shape), 4 + len(sizes)
    _check(size, limit)
    content = _exactly(file, size)
    if len(sizes) < 4 * axes or len(content) < size:
        raise ValueError(f"it has {before + len(content)} bytes, but shape {shape} takes {before + size}")
    if file.read(1):
        raise ValueError(f"it has more than the {before + size} bytes that shape {shape} takes")
    return np.frombuffer(content, kind).reshape(shape).astype(kind.newbyteorder("="))


def _entries(file: zipfile.ZipFile, limit: float) -> list[zipfile.ZipInfo]:
    entries = file.infolist()
    if len(entries) > ENTRIES:
        raise _Unfit(f"it holds {len(entries)} files, and {ENTRIES} are the most that are read")
    if any(entry.flag_bits & 1 or entry.compress_type not in (0, 8) or entry.file_size < 0 for entry in entries):
        raise _Unfit("some of it is encrypted, or compressed in a way that numpy does not use")
    _check(sum(entry.file_size for entry in entries), limit)
    return entries


def _check_names(there: Iterable[str], names: tuple[str, ...]) -> None:
    if missing := [name for name in names if name not in there]:
        raise _Unfit(f"it has the arrays {sorted(there)[:8]}, but not {missing}")


def _entry(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with file.open(entry) as part:
        return _array(part, entry.file_size, math.inf)  # their sum was checked


def _array(file: IO[bytes], size: int, limit: float) -> np.ndarray:
    _check(size, limit)
    content = _exactly(file, size)
    if len(content) != size:
        raise _Unfit(f"it ends after {len(content)} of {size} bytes")
    raw = io.BytesIO(content)
    version = npy.read_magic(raw)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise _Unfit(f"an array of format {version}, and 1.0 and 2.0 are read")
    shape, columns_first, kind = read(raw)
    if kind.hasobject or kind.fields is not None:
        raise _Unfit(f"an array of type {kind}: plain numbers and text are read, nothing is unpickled")
    start = raw.tell()
    if min(shape, default=0) < 0 or len(shape) > AXES or kind.itemsize * math.prod(shape) != size - start:
        raise _Unfit(f"an array of shape {shape} and type {kind} in {size - start} bytes")
    if not math.prod(shape) or not kind.itemsize:
        return np.zeros(shape, kind)
    values = np.frombuffer(content, kind, offset=start)
    return (values.reshape(shape[::-1]).T if columns_first else values.reshape(shape)).copy()


def _exactly(file: IO[bytes] | gzip.GzipFile, size: int) -> bytes:
    parts, left = [], size
    while left and (part := file.read(min(left, STEP))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _check(size: float, limit: float) -> None:
    if size > limit:
        raise _Unfit(f"the arrays would take {size / 1e9:.2f} GB, more than the {limit / 1e9:.2f} GB that may be used")
