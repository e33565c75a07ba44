"""`lapwing acquire`: which rows of a pool to label next, by a saved run, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapwing.app.cli import predicting, running, tables

if TYPE_CHECKING:
    from lapwing.decisions.acquisition import Acquisition
    from lapwing.runtime.progress import Report

SHOWN = 10


def chosen(
    folder: Path, data: str, network: tuple[str | None, str], options: dict[str, Any], tell: Report
) -> Acquisition:
    """By a run of a table, or of a network that is given by its name and device."""
    import lapwing as lw

    if (table := tables.saved(folder)) is not None:
        return lw.acquire(table.estimator, table.rows(data, needs_target=False).table, **options, progress=tell)
    loaded = running.SavedRun.load(folder, *network)
    inputs, _ = loaded.tensors(loaded.read(data, needs_target=False), with_targets=False)
    return lw.acquire(loaded.posterior, inputs, **options, progress=tell)


def written(found: Acquisition, path: Path) -> tuple[list[str], dict[str, Any]]:
    """Write the rows in the order of choice; what to say of them, in words and as values."""
    places, values = found.places.tolist(), found.values.tolist()
    predicting.write(path, {"value": values}, places)
    words = [f"row {place}: {value:.3g}" for place, value in list(zip(places, values, strict=True))[:SHOWN]]
    head = f"{len(places)} rows to label next, by {found.score}, each with what it adds to those before it:"
    return [head, *words, f"Wrote {path}"], {"rows": places, "values": values, "score": found.score, "written": path}
