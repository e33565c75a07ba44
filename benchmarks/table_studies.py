"""The page docs/tables.md: what every method of `lapwing bench` scored, from the results of the bench_*.py of its tasks."""

from __future__ import annotations

from typing import Any

import studies
from table_networks import table

from lapwing.bench import tables
from lapwing.bench.studies import STUDIES

Parts = dict[str, dict[str, Any]]


def grid(parts: Parts, task: str, score: str) -> str:
    """Methods down, data sets across: one score, bold where it is the best or within a standard error of it."""
    study, found = STUDIES[task], studies.outcomes(parts[task.replace("-", "_")], task)
    rows = tables.entries(study, found)
    sets = [name for name in study.data if any(row.data == name for row in rows)]
    tied = {name: tables.best(study, rows, name, score)[1] for name in sets}
    here = {(row.data, row.method): row for row in rows if row.score == score}
    lines = []
    for method in [name for name in study.methods if any(row.method == name for row in rows)]:
        cells = [here.get((name, method)) for name in sets]
        shown = ["–" if cell is None else str(cell) for cell in cells]
        lines.append([
            method, *(f"**{text}**" if method in tied[name] else text for name, text in zip(sets, shown, strict=True))
        ])  # fmt: skip
    published = [study.published.get(name, {}).get(f"dropout {score}") for name in sets]
    if any(value is not None for value in published):
        lines.append(["*dropout, published*", *("–" if value is None else f"{value:.4g}" for value in published)])
    counts = [f"{name} ({_seeds(rows, name)})" for name in sets]
    return table(["method", *counts], lines)


def _seeds(rows: list[tables.Entry], data: str) -> int:
    return max(len(row.values) for row in rows if row.data == data)


def ranks(parts: Parts, task: str, score: str) -> str:
    """On how many data sets each method is best or tied."""
    study, found = STUDIES[task], studies.outcomes(parts[task.replace("-", "_")], task)
    rows = tables.entries(study, found)
    sets = [name for name in study.data if any(row.data == name for row in rows)]
    wins = {
        method: sum(method in tables.best(study, rows, name, score)[1] for name in sets) for method in study.methods
    }
    ordered = sorted(((count, method) for method, count in wins.items() if count), reverse=True)
    return f"Best or tied, of {len(sets)} sets: " + ", ".join(f"{method} {count}" for count, method in ordered) + "."


def columns(parts: Parts, task: str, data: str, scores: list[str]) -> str:
    """Methods down, scores across, for one data set."""
    study, found = STUDIES[task], studies.outcomes(parts[task.replace("-", "_")], task)
    lines = []
    for method in study.methods:
        mine = [one for one in found if (one.cell.data, one.cell.method) == (data, method) and not one.failed]
        if mine:
            values = [[one.scores[score] for one in mine if score in one.scores] for score in scores]
            lines.append([method, *(f"{sum(given) / len(given):.3g}" if given else "–" for given in values)])
    return table(["method", *scores], lines)
