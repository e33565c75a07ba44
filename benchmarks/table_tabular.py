"""The section of benchmarks/README.md on regressors of tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Cells = dict[str, dict[str, Any]]
SCORES = {"nll": "NLL", "crps": "CRPS", "rmse": "RMSE", "coverage_50": "50 %", "coverage_90": "90 %"}
OWN = "lapwing"
LEAST_SPLITS = 3  # that a comparison needs
MORE = ("diabetes", "ozone", "servo", "body", "sacramento", "cars")  # those of `bench_tabular.py`
VARIANTS = ("lapwing, one", "lapwing, input noise", "boosting, mapie")  # the last has the densities of boosting
ENSEMBLES = {
    "ensemble": "ReLU ensemble",
    "linearised-ensemble": "linearised ReLU ensemble",
}  # of bench_uci.py, five networks each


@dataclass(frozen=True)
class Column:
    """What one method had on one set: outcomes by split."""

    method: str
    rows: int
    columns: int
    outcomes: dict[int, dict[str, Any]]

    def mean(self, score: str) -> float:
        """Over its splits; not a number where it was not kept."""
        return float(np.mean([one["scores"].get(score, np.nan) for one in self.outcomes.values()]))

    def differences(self, other: Column) -> np.ndarray:
        """Of NLL, on the splits that both have."""
        shared = sorted(self.outcomes.keys() & other.outcomes.keys())
        nlls = [[one.outcomes[split]["scores"]["nll"] for split in shared] for one in (self, other)]
        return np.subtract(*nlls)

    def against(self, other: Column) -> tuple[float, float] | None:
        """The mean difference of NLL over common splits, and its standard error; None where there are fewer than three."""
        differences = self.differences(other)
        if len(differences) < LEAST_SPLITS:
            return None
        return float(differences.mean()), float(differences.std(ddof=1) / len(differences) ** 0.5)


def page(parts: dict[str, Cells]) -> str:
    """Text and tables."""
    standard, more, gap = standard_sets(parts), more_sets(parts), gap_sets(parts)
    text = f"""
## Tables without a network

Regressors that get X and y and nothing else, on UCI sets with the authors' standard splits, in the targets' units. `lapwing` is
`BayesianMLPRegressor` with five members, its NLL that of the mixture; what it leaves open was chosen on tenths of
the training rows. The other methods and their settings are in `benchmarks/bench_tabular.py` and `benchmarks/bench_tabular_peers.py`. A row is the mean over
the splits it names, and rows of different splits are not to be compared by it: *behind* is how much higher the NLL is than that of `lapwing`, over
the splits that both have, with its standard error. Methods within two of them are level; with three splits that is a rough guide. Seconds are those of fit and prediction on one
thread of a machine that others used too. Intervals of `lapwing` hold, on average over the sets, {_coverage(standard, "coverage_50")} at 50 %
and {_coverage(standard, "coverage_90")} at 90 %. In wine, where boosting is ahead, 27 % of the test rows stand among the training rows too, number for
number, and trees remember these: with a fifth of the training rows of splits 0 and 1 held out, boosting has an NLL of 0.47 on rows that stand among the others
and 1.09 on those that do not, `lapwing` 0.64 and 1.07. In power, where it is ahead too, one column, the exhaust vacuum,
takes 633 values in 8,611 rows and tells records of the same time: with a tenth of the training rows of split 0 held out, the mean residual of
the other rows with the same value takes the RMSE of one network from 3.81 to 2.91, where boosting has 2.95. Trees can tell such values apart; smooth networks
cannot, nor do 200 units (3.76). Naval is a simulation without noise: the Gaussian process, which knows how near the training rows are, is ahead in NLL, though with 2,000 of
the 10,741 rows its RMSE is twelve times that of `lapwing` and its CRPS three times. Why boosting is ahead on protein was not found. {_tally(standard)} The large sets have
three splits, and the ReLU ensembles, five networks each by `bench_uci.py`, five splits of the small sets and one or two of the large ones, which are
too few for a verdict. The deep ensemble of `bench_tabular.py` was not run yet; power and protein have no Gaussian process, wine three splits of it.

