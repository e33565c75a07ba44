"""`python -m benchmarks`: the cells of a task that are not done yet, then the table of all that are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from benchmarks.about import TASKS

if TYPE_CHECKING:
    from benchmarks.outcomes import Outcome
    from benchmarks.tasks import Study

Tell = Callable[[str, float | None], None]


@final
@dataclass(frozen=True)
class Request:
    """What was asked for."""

    task: str
    methods: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    processes: int = 1
    retry: bool = False


@final
@dataclass(frozen=True)
class Finished:
    """What came of it."""

    folder: Path
    done: int  # cells run now
    before: int  # cells found finished
    failed: int
    notes: list[str]
    table: str
    paths: list[Path]
    seconds: dict[tuple[str, str], float]


def study(name: str) -> Study:
    """A task by its name, or an error that lists them."""
    if name not in TASKS:
        raise ValueError(f"no task is called {name!r}; there are {', '.join(TASKS)}")
    from benchmarks.tasks import STUDIES

    return STUDIES[name]


def contents(task: str) -> tuple[list[str], dict[str, Any]]:
    """What a task can be run with, in words and as plain values."""
    chosen = study(task)
    found = {"methods": chosen.methods, "data": chosen.data, "scores": chosen.scores}
    words = [f"{chosen.name}: {chosen.about}", *(f"  {name}: {', '.join(parts)}" for name, parts in found.items())]
    lacking = _lacking(chosen)
    words += [f"  {', '.join(sets)} cannot be run yet: {why}" for why, sets in lacking.items()]
    return words, {"task": chosen.name, "about": chosen.about, **found, "lacking": lacking}


def _lacking(chosen: Study) -> dict[str, list[str]]:
    """Data sets that are not on this machine, by what is to be done about them."""
    found: dict[str, list[str]] = {}
    for name in chosen.data:
        try:
            chosen.seeds(name)
        except (ValueError, OSError) as error:
            found.setdefault(str(error), []).append(name)
    return found


def numbers(text: str | None) -> tuple[int, ...] | None:
    """Seeds such as 0,3,7 or 0-4.

    >>> numbers("0-2,7"), numbers(None)
    ((0, 1, 2, 7), None)
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"--seeds takes numbers and ranges such as 0,3,7 or 0-4, not {text!r}")
        found += range(int(low), int(high or low) + 1)
    return tuple(dict.fromkeys(found))


def names(text: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def bench(request: Request, folder: Path, tell: Tell, say: Callable[[str], None]) -> Finished:
    """Run what is left of a task, each outcome written as it comes; then the table, and plots if they can be made."""
    from benchmarks import outcomes, tables
    from benchmarks.running import run_all

    chosen = study(request.task)
    cells, notes = chosen.cells(request.methods, request.data, request.seeds)
    known = {cell: found for cell, found in outcomes.read(folder).items() if not (request.retry and found.failed)}
    left = tables.left(known, cells)
    clock, done = time.perf_counter(), 0
    if left:
        tell(f"bench {chosen.name}, first {left[0]}", 0.0)
        say(f"{len(left)} cells to run, first {left[0]}")
    for line in run_all(chosen.run, left, folder, processes=request.processes):
        outcomes.add(folder, line)
        done += 1
        remaining = (time.perf_counter() - clock) / done * (len(left) - done)
        tell(f"bench {chosen.name}", done / len(left))
        say(_line(chosen, outcomes.Outcome.of(line), done, len(left), remaining))
    found = [one for cell, one in outcomes.read(folder).items() if cell.task == chosen.name]
    return _finished(chosen, found, folder, len(cells), done, notes)


def _finished(
    chosen: Study, outcomes: list[Outcome], folder: Path, asked: int, done: int, notes: list[str]
) -> Finished:
    from benchmarks import figures, tables
    from lapwing.app.records import write_atomically

    table = tables.markdown(chosen, outcomes)
    path = folder / f"{chosen.name}.md"
    write_atomically(path, table.encode())
    try:
        pictures = figures.write(chosen, outcomes, folder)
    except ImportError as error:
        pictures, notes = [], [*notes, str(error)]
    failed = sum(found.failed for found in outcomes)
    paths = [folder / "results.jsonl", path, *pictures]
    return Finished(folder, done, asked - done, failed, notes, table, paths, tables.seconds(outcomes))


def _line(chosen: Study, found: Outcome, done: int, total: int, remaining: float) -> str:
    first = chosen.scores[0]
    said = f"failed: {found.reason}" if found.failed else f"{first} {found.scores.get(first, float('nan')):.4g}"
    minutes, seconds = divmod(round(remaining), 60)
    return f"{done} of {total}: {found.cell}: {said} ({found.seconds:.0f} s); {minutes} min {seconds} s left"


def lines_unless_terminal(quiet: bool) -> Callable[[str], None]:
    """A line for every cell where there is no terminal to show a bar on, as in a log."""
    if quiet or sys.stderr.isatty():
        return lambda _line: None

    def say(line: str) -> None:
        sys.stderr.write(f"lapwing: {line}\n")

    return say


def summary(found: Finished) -> dict[str, Any]:
    """The result as plain values."""
    return {
        "folder": found.folder, "run": found.done, "already_done": found.before, "failed": found.failed,
        "notes": found.notes, "paths": found.paths,
        "seconds": {f"{data}, {method}": value for (data, method), value in sorted(found.seconds.items())},
    }  # fmt: skip
