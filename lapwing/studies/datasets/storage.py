"""Where data files are, and how they are read: idx and npz, never a pickle that could run code."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from lapwing.runtime.arrays import read_idx as idx_of
from lapwing.runtime.arrays import read_npz as npz_of
from lapwing.runtime.memory import available_bytes

VARIABLE = "LAPWING_DATA"


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
        return idx_of(path, limit=available_bytes() / 2)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and fetch it anew") from None


def read_npz(path: Path, *names: str) -> tuple[np.ndarray, ...]:
    """These arrays of an npz file, without pickles."""
    try:
        found = npz_of(path, limit=available_bytes() / 2, names=names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and get it anew") from None
    return tuple(found[name] for name in names)
