"""What a person sees: progress on a terminal, errors on one line, results in words or as JSON."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lapwing.app.cli.jobs import Job

FAILED, BUG, INTERRUPTED = 1, 3, 130


@contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Errors as one line on standard error and an exit code; with `debug`, with their traceback."""
    try:
        with Job.here().ending_together():
            yield
    except (ValueError, OSError, MemoryError) as error:
        _complain(error, str(error) or type(error).__name__, debug)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        sys.stderr.write("lapwing: interrupted\n")
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if _of_ranks(error):
            _complain(error, str(error), debug)
            raise SystemExit(FAILED) from None
        _complain(error, f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", debug)
        raise SystemExit(BUG) from None


def _of_ranks(error: Exception) -> bool:
    """Whether the ranks of a job have lost each other; that error's module imports torch, so it is not imported."""
    ranks = sys.modules.get("lapwing.runtime.ranks")
    return ranks is not None and isinstance(error, ranks.RankFailed)


def _complain(error: BaseException, words: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    line = " ".join(words.split())
    sys.stderr.write(f"lapwing: {Job.here().name}{line}\n")


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, float | None], None]]:
    """A function to be told phases and shares done: a bar with the time left on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _phase, _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    parts = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task, last = bar.add_task("starting", total=None), ""

        def tell(phase: str, share: float | None) -> None:
            nonlocal last
            if phase != last:
                bar.reset(task, description=phase, total=None)
                last = phase
            if share is not None:
                bar.update(task, total=1.0, completed=share)

        yield tell


def answer(words: list[str], found: dict[str, Any], as_json: bool) -> None:
    """Print the result: lines for a person, broken between words on a terminal, or one JSON object."""
    if as_json:
        sys.stdout.write(json.dumps(_plain(found), indent=1) + "\n")
        return
    if sys.stdout.isatty():
        words = [_broken(line, shutil.get_terminal_size().columns) for line in words]
    sys.stdout.write("\n".join(words) + "\n")


def _broken(line: str, width: int) -> str:
    """A sentence in lines that fit, the later ones further in; a table stays as it is.

    >>> print(_broken("  errors are as large as predicted", 24))
      errors are as large as
        predicted
    """
    if len(line) <= width or "\n" in line:
        return line
    further = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
