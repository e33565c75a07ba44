"""`lapwing labels`: training labels that are probably wrong, of a table or of a network's data, as a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapwing.app.cli import fitting, predicting, tables
from lapwing.app.cli.fitting import Request

if TYPE_CHECKING:
    from lapwing.decisions.labels import LabelIssues

SHOWN = 10


def ranked(request: Request, *, table: bool) -> LabelIssues:
    """Every label with its probability by all other examples."""
    import lapwing as lw

    if table:
        if not tables.is_table(request.model):
            raise ValueError(f"{request.model} is a network: name its training data too, `lapwing labels MODEL DATA`")
        _, target, rows, _ = tables.read(request)
        task, why = tables.kind_of(request.data, rows, None)
        if task != "classification":
            raise ValueError(f"{request.data}: the column {target!r} holds numbers ({why}), and labels are classes")
        assert rows.targets is not None
        return lw.label_issues(rows.table, rows.targets)
    model, data, guessed = fitting.labelled(request)
    found = lw.label_issues(model, data, lw.Categorical())
    return dataclasses.replace(found, classes=np.array(guessed.classes)) if guessed.classes else found


def written(found: LabelIssues, count: int | None, path: Path) -> tuple[list[str], dict[str, Any]]:
    """Write the suspects; what to say of them, in words and as values."""
    places = found.ranked(count)
    given = found.classes[found.labels[places].numpy()].astype(str).tolist()
    suggested = found.suggested[places.numpy()].astype(str).tolist()
    probability = found.given_probability[places].tolist()
    columns = {"given": given, "suggested": suggested, "probability_of_given": probability}
    predicting.write(path, columns, places.tolist())
    estimate = found.wrong_labels
    disagree = f"{estimate.value:.0f} ± {estimate.standard_error:.0f} of {len(found.labels):,} labels disagree"
    words = [f"{disagree} with all other examples. Where classes overlap, most of these are hard, and not wrong."]
    for row, label, other, chance in list(zip(places.tolist(), given, suggested, probability, strict=True))[:SHOWN]:
        words.append(f"row {row}: labelled {label}, the others say {other} (probability of {label} {chance:.2g})")
    words.append(f"{len(places):,} listed, the most suspicious first. Wrote {path}")
    values = {"estimated": estimate.value, "standard_error": estimate.standard_error, "labels": len(found.labels)}
    return words, {**values, "suspects": places.tolist(), "written": path}
