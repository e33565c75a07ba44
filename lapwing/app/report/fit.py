"""How the posterior was found: precision, convergence, layers, training points, cost, where all this comes from."""

from __future__ import annotations

import numpy as np

from lapwing.app.records import Curve, Influence, Measured, Record
from lapwing.app.report.markup import Html, table
from lapwing.app.report.svg import Frame, Numbers, axis, card, figure, log_axis, number, share_bar, tenths

TOP = 12  # training points shown
PARTS = {  # of the log evidence
    "fit": "fit of the data",
    "penalty": "size of the weights",
    "occam": "Occam factor: weights that data determine",
    "normaliser": "constants",
    "hyperprior": "hyperprior, beside it",
}


def curves(curve: Curve) -> list[Html]:
    """Validation log density and log evidence over the prior precision, with the chosen one."""
    parts = (
        ("Validation data", "mean log density", curve.held_out),
        ("Marginal likelihood", "log evidence", curve.log_evidence),
    )
    return [
        _curve(title, label, curve, values)
        for title, label, values in parts
        if values is not None and np.isfinite(values).any()
    ]


def _curve(title: str, label: str, curve: Curve, values: np.ndarray) -> Html:
    known = values[np.isfinite(values)]
    worst = known.max() - max(4 * (known.max() - np.median(known)), 1e-12)  # a cliff must not hide the top
    inside = np.isfinite(values) & (values >= worst)
    precision, values = curve.precision[inside], values[inside]
    frame = Frame(log_axis("prior precision", [*precision, curve.chosen]), axis(label, values))
    rows = tuple((number(a), number(b)) for a, b in zip(precision, values, strict=True))
    marks = [
        frame.rule(x=curve.chosen, label=f"chosen: {number(curve.chosen)}"),
        frame.line(precision, values, 0, [f"precision {a}: {b}" for a, b in rows], markers=False),
    ]
    says = f"Higher is better; of those tried, {number(float(precision[int(np.argmax(values))]))} is best. A small "
    says += "precision lets the weights vary widely, which makes predictions less certain."
    return figure(title, frame, marks, says=says, numbers=Numbers(("precision", label), rows))


def layers(record: Record) -> list[Html]:
    """Bars of every layer's share of the variance of the outputs."""
    if not record.layers:
        return []
    largest = max(layer.share for layer in record.layers)
    rows = [(layer.name, f"{layer.weights:,}", share_bar(layer.share, largest)) for layer in record.layers]
    drawn = table(("layer", "weights", "share"), rows, caption="Share of the variance of the outputs, by layer")
    says = "How much variance of the outputs each layer's weights bring in by themselves, averaged over some inputs."
    return [card("Where the uncertainty comes from", drawn, says=says)]


def influence(record: Record) -> list[Html]:
    """The training points that matter most, and those that the others find hardest to believe."""
    found = record.influence
    if found is None:
        return []
    says = (
        "Leverage is how much of a point's own prediction comes from itself: near one, nothing else supports it."
        if record.task == "regression"
        else "Leverage is how much of a point's own logits comes from itself, summed over the classes."
    )
    cards = [_points("Training points that matter most", np.argsort(-found.leverage, kind="stable"), record, says)]
    if found.log_density is not None and record.suspects is None:
        says = "What the posterior without a point says about it: the lower the log density, the more surprising it is."
        title = "Training points to look at: likely wrong labels or outliers"
        cards.append(_points(title, np.argsort(found.log_density, kind="stable"), record, says))
    return cards


def _points(title: str, order: np.ndarray, record: Record, says: str) -> Html:
    found, classes = record.influence or Influence(np.zeros(0)), record.data.classes

    def word(values: np.ndarray | None, row: int) -> str:
        if values is None:
            return "–"
        if record.task == "regression":
            return number(float(values[row]))
        label = int(values[row])
        return classes[label] if 0 <= label < len(classes) else str(label)

    def value(values: np.ndarray | None, row: int) -> str:
        return "–" if values is None else number(float(f"{float(values[row]):.3g}"))

    places = np.arange(len(found.leverage)) if found.places is None else found.places
    rows = [
        (
            str(places[row]), word(found.targets, row), word(found.predicted, row), value(found.leverage, row),
            value(found.log_density, row),
        )
        for row in map(int, order[:TOP])
    ]  # fmt: skip
    header = ("row", "target", "the others say", "leverage", "log density")
    return card(title, table(header, rows, caption=title, sortable=True), says=says)


