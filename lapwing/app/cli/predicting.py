"""Predictions as a table in a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lapwing.app.records as records

if TYPE_CHECKING:
    from lapwing.app.recording import Predicted


def columns(found: Predicted, classes: Sequence[str]) -> dict[str, Any]:
    """A table of predictions with their uncertainty, by column."""
    if found.probs is not None:
        best = found.probs.argmax(1)
        entropy = -(found.probs * np.log(np.maximum(found.probs, 1e-300))).sum(1)
        table: dict[str, Any] = {"prediction": [classes[label] for label in best], "confidence": found.probs.max(1)}
        table |= {"entropy": entropy} | {name.replace(" ", "_"): values for name, values in found.scores.items()}
        return table | {f"prob_{name}": found.probs[:, label] for label, name in enumerate(classes)}
    if found.mean is None or found.std is None or found.epistemic_std is None:
        raise ValueError("a prediction without mean and standard deviation")
    names, table = ("mean", "std", "epistemic_std", "lower_90", "upper_90"), {}
    parts = {name: getattr(found, name) for name in names}
    for output in range(found.mean.shape[1]):
        suffix = f"_{output}" if found.mean.shape[1] > 1 else ""
        table |= {f"{name}{suffix}": values[:, output] for name, values in parts.items()}
    return table | found.scores


def write(path: Path, table: dict[str, Any], places: Iterable[int] | None = None) -> None:
    """Write a table as CSV or, by its ending, as Parquet; its rows are numbered from 0, or by their places."""
    count = len(next(iter(table.values())))
    rows = range(count) if places is None else [int(place) for place in places]
    if path.suffix in (".parquet", ".pq"):
        try:
            import pandas

            content = io.BytesIO()
            pandas.DataFrame(table, index=rows).rename_axis("row").to_parquet(content)
        except ImportError:
            raise ValueError(f"{path}: writing Parquet needs pip install 'lapwing[parquet]'") from None
        records.write_atomically(path, content.getvalue())
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *table])
    for row, values in zip(rows, zip(*table.values(), strict=True), strict=True):
        writer.writerow([row, *(value if isinstance(value, str) else f"{value:.7g}" for value in values)])
    records.write_atomically(path, text.getvalue().encode())