{_seconds(parts["tabular_seconds"])}

{_verdicts(standard)}
{_of_sets(standard)}"""
    if more:
        text += f"""### More tables

Tables of scikit-learn and of R packages, fixed before the first score, on random splits: four fifths of the rows to train on, the others to
test on. Intervals of `lapwing` hold {_coverage(more, "coverage_50")} at 50 % and {_coverage(more, "coverage_90")} at 90 %. {_tally(more)}
The table lost is diabetes, whose target is nearly linear in its columns: networks with fifty hidden units fit noise there, and the marginal likelihood
could have said so. With a fifth of the training rows of splits 0 to 2 held out, it is −1,565 for fifty units, −1,546 for three and −1,540 for one, and the NLL
of the rows held out 5.47, 5.40 and 5.41, where ridge has 5.41. The default does not choose the number of units; `hidden_units=3` is worth a try where a linear
model is good already.

{_verdicts(more)}
{_of_sets(more)}"""
    if gap:
        text += f"""### Gap splits

One feature sorted, its middle third held out, for each of the first three features. {_tally(gap)}
With three splits that differ much from each other, level means little more than not known. The ReLU ensembles have two splits of most sets, too few for a verdict; on those of
power they are far ahead of `lapwing`, whose intervals hold too little there, and on naval the linearised one is. Of protein one split was run.

