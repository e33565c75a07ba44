"""The part of benchmarks/README.md on classifiers of tables."""

from __future__ import annotations

from typing import Any

import numpy as np

Cells = dict[str, dict[str, Any]]
Scores = dict[str, dict[int, dict[str, float]]]  # by method and split
RIVALS = ("logistic", "mlp", "boosting")


def page(parts: dict[str, Cells]) -> str:
    """Text and tables."""
    cells = [cell for name, cell in parts["tabular_classes"].items() if not name.endswith("a part")]
    sets = {data: scores_of(data, cells) for data in dict.fromkeys(cell["arguments"]["data"] for cell in cells)}
    known = [data for data, scores in sets.items() if len(scores["lapwing"]) > 1]
    level = [data for data in known if best_or_tied(sets[data])]
    return f"""
### Classes

Classifiers that get X and y and nothing else, on tables fixed before, at most 1,000 rows to train on: means over the splits that were
run, with the standard error of the difference from `lapwing` over the same splits. `lapwing` is `BayesianMLPClassifier` with five members; what it leaves
open was chosen on other tables. Methods and their settings are in `benchmarks/bench_tabular_classes.py`; seconds are those of the
processor. Of the {len(known)} tables with several splits, `lapwing` is best in NLL, or within two standard errors of the best other method, on
{len(level)}{f": {', '.join(level)}" if level else ""}. One split shows nothing for sure.

{"".join(_of_set(data, scores, cells) for data, scores in sets.items())}"""


def scores_of(data: str, cells: list[dict[str, Any]]) -> Scores:
    found: Scores = {}
    for cell in cells:
        if cell["arguments"]["data"] == data:
            by_split = found.setdefault(cell["arguments"]["method"], {})
            for one in cell["result"]["outcomes"]:
                by_split[one["split"]] = {**one["scores"], "seconds": one["seconds"]}
    return found


def _difference(scores: Scores, method: str) -> tuple[float, float]:
    """Of a method's NLL from ours, over the splits of both: its mean and standard error."""
    ours = scores["lapwing"]
    each = np.array([by["nll"] - ours[split]["nll"] for split, by in scores[method].items() if split in ours])
    error = float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else np.inf
    return float(each.mean()), error


def best_or_tied(scores: Scores) -> bool:
    """Against the other method with the least mean NLL."""
    means = {name: np.mean([by["nll"] for by in scores[name].values()]) for name in RIVALS}
    difference, error = _difference(scores, min(means, key=lambda name: means[name]))
    return difference >= -2 * error


def _of_set(data: str, scores: Scores, cells: list[dict[str, Any]]) -> str:
    size = next(cell["result"] for cell in cells if cell["arguments"]["data"] == data)
    splits = len(scores["lapwing"])
    lines = [
        f"**{data}**, {size['rows']:,} × {size['columns']}, {splits} split{'s' if splits > 1 else ''}",
        "",
        "| method | NLL | less `lapwing`'s | accuracy | ECE | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(name, scores) for name in scores),
    ]
    return "\n".join(lines) + "\n\n"


def _row(method: str, scores: Scores) -> str:
    def mean(score: str) -> float:
        return float(np.mean([by[score] for by in scores[method].values()]))

    difference, error = _difference(scores, method)
    known = f"{difference:+.3f} ± {error:.3f}" if np.isfinite(error) else f"{difference:+.3f}"
    told = "" if method == "lapwing" else known
    return f"| {method} | {mean('nll'):.3f} | {told} | {mean('accuracy'):.3f} | {mean('ece'):.3f} | {mean('seconds'):.2g} |"
