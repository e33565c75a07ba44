"""How much memory there is, and a refusal that says what a computation would need."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

UNITS = {f"{letter}B": 1000.0**power for power, letter in enumerate(["", "k", "M", "G", "T"])}
UNITS |= {f"{letter}iB": 1024.0**power for power, letter in enumerate(["k", "M", "G", "T"], start=1)}
_agreed: ContextVar[int | None] = ContextVar("agreed", default=None)


@contextmanager
def counting_on(free: int | None) -> Iterator[None]:
    """Take so much memory for free, as processes must agree on that work together; None changes nothing.

    >>> with counting_on(1000):
    ...     available_bytes()
    1000
    """
    token = _agreed.set(free)
    try:
        yield
    finally:
        _agreed.reset(token)


def available_bytes() -> int:
    """Memory that can be used now without swapping."""
    agreed = _agreed.get()
    if agreed is not None:
        return agreed
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def as_bytes(memory: float | str) -> float:
    """A number of bytes, of a number or of words.

    >>> as_bytes("8GB"), as_bytes("1.5 MiB"), as_bytes(1e6)
    (8000000000.0, 1572864.0, 1000000.0)
    """
    number, unit = (str(memory), "B") if not isinstance(memory, str) else _parted(memory)
    size = float(number) * UNITS[unit] if number else 0.0
    if not 0 < size < float("inf"):
        raise ValueError(f"memory is {memory!r}, expected a number of bytes, or words as '8GB' or '500 MiB'")
    return size


def _parted(memory: str) -> tuple[str, str]:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kMGT]?i?B)\s*", memory)
    return (found[1], found[2]) if found and found[2] in UNITS else ("", "B")


@contextmanager
def within(memory: float | str | None) -> Iterator[None]:
    """Take at most so much memory for free, less where less is there; None changes nothing."""
    with counting_on(_agreed.get() if memory is None else int(min(as_bytes(memory), available_bytes()))):
        yield


NOTHING = 2**16  # bytes


def check_memory(needed: float, purpose: str, advice: str) -> None:
    """Raise MemoryError before a computation that cannot fit, not after."""
    if needed < NOTHING and _agreed.get() is None:  # to look takes longer than such a computation
        return
    available = available_bytes()
    if needed > 0.9 * available:
        raise MemoryError(f"{purpose} needs {readable(needed)}, and {readable(available)} are available: {advice}")


def readable(size: float) -> str:
    """A number of bytes for people.

    >>> readable(3_200_000_000)
    '3.2 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
