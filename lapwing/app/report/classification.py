"""Charts of a classifier's predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import lapwing.metrics as metrics
from lapwing.app.records import Evaluation, Measured, Predictions, Record
from lapwing.app.report import scores
from lapwing.app.report.cells import cell
from lapwing.app.report.markup import Child, Html, h, picture, table
from lapwing.app.report.svg import Axis, Frame, Numbers, axis, card, figure, legend, number, percent, tenths

SHARE = tuple(np.linspace(0, 1, 6))
CURVE = 60  # points of a risk–coverage curve
THRESHOLDS = 0.5, 0.8, 0.9, 0.95, 0.99
RISKS = 0.01, 0.02, 0.05, 0.1
MISTAKES = 8  # shown
CLASSES = 30  # shown

Runs = Sequence[tuple[str, Evaluation, Predictions]]  # a name, a set and what one method said about it


def charts(record: Record) -> list[tuple[str, list[Html]]]:
    """Sections of charts: how calibrated, how useful, examples."""
    first = next((one for one in record.evaluations if one.targets is not None), None)
    if first is None:
        return []
    methods = [(one.method, first, one) for one in scores.ordered(first)]
    return [
        ("Can its confidence be trusted?", [reliability(methods), confidences(first)]),
        ("Scores by class", by_class(record, first)),
        (
            "What to answer, and what to leave to a person",
            [abstention(first), *guarantee(first), risk(first), sharpness(first)],
        ),
        ("Examples", [*mistakes(record, first), *examples(record, first)]),
    ]


def reliability(runs: Runs, bins: int = 10) -> Html:
    """Accuracy against confidence, with Wilson intervals for the first; the diagonal is perfect."""
    x = Axis("confidence: probability given to the answer", 0, 1, ticks=SHARE, form=percent)
    frame = Frame(x, Axis("accuracy: share that was right", 0, 1, ticks=SHARE, form=percent), 330)
    marks: list[Child] = [frame.diagonal("perfectly calibrated")]
    rows: list[tuple[str, ...]] = []
    for series, (name, evaluation, one) in reversed(list(enumerate(runs))):
        found = metrics.reliability(_probs(one), np.asarray(evaluation.targets), bins=bins)
        full = found.counts.numpy() > 0
        parts = (found.counts, found.confidences, found.accuracies, found.lower, found.upper)
        counts, said, right, low, high = (np.asarray(part)[full] for part in parts)
        words = [
            (f"{counts[i]:,}", tenths(said[i]), tenths(right[i]), f"{tenths(low[i])} to {tenths(high[i])}")
            for i in range(len(said))
        ]
        tips = [f"{name}: says {b}, right {c} ({d}) of {a}" for a, b, c, d in words]
        marks += [frame.whiskers(said, low, high, series) if series == 0 else None]
        marks += [frame.line(said, right, series, tips)]
        rows[:0] = [(name, *word) for word in words]
    return figure(
        "Reliability", frame, marks, key=legend([name for name, _, _ in runs]),
        says=f"Each mark is a group of test points of similar confidence; bars of {runs[0][0]} are 95 % intervals. On "
        "the diagonal, confidence and accuracy agree; below it, the method is overconfident.",
        numbers=Numbers(("method", "points", "says", "right", "95 % interval"), tuple(rows)),
    )  # fmt: skip


def confidences(evaluation: Evaluation) -> Html:
    """How often each confidence is given, split by right and wrong."""
    ours = scores.main(evaluation)
    probs = _probs(ours)
    right, confidence = probs.argmax(1) == evaluation.targets, probs.max(1)
    edges = np.linspace(0, 1, 21)
    wrong, good = (np.histogram(confidence[part], edges)[0] for part in (~right, right))
    x = Axis("confidence", 0, 1, ticks=SHARE, form=percent)
    frame = Frame(x, axis("test points", [0, *(wrong + good)], zero=True), 330)

    def tips(counts: np.ndarray, what: str) -> list[str]:
        return [f"{tenths(edges[i])} to {tenths(edges[i + 1])}: {counts[i]:,} {what}" for i in range(len(counts))]

    marks = [
        frame.bars(edges, wrong + good, 0, tips(good, "right"), base=wrong),
        frame.bars(edges, wrong, 1, tips(wrong, "wrong")),
    ]
    rows = tuple((tenths(edges[i]), f"{good[i]:,}", f"{wrong[i]:,}") for i in range(len(good)) if good[i] + wrong[i])
    return figure(
        f"Confidence of {ours.method}", frame, marks, key=legend(["right", "wrong"]),
        says=f"How often {ours.method} gives each confidence, and how often it is right: "
        f"{int(wrong.sum()):,} of {len(probs):,} answers are wrong.",
        numbers=Numbers(("confidence from", "right", "wrong"), rows),
    )  # fmt: skip


def by_class(record: Record, evaluation: Evaluation) -> list[Html]:
    """How well each class is recognised, and what it is mistaken for."""
    probs, targets = _probs(scores.main(evaluation)), np.asarray(evaluation.targets)
    said, losses = probs.argmax(1), scores.losses(scores.main(evaluation), targets)
    counts = np.zeros((probs.shape[1],) * 2, int)  # by class and answer
    np.add.at(counts, (targets, said), 1)
    present = np.flatnonzero(counts.sum(1))
    order = present[np.argsort([-losses[targets == label].mean() for label in present], kind="stable")][:CLASSES]

    def row(label: int) -> tuple[Child, ...]:
        own, right = counts[label], int(counts[label, label])
        wrong = np.delete(np.arange(len(own)), label)
        most = int(wrong[np.argmax(own[wrong])])
        mistaken = f"{class_name(record, most)} ({own[most]:,})" if own[most] else "–"
        given, nll = (scores.mean_of(part[targets == label]) for part in (probs[:, label], losses))
        return (
            class_name(record, label), f"{own.sum():,}", _share("recall", right, own),
            _share("precision", right, counts[:, label]), cell("mean probability", given), cell("NLL", nll), mistaken,
        )  # fmt: skip

    header = ("class", "inputs", "recall", "precision", "mean probability", "NLL", "most often taken for")
    some = f" The {CLASSES} of {len(present)} with the highest NLL are shown." if len(present) > CLASSES else ""
    says = (
        "Recall: share of a class's inputs that is recognised. Precision: share of right answers among those that name "
        f"the class. Mean probability: what the class is given on its own inputs. ± is one standard error.{some}"
    )
    whole = table(header, [row(int(label)) for label in order], caption="Scores by class", sortable=True)
    return [card(f"Every class on {evaluation.name}", whole, says=says, wide=True)]


def _share(metric: str, right: int, counts: np.ndarray) -> Child:
    total = int(counts.sum())
    if not total:
        return "–"
    share = right / total
    return cell(metric, Measured(share, float(np.sqrt(share * (1 - share) / total))))


def abstention(evaluation: Evaluation) -> Html:
    """How many inputs are answered above a confidence, and how many of those answers are wrong."""
    methods = scores.ordered(evaluation)
    targets = np.asarray(evaluation.targets)

    def counts(threshold: float) -> list[str]:
        found = (metrics.answered(_probs(one), targets, threshold) for one in methods)
        return [f"{answered:,} answered, {wrong:,} wrong" for answered, wrong in found]

    rows = [(percent(threshold), *counts(threshold)) for threshold in THRESHOLDS]
    header = ("confidence at least", *(one.method for one in methods))
    return card(
        "When to abstain", table(header, rows, caption=f"Answers by confidence on {evaluation.name}"),
        says=f"Of {len(targets):,} inputs: those below the threshold are left to a person.", wide=True,
    )  # fmt: skip


def guarantee(evaluation: Evaluation) -> list[Html]:
    """The confidence above which wrong answers stay rare, and how many inputs are answered there."""
    methods, targets = scores.ordered(evaluation), np.asarray(evaluation.targets)
    if scores.kind(evaluation) != "test" or len(targets) < round(1 / max(RISKS)) - 1:
        return []
    rows = [(percent(risk), *(_answered_at(risk, _probs(one), targets) for one in methods)) for risk in RISKS]
    header = ("wrong answers at most", *(one.method for one in methods))
    says = (
        "A new input like these is answered, wrongly, with probability at most the first column, whatever the method: "
        "a share of all inputs, answered or not. It holds if these data neither trained nor tuned the network or the "
        "posterior (conformal risk control). From Python: posterior.answer_when(risk=…, validation=…)."
    )
    whole = table(header, rows, caption=f"Thresholds by {evaluation.name}")
    return [card("Thresholds with a guarantee", whole, says=says, wide=True)]


def _answered_at(risk: float, probs: np.ndarray, targets: np.ndarray) -> str:
    confidence, wrong = probs.max(1).astype(float), probs.argmax(1) != targets
    try:
        threshold = metrics.risk_threshold(confidence, wrong, risk)
    except ValueError:  # too few of them
        return f"needs {round(1 / risk) - 1:,} inputs"
    if threshold < 0:
        return "all answered"
    return f"{tenths(float((confidence > threshold).mean()))} answered, above {tenths(threshold)}"


def mistakes(record: Record, evaluation: Evaluation) -> list[Html]:
    """The wrong answers that are given with the highest confidence."""
    probs, targets = _probs(scores.main(evaluation)), np.asarray(evaluation.targets)
    wrong = np.flatnonzero(probs.argmax(1) != targets)
    worst = wrong[np.argsort(-probs[wrong].max(1), kind="stable")][:MISTAKES]
    if not len(worst):
        return []

    places = np.arange(len(targets)) if evaluation.places is None else evaluation.places

    def shown(row: int) -> tuple[str, ...]:
        said, truth = int(probs[row].argmax()), int(targets[row])
        likely = (tenths(float(probs[row, label])) for label in (said, truth))
        return f"{places[row]:,}", class_name(record, said), next(likely), class_name(record, truth), next(likely)

    rows = [shown(int(row)) for row in worst]
    header = ("row", "predicted", "confidence", "is", "its probability")
    whole = table(header, rows, caption="The most confident mistakes", sortable=True)
    says = f"{len(wrong):,} of {len(targets):,} answers are wrong. Rows are counted from 0, as in the predictions."
    return [card("Most confident mistakes", whole, says=says, wide=True)]


def risk(evaluation: Evaluation) -> Html:
    """Error rate of the answers kept, when the least certain are left to a person."""
    methods = scores.ordered(evaluation)
    curves = {
        one.method: metrics.risk_coverage(-_probs(one).max(1), _probs(one).argmax(1) != evaluation.targets)
        for one in methods
    }
    n = len(methods[0].probs if methods[0].probs is not None else ())
    places = np.unique(np.linspace(max(n // 20, 1) - 1, n - 1, CURVE).astype(int))
    kept, risks = (places + 1) / n, {name: np.asarray(curve.risk)[places] for name, curve in curves.items()}
    frame = Frame(
        Axis("share of inputs answered", 0, 1, ticks=SHARE, form=percent),
        axis("error rate of those", [0, 0.01, *np.concatenate(list(risks.values()))], zero=True, form=percent),
    )
    marks = []
    for series, (name, values) in reversed(list(enumerate(risks.items()))):
        tips = [f"{name}: answering {tenths(a)}, {tenths(b)} wrong" for a, b in zip(kept, values, strict=True)]
        marks.append(frame.line(kept, values, series, tips, markers=False))
    areas = "; ".join(f"{name} {number(curve.area)}" for name, curve in curves.items())
    rows = tuple((tenths(a), *(tenths(values[i]) for values in risks.values())) for i, a in enumerate(kept))
    return figure(
        "Risk and coverage", frame, marks, key=legend(list(risks)),
        says="If the least certain inputs are left to a person, how many of the answered ones are wrong? Lower is "
        f"better. Areas under the curves: {areas}.",
        numbers=Numbers(("answered", *risks), rows),
    )  # fmt: skip


def sharpness(evaluation: Evaluation) -> Html:
    """Entropy of the predictions of every method."""
    found = {one.method: scores.uncertainties(one)["entropy"] for one in scores.ordered(evaluation)}
    means = "; ".join(f"{name} {number(float(values.mean()))}" for name, values in found.items())
    says = "How decided the predictions are: zero is certain. Sharper is better while it stays calibrated. "
    says += f"Means: {means} nats."
    most = float(np.log(_probs(scores.main(evaluation)).shape[1]))
    return histogram("Sharpness", "entropy of the prediction (nats)", found, says=says, top=most)


def histogram(title: str, label: str, groups: dict[str, np.ndarray], *, says: str, top: float | None = None) -> Html:
    """Outlined histograms of several groups, as shares."""
    every = np.concatenate(list(groups.values()))
    low, high = float(every.min()), float(np.quantile(every, 0.999)) if top is None else top
    low = low if low < 0 or low > high / 2 else 0.0
    edges = np.linspace(low, high if high > low else low + 1, 25)
    shares = {
        name: np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
        for name, values in groups.items()
    }
    tallest = np.concatenate([[0], *shares.values()])
    frame = Frame(Axis(label, edges[0], edges[-1]), axis("share of inputs", tallest, zero=True, form=percent))
    marks = []
    for series, (name, share) in reversed(list(enumerate(shares.items()))):
        ranges = [f"{number(edges[i])} to {number(edges[i + 1])}" for i in range(len(share))]
        tips = [f"{name}: {between}, {tenths(part)}" for between, part in zip(ranges, share, strict=True)]
        marks.append(frame.steps(edges, share, series, tips))
    rows = tuple((number(edges[i]), *(tenths(share[i]) for share in shares.values())) for i in range(len(edges) - 1))
    return figure(title, frame, marks, key=legend(list(groups)), says=says, numbers=Numbers(("from", *groups), rows))


def examples(record: Record, evaluation: Evaluation) -> list[Html]:
    """Pictures of the least and of the most certain inputs."""
    images, rows, targets = evaluation.images, evaluation.image_rows, evaluation.targets
    if images is None or rows is None or targets is None:
        return []
    probs = _probs(scores.main(evaluation))[rows]
    order = np.argsort(probs.max(1), kind="stable")
    half = max(1, len(order) // 2)
    titles = (("Least certain inputs", order[:half]), ("Most certain inputs", order[half:][::-1]))
    says = "What it says, how sure it is, and the true class where it is wrong."

    def shown(place: int) -> Html:
        return _example(record, images[place], probs[place], int(targets[rows[place]]), int(rows[place]))

    return [
        card(title, h("ul", [shown(place) for place in places], class_="pictures"), says=says)
        for title, places in titles
        if len(places)
    ]


def _example(record: Record, pixels: np.ndarray, probs: np.ndarray, truth: int, row: int) -> Html:
    said, sure = int(probs.argmax()), f"{100 * float(probs.max()):.0f} %"
    name, true_name = (class_name(record, label) for label in (said, truth))
    words = f"input {row}: says {name} ({sure})" + ("" if said == truth else f", is {true_name}")
    wrong = None if said == truth else h("span", f"is {true_name}", class_="wrong")
    return h("li", picture(pixels, words), h("span", h("b", name), f" {sure}"), wrong, data_tip=words)


def class_name(record: Record, label: int) -> str:
    """What a class number stands for."""
    classes = record.data.classes
    return classes[label] if label < len(classes) else str(label)


def _probs(one: Predictions) -> np.ndarray:
    if one.probs is None:
        raise ValueError(f"{one.method}: no class probabilities")
    return one.probs
