"""Charts of a regression's predictions."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import final

import numpy as np

from lapwing.app.records import Evaluation, Predictions, Record
from lapwing.app.report import scores
from lapwing.app.report.classification import Runs, histogram
from lapwing.app.report.markup import Child, Html
from lapwing.app.report.svg import Axis, Frame, Numbers, axis, figure, legend, number, percent, tenths

SHOWN = 1200  # points of a scatter
BARS = 150  # of them with error bars
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
TICKS = tuple(np.linspace(0, 1, 6))


def charts(record: Record) -> list[tuple[str, list[Html]]]:
    """Sections of charts: are the intervals right, where are the errors, the function itself."""
    first = next((one for one in record.evaluations if one.targets is not None), None)
    if first is None:
        return []
    unit, what = f" ({record.data.unit})" if record.data.unit else "", record.data.target or "target"
    methods = [(one.method, first, one) for one in scores.ordered(first)]
    return [
        ("Are the intervals right?", [coverage(methods), errors(first)]),
        ("The function and its error bars", [] if first.inputs is None else [bands(first, what, unit)]),
        ("Where are the errors?", [against(first, what, unit), residuals(first, unit), widths(first, unit)]),
    ]


def coverage(runs: Runs) -> Html:
    """Share of targets inside central intervals, against the level promised."""
    y = Axis("targets found inside", 0, 1, ticks=TICKS, form=percent)
    frame = Frame(Axis("level promised", 0, 1, ticks=TICKS, form=percent), y, 330)
    count, grid = min(_z(evaluation, one).size for _, evaluation, one in runs), np.linspace(0, 1, 41)
    room = 1.96 * np.sqrt(grid * (1 - grid) / count)
    marks: list[Child] = [
        frame.band(grid, np.clip(grid - room, 0, 1), np.clip(grid + room, 0, 1), "-chance"),
        frame.diagonal("as promised"),
    ]
    halves = [NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS]
    rows: list[tuple[str, ...]] = []
    for series, (name, evaluation, one) in reversed(list(enumerate(runs))):
        z = np.abs(_z(evaluation, one))
        inside = [float((z < half).mean()) for half in halves]
        words = [(percent(level), tenths(found)) for level, found in zip(LEVELS, inside, strict=True)]
        marks.append(frame.line(LEVELS, inside, series, [f"{name}: {a} intervals hold {b}" for a, b in words]))
        rows[:0] = [(name, *word) for word in words]
    return figure(
        "Coverage of intervals", frame, marks, key=legend([name for name, _, _ in runs]),
        says="How many targets fall inside central intervals. Above the diagonal the error bars are too wide, below it "
        "too narrow; the grey band is what chance allows.",
        numbers=Numbers(("method", "promised", "inside"), tuple(rows)),
    )  # fmt: skip


def errors(evaluation: Evaluation) -> Html:
    """Standardised errors beside the standard normal density."""
    z = _z(evaluation, scores.main(evaluation))
    edges = np.linspace(-4, 4, 33)
    found = np.histogram(np.clip(z, -4, 4), edges)[0] / z.size
    expected = np.diff([NormalDist().cdf(float(edge)) for edge in edges])
    y = axis("share of targets", [0, *found, *expected], zero=True, form=percent)
    frame = Frame(Axis("error in predicted standard deviations", -4, 4), y, 330)
    rows = tuple((number(edges[i]), tenths(found[i]), tenths(expected[i])) for i in range(len(found)))
    tips = [f"{number(edges[i])} to {number(edges[i + 1])}: {row[1]}, expected {row[2]}" for i, row in enumerate(rows)]
    middle, width = (edges[1:] + edges[:-1]) / 2, scores.width_of(z)
    return figure(
        "Standardised errors", frame,
        [frame.bars(edges, found, 0, tips), frame.line(middle, expected, 1, markers=False)],
        key=legend(["found", "standard normal"]),
        says=f"Right error bars give the dashed curve. Root mean square {number(width.value)} ± "
        f"{number(width.standard_error)}, where one is right; values beyond four are shown at the edge.",
        numbers=Numbers(("from", "found", "expected"), rows),
    )  # fmt: skip


def against(evaluation: Evaluation, what: str, unit: str) -> Html:
    """Targets against predictions with 90 % intervals."""
    shown = _Shown.of(evaluation)
    mean, std = shown.mean, shown.std
    frame = Frame(axis(f"predicted {what}{unit}", mean), axis(f"observed {what}{unit}", [*mean, *shown.targets]), 330)
    few = np.unique(np.linspace(0, len(mean) - 1, BARS).astype(int))
    marks = [
        frame.whiskers(mean[few], (mean - 1.645 * std)[few], (mean + 1.645 * std)[few], 3),
        frame.diagonal("prediction and observation agree"),
        frame.points(mean, shown.targets, 0, shown.tips),
    ]
    some = " for some of them" if len(few) < len(mean) else ""
    says = f"Each dot is a test point{shown.part}; bars show 90 % intervals around the diagonal{some}."
    return figure("Observed and predicted", frame, marks, says=says)


def residuals(evaluation: Evaluation, unit: str) -> Html:
    """Errors against the predicted standard deviation."""
    shown = _Shown.of(evaluation)
    error = shown.targets - shown.mean
    x = axis(f"predicted standard deviation{unit}", shown.std)
    frame = Frame(x, axis(f"error: observed − predicted{unit}", error), 330)
    grid = np.linspace(max(frame.x.low, 0.0), frame.x.high, 2)
    marks = [
        frame.band(grid, -1.96 * grid, 1.96 * grid, "-chance"),
        frame.rule(y=0.0),
        frame.points(shown.std, error, 0, shown.tips),
    ]
    says = (
        f"19 of 20 errors{shown.part} should lie inside the grey wedge of ± 1.96 standard deviations, at every width."
    )
    return figure("Errors where it is more or less sure", frame, marks, says=says)


def widths(evaluation: Evaluation, unit: str) -> Html:
    """Histogram of predicted standard deviations: sharpness."""
    found = {one.method: scores.spread(one)[1].mean(1) for one in scores.ordered(evaluation)}
    means = "; ".join(f"{name} {number(float(values.mean()))}" for name, values in found.items())
    says = f"Smaller error bars are better as far as they hold. Means: {means}{unit}."
    return histogram("Sharpness", f"predicted standard deviation{unit}", found, says=says)


def bands(evaluation: Evaluation, what: str, unit: str) -> Html:
    """The function over its one input, with a band for the function and a wider one for observations."""
    ours, x, targets = scores.main(evaluation), np.asarray(evaluation.inputs), np.asarray(evaluation.targets)
    mean, std = scores.spread(ours)
    order = np.argsort(x, kind="stable")[np.unique(np.linspace(0, len(x) - 1, 400).astype(int))]
    middle, wide, at = mean[order, 0], 1.96 * std[order, 0], x[order]
    rows = np.unique(np.linspace(0, len(x) - 1, SHOWN).astype(int))
    y = axis(f"{what}{unit}", [*(middle - wide), *(middle + wide), *targets[rows, 0]])
    frame = Frame(axis("input", x, margin=0.0), y, 330)
    marks = [frame.band(at, middle - wide, middle + wide, "-wide")]
    if ours.epistemic_std is not None:
        narrow = 1.96 * ours.epistemic_std[order, 0]
        marks.append(frame.band(at, middle - narrow, middle + narrow, "-narrow"))
    tips = [
        f"input {number(x[i])}: observed {number(targets[i, 0])}, predicted {number(mean[i, 0])} ± {number(std[i, 0])}"
        for i in rows
    ]
    marks += [frame.line(at, middle, 0, markers=False), frame.points(x[rows], targets[rows, 0], 1, tips)]
    says = "The dark band holds the function with a probability of 95 %, the light one a new observation."
    return figure("Bands", frame, marks, key=legend(["predicted", "observed"]), says=says, wide=True)


@final
@dataclass(frozen=True, eq=False)
class _Shown:
    """Test outputs evenly taken for a scatter."""

    mean: np.ndarray
    std: np.ndarray
    targets: np.ndarray
    rows: np.ndarray
    total: int

    @staticmethod
    def of(evaluation: Evaluation) -> _Shown:
        mean, std = scores.spread(scores.main(evaluation))
        places = np.unique(np.linspace(0, mean.size - 1, SHOWN).astype(int))
        parts = [part.reshape(-1)[places] for part in (mean, std, np.asarray(evaluation.targets))]
        return _Shown(parts[0], parts[1], parts[2], places // mean.shape[1], mean.size)

    @property
    def part(self) -> str:
        return "" if self.total <= SHOWN else f" ({SHOWN:,} of {self.total:,} are shown)"

    @property
    def tips(self) -> list[str]:
        zipped = zip(self.rows, self.targets, self.mean, self.std, strict=True)
        return [f"row {i}: observed {number(y)}, predicted {number(m)} ± {number(s)}" for i, y, m, s in zipped]


def _z(evaluation: Evaluation, one: Predictions) -> np.ndarray:
    mean, std = scores.spread(one)
    return (np.asarray(evaluation.targets) - mean) / std
