"""Several networks as one mixture: what each says by itself, and what they disagree about."""

from __future__ import annotations

import numpy as np

from lapwing.app.records import Evaluation, Predictions, Record
from lapwing.app.report import classification, scores, tables
from lapwing.app.report.cells import cell
from lapwing.app.report.markup import Child, Html, table
from lapwing.app.report.svg import card, number, tenths

BETWEEN = "between networks"  # the score of a record


def sections(record: Record) -> list[Html]:
    """Scores of every member beside the mixture, and the spread within and between them."""
    tested = tables.tested(record)
    if tested is None or not tested.members:
        return []
    return [members(tested), *spread(tested)]


def members(evaluation: Evaluation) -> Html:
    """What each network with its own posterior scores, beside all of them together."""
    ours = scores.main(evaluation)
    found = {f"all {len(evaluation.members)} networks": ours} | {one.method: one for one in evaluation.members}
    names = list(ours.metrics)
    top = {metric: scores.winner(found, metric, evaluation.targets) for metric in names}

    def row(name: str, one: Predictions) -> tuple[Child, ...]:
        cells = [cell(metric, one.metrics.get(metric), top[metric] == name) for metric in names]
        return (name, *cells, "–" if one is ours else tables.apart(one, ours, evaluation.targets))

    rows = [row(name, one) for name, one in found.items()]
    header = ("prediction by", *names, "NLL minus that of all")
    whole = table(header, rows, caption=f"Every network by itself on {evaluation.name}", sortable=True)
    worse = [
        one
        for one in evaluation.members
        if evaluation.targets is not None
        and (apart := scores.difference(one, ours, evaluation.targets)) is not None
        and apart.z >= 2
    ]
    says = (
        "Each network has a posterior of its own. Worse by itself than all together, by NLL and beyond chance: "
        f"{len(worse)} of {len(evaluation.members)}. Bold is ahead of all others beyond chance."
    )
    return card("Each network by itself", whole, says=says, wide=True)


def spread(evaluation: Evaluation) -> list[Html]:
    """How much of the epistemic uncertainty is within networks, and how much between them."""
    parts = _parts(scores.main(evaluation))
    if parts is None:
        return []
    squares, label, what = parts
    shares = {name: float(values.mean()) for name, values in squares.items()}
    total = sum(shares.values()) or 1.0
    shown = {name: values if what == "information" else np.sqrt(values) for name, values in squares.items()}
    means = "; ".join(f"{name} {number(float(values.mean()))}" for name, values in shown.items())
    says = (
        f"{tenths(shares[BETWEEN] / total)} of the epistemic {what} is disagreement between the networks, the rest is "
        f"what each of them does not know by itself. Means: {means}."
    )
    return [classification.histogram("Spread within and between networks", label, shown, says=says)]


def _parts(ours: Predictions) -> tuple[dict[str, np.ndarray], str, str] | None:
    """Variances, or information in nats, by where they are; the label of their axis, and what they are."""
    between = ours.scores.get(BETWEEN)
    if between is None:
        return None
    if ours.probs is not None:
        total, label, what = ours.scores["mutual information"], "information (nats)", "information"
    else:
        assert ours.epistemic_std is not None
        total, label, what = (ours.epistemic_std**2).mean(1), "standard deviation", "variance"
        between = between**2
    return {"within networks": np.maximum(total - between, 0.0), BETWEEN: between}, label, what
