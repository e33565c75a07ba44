"""What the benchmarks of `python -m benchmarks` tasks share: a cell is one data set with some methods and seeds.

Outcomes are kept cell by cell in the folder of $LAPWING_BENCH, where it is set, so that a run that was stopped goes on
where it was, and the same command with `python -m benchmarks TASK --out FOLDER` adds to it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.driver import study
from benchmarks.outcomes import Cell, Outcome, add, read
from benchmarks.running import finished


def measure(task: str, data: str, methods: list[str], seeds: list[int]) -> dict[str, Any]:
    """The outcomes of some cells of a task, run now or found finished."""
    kept, chosen = os.environ.get("LAPWING_BENCH"), study(task)
    cells, _ = chosen.cells(methods, [data], seeds)
    with tempfile.TemporaryDirectory() as fresh:
        folder = Path(kept or fresh)
        for cell in tables.left(read(folder), cells):
            add(folder, finished(chosen.run, cell, folder))
        found = read(folder)
    return {"outcomes": [_plain(found[cell]) for cell in cells]}


def outcomes(cells: dict[str, dict[str, Any]], task: str) -> list[Outcome]:
    """The outcomes in a results file, as `benchmarks.tables` takes them; what two cells share counts once."""
    found = {}
    for cell in cells.values():
        for one in cell["result"]["outcomes"]:
            place = Cell(task, cell["arguments"]["data"], one["method"], one["seed"])
            found[place] = Outcome(place, one["scores"], one["reason"], seconds=one["seconds"])
    return list(found.values())


def _plain(found: Outcome) -> dict[str, Any]:
    scores = {name: float(f"{value:.6g}") for name, value in found.scores.items() if value == value}
    return {
        "method": found.cell.method, "seed": found.cell.seed, "scores": scores, "reason": found.reason,
        "seconds": round(found.seconds, 1),
    }  # fmt: skip
