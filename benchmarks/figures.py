"""Pictures of a benchmark's table: one panel per data set, one bar of mean ± standard error per method."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.outcomes import Outcome
from benchmarks.tables import Entry, best, entries
from benchmarks.tasks.study import Study

WIDE = 4  # panels in a row


def write(study: Study, outcomes: Iterable[Outcome], folder: Path) -> list[Path]:
    """One SVG file for each score that has values; without matplotlib, none, and an ImportError that says so."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'lapwing[plot]'") from error
    rows, paths = entries(study, outcomes), []
    for score in study.scores:
        shown = [row for row in rows if row.score == score and row.values]
        if not shown:
            continue
        sets = list(dict.fromkeys(row.data for row in shown))
        height = 1 + 0.24 * max(sum(row.data == name for row in shown) for name in sets)
        columns, lines = min(WIDE, len(sets)), -(-len(sets) // WIDE)
        figure = Figure(figsize=(1 + 3.2 * columns, height * lines), layout="constrained")
        for number, name in enumerate(sets, 1):
            tied = best(study, rows, name, score)[1]
            _panel(figure.add_subplot(lines, columns, number), [row for row in shown if row.data == name], tied)
        figure.suptitle(f"{study.name}: {score}\nmean ± standard error over seeds", fontsize=10)
        path = folder / f"{study.name}-{score}.svg"
        figure.savefig(path, metadata={"Date": None})
        paths.append(path)
    return paths


def _panel(axes: Any, rows: list[Entry], tied: set[str]) -> None:
    """A dot for each method; a scale without the outliers that would hide the rest."""
    for place, row in enumerate(rows):
        error = row.standard_error if len(row.values) > 1 else 0.0
        colour = "#0b6e4f" if row.method in tied and len(row.values) > 1 else "#555555"
        axes.errorbar(row.mean, place, xerr=error, fmt="o", color=colour, markersize=4, capsize=2)
    axes.set_yticks(range(len(rows)), [row.method for row in rows], fontsize=7)
    axes.margins(y=0.2)  # no mark on the frame
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(rows[0].data, fontsize=9)
    low, high = _limits([row.mean for row in rows])
    axes.set_xlim(low, high)
    for place, row in enumerate(rows):
        if row.mean > high or row.mean < low:
            side = high if row.mean > high else low
            axes.annotate(f"{row.mean:.3g}", (side, place), fontsize=6, ha="right" if side == high else "left")


def _limits(values: list[float]) -> tuple[float, float]:
    """From the best to three times the way from it to the median, but no further than the values go."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    low, high = ordered[0], min(ordered[-1], ordered[0] + 4 * (middle - ordered[0]))
    low = max(low, middle - 4 * (ordered[-1] - middle)) if ordered[-1] > middle else low
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 0.1
    return low - pad, high + pad
