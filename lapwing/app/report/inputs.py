"""What the columns of a table do: which of them matter, and the predictions over the one that matters most."""

from __future__ import annotations

import numpy as np

from lapwing.app.records import Evaluation, Record
from lapwing.app.report import scores
from lapwing.app.report.markup import Html, table
from lapwing.app.report.svg import NAME, Frame, axis, card, cut, figure, legend, number, share_bar

SHOWN = 150  # rows of a chart
COLUMNS = 25  # of the table of relevance
INSIDE_90 = 1.6448536


def relevance(record: Record) -> list[Html]:
    """Every column's share in the slopes of the networks."""
    if not record.relevance:
        return []
    order = sorted(record.relevance, key=record.relevance.__getitem__, reverse=True)
    largest = record.relevance[order[0]]
    rows = [(name, share_bar(record.relevance[name], largest)) for name in order[:COLUMNS]]
    some = f" The first {COLUMNS} of {len(order)} are shown." if len(order) > COLUMNS else ""
    whole = table(("column", "relevance"), rows, caption="Relevance of the columns")
    says = (
        "A column's relevance is its share in the slopes of the networks over the training rows: how much the "
        f"prediction changes with it, in standard deviations.{some} It is not a cause."
    )
    return [card("Relevance of the columns", whole, says=says, wide=True)]


def most_relevant(record: Record, evaluation: Evaluation, what: str, unit: str) -> list[Html]:
    """Predictions and their errors over the most relevant column, where there are others."""
    if len(record.relevance) < 2 or evaluation.inputs is None:
        return []
    rows = _places(evaluation.inputs)
    return [intervals(evaluation, rows, what, unit), residuals(evaluation, rows)] if len(rows) else []


def _places(inputs: np.ndarray) -> np.ndarray:
    """Rows along the column, without those where it is missing."""
    order = np.argsort(inputs, kind="stable")
    order = order[np.isfinite(inputs[order])]
    return order[np.unique(np.linspace(0, len(order) - 1, SHOWN).astype(int))] if len(order) else order


def intervals(evaluation: Evaluation, rows: np.ndarray, what: str, unit: str) -> Html:
    """Predictions with intervals, and what was observed, over one column."""
    ours, name = scores.main(evaluation), evaluation.input_name
    x, targets = np.asarray(evaluation.inputs)[rows], np.asarray(evaluation.targets)[rows, 0]
    low, high, words = scores.interval(ours)
    low, high, mean = low[rows, 0], high[rows, 0], scores.spread(ours)[0][rows, 0]
    frame = Frame(axis(cut(name, NAME), x), axis(f"{what}{unit}", [*low, *high, *targets]), 330)
    ends = [f"{number(a)} to {number(b)}" for a, b in zip(low, high, strict=True)]
    tips = [
        f"{name} {number(x[i])}: observed {number(targets[i])}, predicted {number(mean[i])} ({ends[i]})"
        for i in range(len(rows))
    ]
    marks = [
        frame.whiskers(x, low, high, 0), frame.points(x, mean, 0, tips), frame.points(x, targets, 1, tips)
    ]  # fmt: skip
    count = len(scores.spread(ours)[0])
    some = f" {len(rows):,} of {count:,} rows are shown." if len(rows) < count else ""
    says = f"Bars are {words}. Rows differ in the other columns too, so neighbours need not be alike.{some}"
    return figure(f"Intervals over {name}", frame, marks, key=legend(["predicted", "observed"]), says=says)


def residuals(evaluation: Evaluation, rows: np.ndarray) -> Html:
    """Standardised errors over one column."""
    ours, name = scores.main(evaluation), evaluation.input_name
    x = np.asarray(evaluation.inputs)[rows]
    z = scores.normal_scores(ours, np.asarray(evaluation.targets))[rows, 0]
    frame = Frame(axis(cut(name, NAME), x), axis("standardised error", [*z, -2, 2]), 330)
    ends = np.array([frame.x.low, frame.x.high])
    edge = np.full(2, INSIDE_90)
    tips = [f"{name} {number(a)}: {number(b)}" for a, b in zip(x, z, strict=True)]
    marks = [frame.band(ends, -edge, edge, "-chance"), frame.rule(y=0.0), frame.points(x, z, 0, tips)]
    says = (
        "9 of 10 errors should lie inside the grey band, everywhere. A trend means that the predictions miss "
        f"something about {name}; more outside on one side, that intervals are too narrow there."
    )
    return figure(f"Errors over {name}", frame, marks, says=says)
