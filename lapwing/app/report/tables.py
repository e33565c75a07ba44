"""Methods, sets and runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

import lapwing.metrics as metrics
from lapwing.app.records import Evaluation, Measured, Predictions, Record
from lapwing.app.report import classification, regression, scores
from lapwing.app.report.cells import cell, written
from lapwing.app.report.markup import Child, Html, h, table
from lapwing.app.report.svg import Axis, Frame, axis, card, cut, figure, legend, number, tenths
from lapwing.app.report.verdict import verdict

SIGNS = {"good": "✓", "fair": "!", "poor": "✕", "none": "?"}
SCORES = {"between networks": "disagreement between networks"}
METHODS = {
    "lapwing": "the network with a posterior over its weights",
    "networks averaged": "the mean of the networks' own predictions, their weights taken for certain",
    "raw network": "the network as it was trained, its weights taken for certain",
    "temperature scaling": "the raw network, its logits divided by one number that validation data chose",
}
ABOUT = {
    "accuracy": "share of right answers",
    "NLL": "negative log-likelihood per test point, in nats: lower is better",
    "Brier": "squared error of the probabilities, 0 to 2: lower is better",
    "ECE": f"expected calibration error over {scores.BINS} bins of equal width: lower is better, never quite zero",
    "confidence": "mean probability given to the answer",
    "CRPS": "continuous ranked probability score, in units of the target: lower is better",
    "RMSE": "root mean squared error, in units of the target",
    "coverage of 90 %": "share of targets inside their 90 % interval",
    "mean std": "mean predicted standard deviation",
    "rms z": "root mean square of standardised errors: one is right",
}


def tested(record: Record) -> Evaluation | None:
    """The first set with targets."""
    return next((one for one in record.evaluations if one.targets is not None), None)


def methods(record: Record) -> list[Html]:
    """All methods on the main test set, with the paired difference of NLL."""
    first = tested(record)
    if first is None or len(first.predictions) < 2:
        return []
    ours, found = scores.main(first), scores.ordered(first)
    names = list(ours.metrics)
    top = {name: scores.winner({one.method: one for one in found}, name, first.targets) for name in names}

    def row(one: Predictions) -> tuple[Child, ...]:
        cells = [cell(name, one.metrics.get(name), top[name] == one.method) for name in names]
        return (one.method, *cells, "–" if one is ours else apart(one, ours, first.targets))

    header = ("method", *names, f"NLL minus {ours.method}'s")
    words = {**METHODS, **ABOUT}
    meanings = [
        [h("dt", name), h("dd", words[name])] for name in (*(one.method for one in found), *names) if name in words
    ]
    shown = card(
        f"Every method on {first.name}",
        [
            table(header, map(row, found), caption=f"Scores on {first.name}", sortable=True),
            h("details", h("summary", "What do these mean?"), h("dl", meanings)),
        ],
        says="± is one standard error over test points; the best of a column is bold where it is "
        "ahead beyond chance. The last column compares NLL "
        "point by point: beyond twice its error, a difference is hardly chance.",
        wide=True,
    )
    return [shown]


def apart(one: Predictions, ours: Predictions, targets: np.ndarray | None) -> str:
    """The paired difference of NLL, where it can be said."""
    found = None if targets is None else scores.difference(one, ours, targets)
    return "–" if found is None else f"{found.mean:+.4f} ± {found.standard_error:.4f}".replace("-", "−")


def shifted(record: Record) -> list[Html]:
    """Scores on further sets with targets: the same task under other conditions."""
    sets = [one for one in record.evaluations if one.targets is not None]
    if len(sets) < 2:
        return []
    names = list(scores.main(sets[0]).metrics)
    rows = [
        (one.name, method.method, *(cell(name, method.metrics.get(name)) for name in names))
        for one in sets
        for method in scores.ordered(one)
    ]
    whole = table(("set", "method", *names), rows, caption="Scores on every set", sortable=True)
    charts = [_over_sets(name, sets) for name in names if name in {"NLL", "ECE", "rms z"}]
    return [*charts, card("All sets", whole, says="± is one standard error over the points of a set.", wide=True)]


def _over_sets(metric: str, sets: Sequence[Evaluation]) -> Html:
    names, places = [one.method for one in scores.ordered(sets[0])], np.arange(len(sets), dtype=float)
    found = [{one.method: one.metrics.get(metric) for one in evaluation.predictions} for evaluation in sets]
    values = [[found[i].get(name) or Measured(np.nan) for i in range(len(sets))] for name in names]
    value, error = (
        np.array([[getattr(one, part) for one in row] for row in values]) for part in ("value", "standard_error")
    )
    room = max(14, 42 // len(sets))  # letters beside each other
    x = Axis(
        "evaluation set", -0.3, len(sets) - 0.7, ticks=tuple(places),
        form=lambda place: cut(sets[round(place)].name, room),
    )  # fmt: skip
    frame, marks = Frame(x, axis(metric, [0, *(value + 2 * error).flat], zero=True)), []
    for series in reversed(range(len(names))):
        inside = np.isfinite(value[series])
        low, high = (value[series] + sign * error[series] for sign in (-2, 2))
        tips = [
            f"{names[series]} on {one.name}: {metric} {written(metric, value[series, i])}" for i, one in enumerate(sets)
        ]
        marks += [
            frame.whiskers(places[inside], low[inside], high[inside], series),
            frame.line(places, value[series], series, tips),
        ]
    says = f"{metric}: {ABOUT[metric]}. Bars are two standard errors."
    return figure(f"{metric} under shift", frame, marks, key=legend(names), says=says)


@final
@dataclass(frozen=True, eq=False)
class _Detection:
    """One score of one method on test inputs and on out-of-distribution ones."""

    other: Evaluation
    method: str
    score: str
    inside: np.ndarray
    outside: np.ndarray

    @property
    def means(self) -> tuple[str, str]:
        return number(float(self.inside.mean())), number(float(self.outside.mean()))

    @property
    def auroc(self) -> Measured:
        error = metrics.auroc_error(self.inside, self.outside) if min(len(self.inside), len(self.outside)) > 1 else 0.0
        return Measured(metrics.auroc(self.inside, self.outside), error)


def out_of_distribution(record: Record) -> list[Html]:
    """Uncertainty about the inputs of every other set, beside that about test inputs."""
    first = tested(record) or next(iter(record.evaluations), None)
    others = [one for one in record.evaluations if one is not first]
    if first is None or not others:
        return []
    known = {one.method: scores.uncertainties(one) for one in scores.ordered(first)}
    found = [
        _Detection(other, method.method, name, known[method.method][name], outside)
        for other in others
        for method in scores.ordered(other)
        for name, outside in scores.uncertainties(method).items()
        if name in known.get(method.method, {})
    ]
    if not found:
        return []
    ours = scores.main(first).method
    alarms = [tenths(metrics.fpr95(one.inside, one.outside)) for one in found]
    rows = [
        (one.other.name, one.method, SCORES.get(one.score, one.score), *one.means, cell("AUROC", one.auroc), alarm)
        for one, alarm in zip(found, alarms, strict=True)
    ]
    header = ("set", "method", "score", f"mean on {first.name}", "mean on this set", "AUROC", "false alarms at 95 %")
    whole = table(header, rows, caption=f"How well each score tells other sets from {first.name}", sortable=True)
    says = (
        f"Each score is larger where a method is less certain. AUROC: how well it tells a set from {first.name}; 1 is "
        f"perfect, 0.5 is guessing. False alarms: share of {first.name} flagged where 95 % of the other set is."
    )
    charts = [_apart(first.name, one) for one in found if one.method == ours and one.other.targets is None]
    return [*charts, card("Uncertainty on every set", whole, says=says, wide=True)]


def _apart(familiar: str, one: _Detection) -> Html:
    name, score = one.other.name, SCORES.get(one.score, one.score)
    says = f"{one.method}'s {score} on {familiar} and on {name}. It tells them apart with AUROC "
    says += f"{one.auroc.value:.3f}: 1 is perfect, 0.5 is guessing."
    title = f"{score[:1].upper()}{score[1:]}: {familiar} and {name}"
    return classification.histogram(title, score, {familiar: one.inside, name: one.outside}, says=says)


def comparison(runs: Sequence[Record], names: Sequence[str]) -> Html:
    """Several runs side by side: verdicts, scores, calibration."""
    found = [
        h("li", headline(one.level, name), h("p", one.headline), class_=f"verdict {one.level}")
        for name, one in zip(names, map(verdict, runs), strict=True)
    ]
    known = [
        (name, run, first)
        for name, run in zip(names, runs, strict=True)
        if (first := tested(run)) is not None and run.status == "finished"
    ]
    kinds = {kind: [(name, first, scores.main(first)) for name, run, first in known if run.task == kind]
             for kind in ("classification", "regression")}  # fmt: skip
    charts = [_scores(known)] if known else []
    charts += [classification.reliability(kinds["classification"])] if kinds["classification"] else []
    charts += [regression.coverage(kinds["regression"])] if kinds["regression"] else []
    return h(
        "article", h("h2", "Verdicts"), h("ul", found, class_="verdicts"), h("h2", "Scores"),
        h("div", charts, class_="cards"), class_="run", id="compare",
    )  # fmt: skip


def headline(level: str, words: str) -> Html:
    """A verdict's first line, with its sign."""
    sign = h("span", SIGNS[level], class_="sign", aria_hidden="true")
    return h("p", sign, h("strong", words), class_="headline")


def _scores(known: Sequence[tuple[str, Record, Evaluation]]) -> Html:
    main = {name: scores.main(first) for name, _, first in known}
    names = list(dict.fromkeys(metric for one in main.values() for metric in one.metrics))
    targets = np.asarray(known[0][2].targets)
    alike = all(
        run.task == known[0][1].task and np.array_equal(np.asarray(first.targets), targets) for _, run, first in known
    )
    top = {metric: scores.winner(main, metric, targets) if alike else None for metric in names}

    def row(name: str, run: Record, first: Evaluation) -> tuple[Child, ...]:
        cells = [cell(metric, main[name].metrics.get(metric), top[metric] == name) for metric in names]
        return (name, first.name, *cells, f"{sum(run.seconds.values()):.1f} s" if run.seconds else "–")

    rows = [row(*one) for one in known]
    whole = table(("run", "test set", *names, "time"), rows, caption="Scores of all runs", sortable=True)
    says = "Each run's main method on its own test set. "
    says += (
        "Bold is ahead of all others beyond chance." if alike
        else "The runs were tested on different data, so these numbers do not rank them."
    )  # fmt: skip
    return card("All runs", whole, says=says, wide=True)
