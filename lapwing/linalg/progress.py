"""Telling a person at a terminal what is being done."""

from __future__ import annotations

import sys
from collections.abc import Callable

Report = Callable[[str], None]


def reporter(progress: bool | Report | None) -> Report:
    """A function that shows a phase: on a terminal only by default, always with True, never with False.

    A function is used as it is, so that other programs can show the phases in their own way.
    """
    if callable(progress):
        return progress
    shown = sys.stderr.isatty() if progress is None else progress
    return _show if shown else _ignore


def _show(phase: str) -> None:
    sys.stderr.write(f"\r\033[Klapwing: {phase}" if phase else "\r\033[K")
    sys.stderr.flush()


def _ignore(phase: str) -> None:
    del phase
