"""What a benchmark task is: methods, data sets, seeds, a function that runs one cell, and the scores to show."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.outcomes import Cell
from benchmarks.running import Run
from lapwing.bayes.diagnostics import Diagnostics


@final
@dataclass(frozen=True, eq=False)
class Study:
    """One task of `python -m benchmarks`."""

    name: str
    about: str  # one line
    methods: tuple[str, ...]
    data: tuple[str, ...]
    run: Run  # a function at the top of a module
    scores: tuple[str, ...]  # columns of the table, the first of them decides; lower is better but for `higher`
    seeds: Callable[[str], int]  # how many a data set has; raises where it is missing
    higher: frozenset[str] = frozenset()
    default_seeds: int = 5
    default_methods: tuple[str, ...] = ()  # all of them where it is empty
    left_out: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)  # method -> data sets, why
    published: dict[str, dict[str, float]] = field(default_factory=dict)  # data set -> "method score" -> value

    def cells(
        self, methods: Sequence[str] | None = None, data: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> tuple[list[Cell], list[str]]:  # fmt: skip
        """The cells to run, seed by seed so that whole tables grow, and what is left out of them, in words."""
        chosen = known(methods, self.methods, "method", self.name) or self.default_methods or self.methods
        sets = known(data, self.data, "data set", self.name) or self.data
        found, notes = [], []
        for name in sets:
            there = self.seeds(name)
            if seeds is not None and (beyond := [seed for seed in seeds if not 0 <= seed < there]):
                notes.append(f"{name} has the seeds 0 to {there - 1}: {', '.join(map(str, beyond))} left out")
            wanted = range(min(there, self.default_seeds)) if seeds is None else seeds
            found += [Cell(self.name, name, m, s) for s in wanted if 0 <= s < there for m in chosen]
        for method, (without, why) in self.left_out.items():
            if method in chosen and (lost := [name for name in sets if name in without]):
                notes.append(f"{method} is left out for {', '.join(lost)}: {why}")
        kept = [cell for cell in found if cell.data not in self.left_out.get(cell.method, ((), ""))[0]]
        return sorted(kept, key=lambda cell: (cell.seed, sets.index(cell.data), chosen.index(cell.method))), notes


def known(given: Sequence[str] | None, valid: Sequence[str], what: str, task: str) -> tuple[str, ...]:
    """The names given, or an error that lists the valid ones."""
    for name in given or ():
        if name not in valid:
            raise ValueError(f"{task} has no {what} {name!r}; there are {', '.join(valid)}")
    return tuple(dict.fromkeys(given or ()))


def shared_weights(model: nn.Module, path: Path, train: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A trained network that several cells share: read from a file where one of them has left it, else trained.

    Two processes may train it at the same time; both get the same weights, and the file is replaced in one step.
    """
    if path.exists():
        try:
            model.load_state_dict(load_file(path))
            return model.eval()
        except (RuntimeError, OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"{path} cannot be read ({error}): delete it and run again") from error
    trained = train(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        save_file({name: tensor.contiguous() for name, tensor in trained.state_dict().items()}, fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return trained.eval()


def numbers(found: Mapping[str, Any] | Diagnostics, *names: str) -> dict[str, float]:
    """Some diagnostics as plain numbers, where they are there."""
    known = found.plain() if isinstance(found, Diagnostics) else found
    return {name: float(known[name]) for name in names if isinstance(known.get(name), (int, float))}
