"""Training labels that look wrong."""

from __future__ import annotations

from lapwing.app.records import Record
from lapwing.app.report.classification import class_name
from lapwing.app.report.markup import Html, table
from lapwing.app.report.svg import card, tenths

SHOWN = 12


def sections(record: Record) -> list[Html]:
    """How many labels are probably wrong, and the most suspicious ones."""
    found = record.suspects
    if found is None:
        return []
    count = f"{found.estimated.value:.0f} ± {found.estimated.standard_error:.0f}"
    parts = found.places, found.given, found.suggested, found.probability
    rows = [
        (f"{place:,}", class_name(record, given), class_name(record, suggested), tenths(float(probability)))
        for place, given, suggested, probability in zip(*(part[:SHOWN].tolist() for part in parts), strict=True)
    ]
    header = ("row", "label", "the others say", "probability of the label")
    says = (
        f"{count} of {found.examples:,} training labels disagree with what all other examples say, without training "
        "again. Where classes are well apart, these are wrong labels; where they overlap, most are hard examples. "
        "Look at the first ones; `lapwing labels` writes the whole list."
    )
    whole = table(header, rows, caption="The most suspicious labels", sortable=True)
    return [card("Labels to look at", whole, says=says, wide=True)]
