"""Files that are written whole or not at all; imports nothing of ours, so every part may use it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part; its folder is made where missing.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "new" / "file", b"whole")
    ...     [path.name for path in Path(folder).rglob("*")], (Path(folder) / "new" / "file").read_bytes()
    (['new', 'file'], b'whole')
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
