"""What a benchmark has found so far: one line of JSON for every finished cell, in a file that survives a kill."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from lapwing.app.records import write_atomically

FORMAT = 1
FILE = "results.jsonl"


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


@final
@dataclass(frozen=True)
class Outcome:
    """What a cell gave: its scores, or why there are none."""

    cell: Cell
    scores: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # of a failure
    seconds: float = math.nan
    about: dict[str, Any] = field(default_factory=dict)  # versions, settings, diagnostics

    @property
    def failed(self) -> bool:
        """Whether there is a reason instead of scores."""
        return bool(self.reason)

    def line(self) -> str:
        """One line of JSON; numbers that are not finite are null."""
        body = {"format": FORMAT, **asdict(self.cell), "status": "failed" if self.failed else "done"}
        body |= {"scores": self.scores, "reason": self.reason, "seconds": self.seconds, "about": self.about}
        return json.dumps(_finite(body), allow_nan=False)


@final
@dataclass(frozen=True, eq=False)
class Ledger:
    """The outcomes in a folder; the last one of a cell counts."""

    path: Path

    @staticmethod
    def at(folder: Path | str) -> Ledger:
        """The ledger of a folder, which is made where it is missing; half a line that a kill left is taken away."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(folder / FILE)
        if ledger.path.exists():
            text = ledger.path.read_bytes()
            good = b"".join(line for line in text.splitlines(keepends=True) if _parsed(line) is not None)
            if good != text:
                write_atomically(ledger.path, good)
        return ledger

    def read(self) -> dict[Cell, Outcome]:
        """All outcomes by cell."""
        if not self.path.exists():
            return {}
        lines = self.path.read_bytes().splitlines(keepends=True)
        return {found.cell: found for found in map(_parsed, lines) if found is not None}

    def add(self, outcome: Outcome) -> None:
        """Append an outcome, whole or not at all."""
        data = (outcome.line() + "\n").encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(handle).st_size
            try:
                written = os.write(handle, data)
                if written != len(data):
                    raise OSError(f"only {written} of {len(data)} bytes could be written")  # noqa: TRY301
                os.fsync(handle)
            except OSError as error:
                os.ftruncate(handle, before)
                raise OSError(
                    f"{self.path} cannot be written ({error.strerror or error}): the {len(self.read())} finished cells "
                    "are kept; make room and run the same command again"
                ) from error
        finally:
            os.close(handle)


def _parsed(line: bytes) -> Outcome | None:
    """An outcome, or None for a line that is not one."""
    if not line.endswith(b"\n"):
        return None
    try:
        body = json.loads(line)
        cell = Cell(str(body["task"]), str(body["data"]), str(body["method"]), int(body["seed"]))
        scores = {str(name): _number(value) for name, value in body["scores"].items()}
        failed, reason = body["status"] != "done", str(body["reason"])
        if body["format"] != FORMAT or failed != bool(reason):
            return None
        return Outcome(cell, scores, reason, _number(body["seconds"]), dict(body["about"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