{_verdicts(gap)}
{_of_sets(gap)}"""
    return text


def _seconds(cells: Cells) -> str:
    """Of fits alone, by `bench_tabular_seconds.py`."""
    each = []
    for cell in cells.values():
        asked, found = cell["arguments"], cell["result"]
        members = f"{asked['members']} member{'s' if asked['members'] > 1 else ''}"
        kernels = f" with OpenBLAS's kernels for {asked['kernels']}" if asked["kernels"] else ""
        each.append(
            f"{members} on the {found['rows']:,} rows of {asked['data']}{kernels} {found['processor_seconds']:.2g} s and "
            f"{found['peak_bytes'] / 1e9:.2g} GB"
        )
    return f"`fit` on one core, in seconds of the processor and the largest memory (`bench_tabular_seconds.py`): {'; '.join(each)}."


def standard_sets(parts: dict[str, Cells]) -> dict[str, list[Column]]:
    """Of the UCI sets."""
    own = [cell for cell in _cells(parts, gap=False) if cell["arguments"]["data"] not in MORE]
    return columns_of([*own, *ensembles(parts["uci"])])


def more_sets(parts: dict[str, Cells]) -> dict[str, list[Column]]:
    """Of other packages."""
    return columns_of(cell for cell in _cells(parts, gap=False) if cell["arguments"]["data"] in MORE)


def gap_sets(parts: dict[str, Cells]) -> dict[str, list[Column]]:
    """Of the UCI sets with a third of a feature held out."""
    return columns_of([*_cells(parts, gap=True), *ensembles(parts["uci_gap"])])


def _cells(parts: dict[str, Cells], *, gap: bool) -> list[dict[str, Any]]:
    return [
        cell
        for part in ("tabular", "tabular_peers")
        for name, cell in parts[part].items()
        if not name.endswith("a part") and bool(cell["arguments"].get("gap")) == gap
    ]


def ensembles(cells: Cells) -> list[dict[str, Any]]:
    """Rows of `bench_uci.py` and `bench_uci_gap.py`, whose splits are the same, in the form of the others."""
    found = []
    for name, cell in cells.items():
        if name.endswith(("a part", "HMC")):
            continue
        for method, label in ENSEMBLES.items():
            outcomes = [_of_ensemble(one) for one in cell["result"]["outcomes"] if one["method"] == method]
            arguments = {"data": cell["arguments"]["data"], "method": label}
            found.append({"arguments": arguments, "result": {"outcomes": outcomes, "rows": 0, "columns": 0}})
    return found


def _of_ensemble(one: dict[str, Any]) -> dict[str, Any]:
    """Seconds there are those of all methods together, coverage is that of 90 % intervals."""
    scores = one["scores"]
    return {"split": one["seed"], "seconds": np.nan, "scores": scores | {"coverage_90": scores["coverage"]}}


def columns_of(cells: Iterable[dict[str, Any]]) -> dict[str, list[Column]]:
    """By set, where there is ours; cells of one method are put together."""
    found: dict[str, dict[str, Column]] = {}
    for cell in cells:
        data, method, result = cell["arguments"]["data"], cell["arguments"]["method"], cell["result"]
        methods = found.setdefault(data, {})
        before = methods[method].outcomes if method in methods else {}
        new = {one["split"]: one for one in result["outcomes"]}
        methods[method] = Column(method, result["rows"], result["columns"], before | new)
    return {
        data: sorted(methods.values(), key=lambda one: one.method != OWN)
        for data, methods in found.items()
        if OWN in methods
    }


def _coverage(sets: dict[str, list[Column]], score: str) -> str:
    each = [column.mean(score) for columns in sets.values() for column in columns if column.method == OWN]
    return f"{100 * np.mean(each):.0f} %"


def compared(columns: list[Column]) -> dict[str, list[str]]:
    """Which of the rivals on a set are behind, level or ahead."""
    own = next((column for column in columns if column.method == OWN), None)
    named: dict[str, list[str]] = {"behind": [], "level": [], "ahead": []}
    for column in columns:
        found = None if own is None or column.method in (OWN, *VARIANTS) else column.against(own)
        if found is not None:
            difference, error = found
            place = "level" if abs(difference) <= 2 * error else "behind" if difference > 0 else "ahead"
            named[place].append(column.method)
    return named


def _verdicts(sets: dict[str, list[Column]]) -> str:
    """For each set, which of the rivals are behind, level or ahead."""
    lines = ["| set | behind `lapwing` | level | ahead |", "| --- | --- | --- | --- |"]
    for data, named in verdicts(sets).items():
        lines.append(f"| {data} | " + " | ".join(", ".join(names) or "–" for names in named.values()) + " |")
    return "\n".join(lines) + "\n"


def _tally(sets: dict[str, list[Column]]) -> str:
    known = verdicts(sets).values()
    best = sum(not named["ahead"] for named in known)
    worst = sum(not named["behind"] + named["level"] for named in known)
    return f"No rival is ahead of `lapwing` on {best} of {len(known)} sets, and all of them on {worst}."


def verdicts(sets: dict[str, list[Column]]) -> dict[str, dict[str, list[str]]]:
    """Which rivals are behind, level and ahead, on the sets where there are any."""
    named = {data: compared(columns) for data, columns in sets.items()}
    return {data: one for data, one in named.items() if any(one.values())}


def _of_sets(sets: dict[str, list[Column]]) -> str:
    return "".join(_of_set(data, columns) for data, columns in sets.items())


def _of_set(data: str, columns: list[Column]) -> str:
    own = next((column for column in columns if column.method == OWN), None)
    lines = [
        f"**{data}**, {columns[0].rows:,} × {columns[0].columns}",
        "",
        "| method | splits | " + " | ".join(SCORES.values()) + " | behind | seconds |",
        "| --- " * (len(SCORES) + 4) + "|",
        *(_row(column, own) for column in columns),
    ]
    return "\n".join(lines) + "\n\n"


def _row(column: Column, own: Column | None) -> str:
    values = [_shown(column.mean(score), 3) for score in SCORES]
    behind = "–" if own is None or column is own else _behind(column, own)
    seconds = float(np.mean([one["seconds"] for one in column.outcomes.values()]))
    splits = sorted(column.outcomes)
    named = f"{splits[0]} to {splits[-1]}" if len(splits) > 1 else str(splits[0])
    return f"| {column.method} | {named} | " + " | ".join(values) + f" | {behind} | {_shown(seconds, 2)} |"


def _behind(column: Column, own: Column) -> str:
    """With a standard error where there are splits enough for one."""
    found = column.against(own)
    if found is not None:
        return f"{found[0]:.3f} ± {found[1]:.3f}"
    differences = column.differences(own)
    return f"{differences.mean():.3f}" if len(differences) else "–"


def _shown(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:.{digits}g}"
