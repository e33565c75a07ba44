"""What a long run has found so far, in files: a run that was stopped finds it there and goes on to the same bits."""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lapwing.runtime.atomic import write as write_atomically
from lapwing.runtime.ranks import Ranks

Found = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and plain values
FORMAT = 1
LOG = logging.getLogger("lapwing")


@final
@dataclass(eq=False)
class Journal:
    """A folder with one file for every finding, each written once, whole or not at all.

    Where several ranks share a run, the first writes and reads for all of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Journal(Path(folder)).found("one", lambda: ({"x": torch.ones(2)}, {"steps": 3}))[1]
    ...     Journal(Path(folder)).found("one", lambda: 1 / 0)
    {'steps': 3}
    ({'x': tensor([1., 1.])}, {'steps': 3})
    """

    folder: Path
    ranks: Ranks | None = None
    open: bool = True
    _stopped_by: list[int] = field(default_factory=list)
    _writing: bool = False

    def found(self, name: str, find: Callable[[], Found]) -> Found:
        """What was found under this name, now or in a run before; tensors are contiguous either way."""
        known = self.read(name)
        if known is None:
            tensors, plain = find()
            known = {key: _copy(tensor) for key, tensor in tensors.items()}, plain
            self.write(name, *known)
        return known

    def read(self, name: str) -> Found | None:
        """A finding, or None where there is none or its file is damaged."""
        if not self.open:
            return None
        content = self._path(name).read_bytes() if self._first and self._path(name).is_file() else None
        if self.ranks is not None and self.ranks.open:
            content = self.ranks.shared_bytes(content)
        return None if content is None else _unpacked(content)

    def write(self, name: str, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Keep a finding; a signal that comes meanwhile waits until it is kept."""
        if not self.open or not self._first:
            return
        self._writing = True
        try:
            write_atomically(self._path(name), _packed(tensors, plain))
        except OSError as error:
            raise OSError(
                error.errno, f"the checkpoint could not be written ({error.strerror}); what it holds already is whole: "
                "make room or choose another folder, and run the same again", str(self.folder),
            ) from error  # fmt: skip
        finally:
            self._writing = False
        if self._stopped_by:
            _stop(self._stopped_by[0], self.folder)

    def check(self, name: str, given: Found, what: str) -> None:
        """Refuse a journal of another run: tensors must agree to round-off, plain values exactly."""
        tensors, plain = self.found(name, lambda: given)
        known = given[0]
        same = plain == json.loads(json.dumps(given[1])) and tensors.keys() == known.keys()
        for key in known if same else ():
            one, other = tensors[key].double(), known[key].detach().cpu().double()
            same = same and one.shape == other.shape and bool((one - other).norm() <= 1e-4 * other.norm())
        if not same:
            raise ValueError(
                f"{self.folder}: this checkpoint was begun with other {what}: run what it was begun with, or give "
                "another folder"
            )

    @contextmanager
    def stopping_cleanly(self) -> Iterator[None]:
        """Within it, SIGTERM and Ctrl-C say what is kept, and wait for a file that is being written."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            self._stopped_by.append(number)
            if not self._writing:
                _stop(number, self.folder)

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.open = False

    @property
    def _first(self) -> bool:
        return self.ranks is None or self.ranks.rank == 0

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


def _stop(number: int, folder: Path) -> None:
    message = f"stopped: every finished pass is kept in {folder}, run the same again to go on"
    if number == signal.SIGINT:
        raise KeyboardInterrupt(message)
    LOG.warning(message)
    raise SystemExit(128 + number)


def _copy(tensor: Tensor) -> Tensor:
    """A tensor of its own, laid out as one from a file is."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _packed(tensors: dict[str, Tensor], plain: dict[str, Any]) -> bytes:
    header = json.dumps({"format": FORMAT, **plain})
    return save(tensors, {"lapwing": header, "checksum": checksum(header, tensors)})


def _unpacked(content: bytes) -> Found | None:
    try:
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors = {name: _copy(tensor) for name, tensor in load(content).items()}  # clones are aligned
        plain = json.loads(metadata["lapwing"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if plain.pop("format", None) != FORMAT or metadata.get("checksum") != checksum(metadata["lapwing"], tensors):
        return None
    return tensors, plain


def checksum(header: str, tensors: dict[str, Tensor]) -> str:
    """Of every value in a file, so that a damaged one is not taken for a sound one."""
    digest = hashlib.blake2b(header.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            content: Any = value.reshape(-1).numpy()
            digest.update(memoryview(content).cast("B"))
    return digest.hexdigest()
