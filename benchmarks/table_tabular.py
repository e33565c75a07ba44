"""The section of docs/benchmarks.md on regressors of tables."""

from __future__ import annotations

from typing import Any

import numpy as np

Cells = dict[str, dict[str, Any]]
SCORES = {
    "nll": "NLL", "crps": "CRPS", "rmse": "RMSE", "coverage_50": "50 %", "coverage_90": "90 %",
}  # fmt: skip


def page(parts: dict[str, Cells]) -> str:
    """Text and tables."""
    cells = [cell for name, cell in parts["tabular"].items() if not name.endswith("a part")]
    return f"""
## Tables without a network

Regressors that get X and y and nothing else, on UCI sets with the authors' standard splits: means over the splits {_splits(cells)}, in
the targets' units. `lapwing` is `BayesianMLPRegressor` with five members, its NLL that of the mixture; what it leaves open was chosen on tenths of
the training rows. The other methods and their settings are in `benchmarks/bench_tabular.py`. Seconds are those of fit and prediction on one
thread of a machine that others used too. Three splits are few: between
them the NLL of one method differs by 0.1 to 0.4, so that rows close to each other are level.

{"".join(_of_set(data, cells) for data in dict.fromkeys(cell["arguments"]["data"] for cell in cells))}"""


def _splits(cells: list[dict[str, Any]]) -> str:
    splits = cells[0]["arguments"]["splits"]
    return f"{splits[0]} to {splits[-1]}"


def _of_set(data: str, cells: list[dict[str, Any]]) -> str:
    own = [cell for cell in cells if cell["arguments"]["data"] == data]
    size = own[0]["result"]
    lines = [
        f"**{data}**, {size['rows']:,} × {size['columns']}",
        "",
        "| method | " + " | ".join(SCORES.values()) + " | seconds |",
        "| --- " * (len(SCORES) + 2) + "|",
        *(_row(cell) for cell in own),
    ]
    return "\n".join(lines) + "\n\n"


def _row(cell: dict[str, Any]) -> str:
    outcomes = cell["result"]["outcomes"]
    values = [f"{np.mean([one['scores'][score] for one in outcomes]):.3g}" for score in SCORES]
    seconds = np.mean([one["seconds"] for one in outcomes])
    return f"| {cell['arguments']['method']} | " + " | ".join(values) + f" | {seconds:.2g} |"