def convergence(record: Record) -> list[Html]:
    """What was solved, how exactly, what limits it and what it cost."""
    rows, shown = _solved(record), []
    if rows:
        says = (
            "A solve that is cut short gives too much uncertainty; residuals are those of the equations of the draws."
        )
        shown.append(card("Convergence", table(("", ""), rows, caption="How the posterior was found"), says=says))
    if record.seconds:
        total = sum(record.seconds.values()) or 1e-9
        cost = [(name, f"{value:.2f} s", f"{100 * value / total:.1f} %") for name, value in record.seconds.items()]
        memory = f" Peak memory {record.peak_bytes / 2**20:,.0f} MiB." if record.peak_bytes else ""
        says = f"{total:.1f} s in all, wall-clock time on {record.device}.{memory}"
        whole = table(("phase", "time", "share"), cost, caption="Time by phase", sortable=True)
        shown.append(card("Cost", whole, says=says))
    return shown


def _solved(record: Record) -> list[tuple[str, str]]:
    solve = record.solve
    rows: list[tuple[str, str | None]] = []
    if solve.method:
        limited = f": {solve.limited_by}" if solve.limited_by else ""
        rows += [
            ("Method", solve.method + (f" ({solve.why})" if solve.why else "")),
            ("Converged", "yes" if solve.converged else f"no{limited}"),
            ("Numerical error", limits(record)),
        ]
    if solve.data_passes is not None:
        rows.append(("Passes over the data", f"{solve.data_passes:,.10g}"))
    if solve.residuals is not None and len(solve.residuals):
        worst = f"{float(np.max(solve.residuals)):.1e} of {len(solve.residuals)} solves"
        rows.append(("Largest relative residual", worst))
    if solve.effective_dimension is not None:
        weights = f"{record.network.chosen:,} weights" if record.network.chosen else "all weights"
        rows.append(("Effective dimension", f"{measured(solve.effective_dimension)} of {weights}"))
    if solve.log_evidence is not None:
        rows.append(("Log evidence", measured(solve.log_evidence)))
    rows += [(f"· {PARTS.get(name, name)}", number(value)) for name, value in solve.evidence_parts.items()]
    if solve.precision:
        groups = ", ".join(f"{name}: {number(value)}" for name, value in list(solve.precision.items())[:12])
        rows.append(("Prior precision", groups + (f" ({solve.tuned_by})" if solve.tuned_by else "")))
    if solve.noise_std:
        rows.append(("Noise standard deviation", ", ".join(number(value) for value in solve.noise_std[:8])))
    if solve.temperature is not None:
        rows.append(("Temperature scaling, for comparison: T", number(solve.temperature)))
    return [(name, value) for name, value in rows if value]


def limits(record: Record) -> str:
    """What stands between this posterior and the exact one, in words."""
    solve, found = record.solve, []
    if solve.error_bound is not None:
        bound = f"{100 * solve.error_bound:.2g} %"
        found.append(f"draws are within {bound} of exact ones on the training data")
    if solve.draws and (solve.error_bound is not None or not solve.method.lower().startswith("exact")):
        chance = tenths((2 / solve.draws) ** 0.5)
        found.append(f"variances from {solve.draws} draws have a Monte-Carlo error of {chance}")
    return "; ".join(found) or "negligible (solved exactly). The error of linearising the network is not measured."


def measured(value: Measured) -> str:
    """A number with its error.

    >>> measured(Measured(0.25, 0.01)), measured(Measured(3.0))
    ('0.25 ± 0.01', '3')
    """
    error = f" ± {number(value.standard_error)}" if value.standard_error > 0 else ""
    return f"{number(value.value)}{error}"


def provenance(record: Record) -> list[Html]:
    """What was decided and why; versions, seeds and fingerprints."""
    data, network = record.data, record.network
    rows: list[tuple[str, str]] = [
        ("Made", record.created), ("Command", record.command), ("Seed", str(record.seed)), ("Device", record.device),
        ("Data", data.source), ("Data fingerprint", data.fingerprint), ("Inputs", data.inputs),
        ("Sizes", ", ".join(f"{name} {size:,}" for name, size in data.sizes.items())),
        ("Network", network.name), ("Weights", f"{network.weights:,}" if network.weights else ""),
        ("Network fingerprint", network.fingerprint),
        ("Versions", ", ".join(f"{name} {value}" for name, value in record.versions.items())),
    ]  # fmt: skip
    known = [row for row in rows if row[1]]
    shown = [
        card("Where this comes from", table(("", ""), known, caption="Provenance"), says="Enough to make it again.")
    ]
    if record.choices:
        rows_ = [(choice.what, choice.value, choice.why or "–") for choice in record.choices]
        whole = table(("what", "choice", "why"), rows_, caption="Choices")
        shown.insert(0, card("What was decided for you, and why", whole, says="Every one can be set by hand."))
    return shown
