"""How much memory there is, and a refusal that says what a computation would need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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


def check_memory(needed: float, purpose: str, advice: str) -> None:
    """Raise MemoryError before a computation that cannot fit, not after."""
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
