"""Charts of a regression's predictions."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import final

import numpy as np

from lapwing.app.records import Evaluation, Record
from lapwing.app.report import inputs, scores
from lapwing.app.report.classification import Runs, histogram
from lapwing.app.report.markup import Child, Html
from lapwing.app.report.svg import NAME, Axis, Frame, Numbers, axis, cut, figure, legend, number, percent, tenths

SHOWN = 1200  # points of a scatter
BARS = 150  # of them with error bars
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
TICKS = tuple(np.linspace(0, 1, 6))


def charts(record: Record) -> list[tuple[str, list[Html]]]:
    """Sections of charts: are the intervals right, where are the errors, the function itself."""
    first = next((one for one in record.evaluations if one.targets is not None), None)
    if first is None:
        return []
    unit, what = f" ({cut(record.data.unit, 10)})" if record.data.unit else "", cut(record.data.target or "target", 16)
    methods = [(one.method, first, one) for one in scores.ordered(first)]
    return [
        ("Are the intervals right?", [coverage(methods), errors(first)]),
        ("The function and its intervals", [] if _has_others(record, first) else [bands(first, what, unit)]),
        (f"Over the most relevant input: {first.input_name}", inputs.most_relevant(record, first, what, unit)),
        ("Where are the errors?", [against(first, what, unit), residuals(first, unit), widths(first, unit)]),
    ]


def _has_others(record: Record, evaluation: Evaluation) -> bool:
    """Whether what is known of the inputs is not all of them."""
    return evaluation.inputs is None or len(record.relevance) > 1


def coverage(runs: Runs) -> Html:
    """Share of targets inside central intervals, against the level promised."""
    y = Axis("targets found inside", 0, 1, ticks=TICKS, form=percent)
    frame = Frame(Axis("level promised", 0, 1, ticks=TICKS, form=percent), y, 330)
    count, grid = min(scores.spread(one)[0].size for _, _, one in runs), np.linspace(0, 1, 41)
    room = 1.96 * np.sqrt(grid * (1 - grid) / count)
    marks: list[Child] = [
        frame.band(grid, np.clip(grid - room, 0, 1), np.clip(grid + room, 0, 1), "-chance"),
        frame.diagonal("as promised"),
    ]
    rows: list[tuple[str, ...]] = []
    for series, (name, evaluation, one) in reversed(list(enumerate(runs))):
        inside = [float(scores.inside(one, np.asarray(evaluation.targets), level).mean()) for level in LEVELS]
        words = [(percent(level), tenths(found)) for level, found in zip(LEVELS, inside, strict=True)]
        marks.append(frame.line(LEVELS, inside, series, [f"{name}: {a} intervals hold {b}" for a, b in words]))
        rows[:0] = [(name, *word) for word in words]
    return figure(
        "Coverage of intervals", frame, marks, key=legend([name for name, _, _ in runs]),
        says="How many targets fall inside central intervals. Above the diagonal the intervals are too wide, below it "
        "too narrow; the grey band is what chance allows.",
        numbers=Numbers(("method", "promised", "inside"), tuple(rows)),
    )  # fmt: skip


def errors(evaluation: Evaluation) -> Html:
    """Standardised errors beside the standard normal density."""
    ours, targets = scores.main(evaluation), np.asarray(evaluation.targets)
    z = scores.normal_scores(ours, targets)
    edges = np.linspace(-4, 4, 33)
    found = np.histogram(np.clip(z, -4, 4), edges)[0] / z.size
    expected = np.diff([NormalDist().cdf(float(edge)) for edge in edges])
    y = axis("share of targets", [0, *found, *expected], zero=True, form=percent)
    frame = Frame(Axis("standardised error", -4, 4), y, 330)
    rows = tuple((number(edges[i]), tenths(found[i]), tenths(expected[i])) for i in range(len(found)))
    tips = [f"{number(edges[i])} to {number(edges[i + 1])}: {row[1]}, expected {row[2]}" for i, row in enumerate(rows)]
    middle, width = (edges[1:] + edges[:-1]) / 2, scores.width_of(z)
    return figure(
        "Standardised errors", frame,
        [frame.bars(edges, found, 0, tips), frame.line(middle, expected, 1, markers=False)],
        key=legend(["found", "standard normal"]),
        says="Where each target lies in its predicted distribution, as a standard normal number: right distributions "
        f"give the dashed curve. Values beyond four are shown at the edge. Errors are {width.value:,.2f} ± "
        f"{width.standard_error:,.2f} predicted standard deviations (root mean square), where 1 is right.",
        numbers=Numbers(("from", "found", "expected"), rows),
    )  # fmt: skip


def against(evaluation: Evaluation, what: str, unit: str) -> Html:
    """Targets against predictions with 90 % intervals."""
    shown = _Shown.of(evaluation)
    mean, (low, high, words) = shown.mean, scores.interval(scores.main(evaluation))
    low, high = (end.reshape(-1)[shown.places] for end in (low, high))
    frame = Frame(axis(f"predicted {what}{unit}", mean), axis(f"observed {what}{unit}", [*mean, *shown.targets]), 330)
    few = np.unique(np.linspace(0, len(mean) - 1, BARS).astype(int))
    marks = [
        frame.whiskers(mean[few], low[few], high[few], 3),
        frame.diagonal("prediction and observation agree"),
        frame.points(mean, shown.targets, 0, shown.tips),
    ]
    some = " for some of them" if len(few) < len(mean) else ""
    says = f"Each dot is a test point{shown.part}; bars around the diagonal are {words}{some}."
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
    says = f"Narrower is better while the intervals hold. Means: {means}{unit}."
    return histogram("Sharpness", f"predicted standard deviation{unit}", found, says=says)


def bands(evaluation: Evaluation, what: str, unit: str) -> Html:
    """The function over its one input, with a band for the function and a wider one for observations."""
    ours, x, targets = scores.main(evaluation), np.asarray(evaluation.inputs), np.asarray(evaluation.targets)
    (mean, std), (low, high, words) = scores.spread(ours), scores.interval(ours)
    order = np.argsort(x, kind="stable")[: np.isfinite(x).sum()]
    order = order[np.unique(np.linspace(0, len(order) - 1, 400).astype(int))]
    middle, at = mean[order, 0], x[order]
    rows = np.unique(np.linspace(0, len(x) - 1, SHOWN).astype(int))
    y = axis(f"{what}{unit}", [*low[order, 0], *high[order, 0], *targets[rows, 0]])
    frame = Frame(axis(cut(evaluation.input_name or "input", NAME), x, margin=0.0), y, 330)
    marks = [frame.band(at, low[order, 0], high[order, 0], "-wide")]
    if ours.epistemic_std is not None:
        narrow = 1.6448536 * ours.epistemic_std[order, 0]
        marks.append(frame.band(at, middle - narrow, middle + narrow, "-narrow"))
    tips = [
        f"input {number(x[i])}: observed {number(targets[i, 0])}, predicted {number(mean[i, 0])} ± {number(std[i, 0])}"
        for i in rows
    ]
    marks += [frame.line(at, middle, 0, markers=False), frame.points(x[rows], targets[rows, 0], 1, tips)]
    says = f"The dark band holds the function with a probability of 90 %; the light one shows {words} of observations."
    return figure("Bands", frame, marks, key=legend(["predicted", "observed"]), says=says, wide=True)


@final
@dataclass(frozen=True, eq=False)
class _Shown:
    """Test outputs evenly taken for a scatter."""

    mean: np.ndarray
    std: np.ndarray
    targets: np.ndarray
    places: np.ndarray
    rows: np.ndarray
    total: int

    @staticmethod
    def of(evaluation: Evaluation) -> _Shown:
        mean, std = scores.spread(scores.main(evaluation))
        places = np.unique(np.linspace(0, mean.size - 1, SHOWN).astype(int))
        parts = [part.reshape(-1)[places] for part in (mean, std, np.asarray(evaluation.targets))]
        return _Shown(parts[0], parts[1], parts[2], places, places // mean.shape[1], mean.size)

    @property
    def part(self) -> str:
        return "" if self.total <= SHOWN else f" ({SHOWN:,} of {self.total:,} are shown)"

    @property
    def tips(self) -> list[str]:
        zipped = zip(self.rows, self.targets, self.mean, self.std, strict=True)
        return [f"row {i}: observed {number(y)}, predicted {number(m)} ± {number(s)}" for i, y, m, s in zipped]
