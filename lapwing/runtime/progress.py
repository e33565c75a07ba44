"""Telling a person at a terminal what is being done."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

Report = Callable[[str], None]
EVERY = 10.0  # seconds between lines in a log


def reporter(progress: bool | Report | None) -> Report:
    """A function that shows a phase: on a terminal only by default, always with True, never with False.

    A function is used as it is, so that other programs can show the phases in their own way. Where standard error is no
    terminal but a log, True writes a line now and then.
    """
    if callable(progress):
        return progress
    shown = sys.stderr.isatty() if progress is None else progress
    if not shown:
        return _ignore
    return _show if sys.stderr.isatty() else _lines()


def _show(phase: str) -> None:
    sys.stderr.write(f"\r\033[Klapwing: {phase}" if phase else "\r\033[K")
    sys.stderr.flush()


def _lines() -> Report:
    last = -math.inf

    def show(phase: str) -> None:
        nonlocal last
        if phase and time.monotonic() - last >= EVERY:
            sys.stderr.write(f"lapwing: {phase}\n")
            sys.stderr.flush()
            last = time.monotonic()

    return show


def _ignore(phase: str) -> None:
    del phase
