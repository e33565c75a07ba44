"""The table at the end: means over seeds with standard errors, who is best or tied, and paired differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import mean, stdev
from typing import final

import torch

from benchmarks.outcomes import Cell, Outcome
from benchmarks.tasks.study import Study
from lapwing import metrics


@final
@dataclass(frozen=True)
class Entry:
    """One score of one method on one data set, over seeds."""

    data: str
    method: str
    score: str
    values: dict[int, float]  # by seed, finite ones only
    failures: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return mean(self.values.values())

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for one seed. Splits of one data set overlap, so for those it is on the small side."""
        return stdev(self.values.values()) / sqrt(len(self.values)) if len(self.values) > 1 else float("nan")

    def __str__(self) -> str:
        if not self.values:
            return "failed" if self.failures else "–"
        error = f" ± {self.standard_error:.2g}" if len(self.values) > 1 else ""
        lost = f" ({len(self.failures)} failed)" if self.failures else ""
        return f"{self.mean:.4g}{error}{lost}"


def entries(study: Study, outcomes: Iterable[Outcome]) -> list[Entry]:
    """Every score of the study, by data set and method in the study's order."""
    by_place: dict[tuple[str, str], list[Outcome]] = {}
    for found in outcomes:
        if found.cell.task == study.name:
            by_place.setdefault((found.cell.data, found.cell.method), []).append(found)
    return [
        Entry(
            data, method, score,
            {one.cell.seed: one.scores[score] for one in group if isfinite(one.scores.get(score, float("nan")))},
            tuple(one.reason for one in group if one.failed),
        )
        for data in study.data for method in study.methods if (group := by_place.get((data, method)))
        for score in study.scores
    ]  # fmt: skip


def best(study: Study, rows: list[Entry], data: str, score: str) -> tuple[str | None, set[str]]:
    """The best method on a data set, and those within one standard error of the paired difference to it.

    Only methods that have all the seeds of the one with most count, so that a failure is no advantage.
    """
    column = [row for row in rows if (row.data, row.score) == (data, score) and row.values]
    most = max((len(row.values) for row in column), default=0)
    full = [row for row in column if len(row.values) == most and not row.failures]
    if not full:
        return None, set()
    sign = -1 if score in study.higher else 1
    winner = min(full, key=lambda row: sign * row.mean)
    tied = {winner.method}
    for row in full:
        found = difference(row, winner)
        if found is not None and sign * found.mean <= found.standard_error:
            tied.add(row.method)
    return winner.method, tied


def difference(row: Entry, other: Entry) -> metrics.Difference | None:
    """The paired difference over the seeds that both have; None for fewer than two."""
    seeds = sorted(row.values.keys() & other.values.keys())
    if len(seeds) < 2 or row is other:
        return None
    first, second = (torch.tensor([entry.values[seed] for seed in seeds]).double() for entry in (row, other))
    return metrics.paired(first, second)


def markdown(study: Study, outcomes: Iterable[Outcome]) -> str:
    """The whole table: one section per data set, one row per method, and the paired difference to a reference method.

    The reference is the first of `linearised` and `map` that ran. Bold: the best, and what is within one standard error
    of it by paired differences.
    """
    found = list(outcomes)
    rows = entries(study, found)
    lines = [f"# {study.name}: {study.about}", ""]
    for data in [name for name in study.data if any(row.data == name for row in rows)]:
        lines += _section(study, rows, data)
    lines += _failures(found)
    return "\n".join(lines) + "\n"


def _section(study: Study, rows: list[Entry], data: str) -> list[str]:
    here = {(row.method, row.score): row for row in rows if row.data == data}
    methods = [name for name in study.methods if (name, study.scores[0]) in here]
    against = next((name for name in ("linearised", "map") if name in methods), methods[0])
    seeds = max(len(row.values) for row in here.values())
    first = study.scores[0]
    header = ["method", *study.scores, f"{first} − {against}"]
    lines = [f"## {data} ({seeds} seed{'s' if seeds != 1 else ''})", "", _row(header), _row(["---"] * len(header))]
    tied = {score: best(study, rows, data, score)[1] for score in study.scores}
    for method in methods:
        cells = [
            f"**{here[method, score]}**" if seeds > 1 and _ranked(score) and method in tied[score]
            else str(here[method, score])
            for score in study.scores
        ]  # fmt: skip
        gap = difference(here[method, first], here[against, first])
        lines.append(_row([method, *cells, "" if gap is None else f"{gap!r}"]))
    if study.published.get(data):
        known = ", ".join(f"{name} {value:.4g}" for name, value in study.published[data].items())
        lines += ["", f"Published: {known}."]
    return [*lines, ""]


def _ranked(score: str) -> bool:
    """Whether there is a better and a worse: coverage and width have a target instead, and R-hat is of chains alone."""
    return score not in ("coverage", "width", "gap_std", "confidence", "r_hat")


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _failures(outcomes: list[Outcome]) -> list[str]:
    failed = sorted((one for one in outcomes if one.failed), key=lambda one: one.cell)
    return ["## Failed", "", *(f"- {one.cell}: {one.reason}" for one in failed), ""] if failed else []


def seconds(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], float]:
    """Mean wall-clock seconds of the cells of each data set and method."""
    times: dict[tuple[str, str], list[float]] = {}
    for found in outcomes:
        if isfinite(found.seconds):
            times.setdefault((found.cell.data, found.cell.method), []).append(found.seconds)
    return {place: mean(values) for place, values in times.items()}


def left(done: dict[Cell, Outcome], cells: list[Cell]) -> list[Cell]:
    """The cells without an outcome."""
    return [cell for cell in cells if cell not in done]
