"""The cells of the tasks of `python -m benchmarks`, and what they give, as the lines of the harness hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks import harness

FILE = "results.jsonl"  # of a folder


@final
@dataclass(frozen=True, order=True)
class Cell:
    """One method on one data set with one seed (or split) of one task."""

    task: str
    data: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.data}, {self.method}, seed {self.seed}"

    @property
    def name(self) -> str:
        """The name of its line: a folder may hold several tasks."""
        return f"{self.task}: {self}"

    @property
    def command(self) -> str:
        """What runs it."""
        return f"python -m benchmarks {self.task} --data {self.data} --methods {self.method} --seeds {self.seed}"


@final
@dataclass(frozen=True)
class Outcome:
    """What a cell gave: its scores, or why there are none."""

    cell: Cell
    scores: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # of a failure
    threads: int = 1
    seconds: float = math.nan

    @property
    def failed(self) -> bool:
        """Whether there is a reason instead of scores."""
        return bool(self.reason)

    @staticmethod
    def of(line: Mapping[str, Any]) -> Outcome:
        """What a line of the harness says."""
        found = line["result"]
        scores = {name: math.nan if value is None else value for name, value in found["scores"].items()}
        return Outcome(Cell(**line["arguments"]), scores, found["reason"], found["threads"], line["seconds"])

    def result(self) -> dict[str, Any]:
        """What a line of the harness keeps of it; numbers that are not finite are null."""
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        return {"scores": scores, "reason": self.reason, "threads": self.threads}


def line(cell: Cell, run: Callable[[], Outcome]) -> harness.Line:
    """The line of a cell, which is run for it."""
    return harness.record(cell.command, cell.name, asdict(cell), lambda **_: run().result())


def read(folder: Path) -> dict[Cell, Outcome]:
    """What a folder holds, by cell."""
    found = map(Outcome.of, harness.read(folder / FILE).values())
    return {one.cell: one for one in found}


def add(folder: Path, one: harness.Line) -> None:
    """One more line for a folder."""
    harness.add(folder / FILE, one)
