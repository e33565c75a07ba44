"""Where data files are, and how they are read: idx and npz, never a pickle that could run code."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

VARIABLE = "LAPWING_DATA"
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # the third byte of an idx file


def folders() -> tuple[Path, ...]:
    """The folders of $LAPWING_DATA, in their order, or the user's cache folder where it is not set.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"LAPWING_DATA": os.pathsep.join(["/data/mine", "/data/shared"])}):
    ...     [folder.name for folder in folders()]
    ['mine', 'shared']
    """
    given = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    if given:
        return tuple(Path(part).expanduser() for part in given)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return ((Path(cache) / "lapwing").expanduser(),)


def find(*names: str, what: str, brings: str) -> Path:
    """The first of these files or folders that is there, earlier names first.

    `what` names the data set and `brings` says what to do where none is found: both go into the error.
    """
    for name in names:
        for folder in folders():
            if (folder / name).exists():
                return folder / name
    places = ", ".join(str(folder) for folder in folders())
    wanted = " or ".join(names)
    raise FileNotFoundError(
        f"{what} is not there: looked for {wanted} in {places}. {brings} "
        f"(${VARIABLE} names the folders to look in, separated by {os.pathsep!r})"
    )


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file, the format MNIST came in, gzipped or not."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and fetch it anew") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
        raise ValueError(f"{path} is not an idx file: it starts with {raw[:4]!r}")
    axes, kind = raw[3], np.dtype(IDX_TYPES[raw[2]])
    start = 4 + 4 * axes
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], ">u4"))
    expected = start + kind.itemsize * int(np.prod(shape))
    if len(raw) != expected:
        raise ValueError(
            f"{path} has {len(raw)} bytes, but shape {shape} takes {expected}: delete it and fetch it anew"
        )
    return np.frombuffer(raw, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def read_npz(path: Path, *names: str) -> tuple[np.ndarray, ...]:
    """These arrays of an npz file, without pickles."""
    try:
        # numpy leaves a file that it opened itself open when it is damaged
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if missing := [name for name in names if name not in file]:
                raise ValueError(f"{path} has the arrays {file.files}, but not {missing}")
            return tuple(file[name] for name in names)
    except (BadZipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and get it anew") from error
