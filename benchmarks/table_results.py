"""The page docs/results.md: about ten rows that matter to users, with what is worse among them."""

from __future__ import annotations

from typing import Any

import first_tries
import numpy as np
import table_classes
import table_tabular

Parts = dict[str, dict[str, dict[str, Any]]]
UCI = ("yacht", "boston", "energy", "concrete")


def page(parts: Parts) -> str:
    """The rows, pictures, and where the rest is."""
    rows = "\n".join(f"| {what} | {peer} | {ours} |" for what, peer, ours in rows_of(parts))
    return f"""# Results

Lower is better unless the row says otherwise, and the better figure is bold; where the difference is within its error, neither is. Every figure is computed
from `benchmarks/results` by `benchmarks/table_results.py`, and a test fails where this page is not what the results say. Measured on two cores.

| | peer | lapwing |
| --- | --- | --- |
{rows}

In words: lapwing improves small classifiers, tables and large linear models. On large classifiers it ties with temperature
scaling. An ensemble of five networks ranks unfamiliar inputs better than one posterior does. [What did not work](explanation/what_did_not_work.md)
has more of that kind.

## First fits, one by one

Each point is one classifier of somebody who calls `fit` once, with validation data and nothing tuned by hand: its NLL on test data less that of temperature
scaling on the same network. Points below zero are better; filled ones by more than two standard errors. The axis is linear up to ± 0.1 and logarithmic beyond.

![NLL less that of temperature scaling for every first fit, by data set](images/first_tries.png)

## Tables

NLL of four regressors on four tables of the UCI repository, mean over ten splits, less that of `BayesianMLPRegressor`. Bars above zero are worse than it; the lines are two standard errors.

![NLL of Gaussian process, boosting and MLP less that of BayesianMLPRegressor, on four tables](images/tabular.png)

## Passes over the data

How often the data are read until 32 posterior draws are right to 2 %, by one shared Krylov space and by the usual solvers.

![Passes of several solvers on four problems](images/passes.png)

## Everything else

`benchmarks/README.md` has all tables, with the commands that repeat them; `benchmarks/tables.md` compares the methods of `lapwing.families` on one set of networks;
`benchmarks/comparison.md` sums up what is better and what is the same; `benchmarks/asks.md` answers what users of other packages asked for.
"""


def rows_of(parts: Parts) -> list[tuple[str, str, str]]:
    """What was measured, a peer's figure, and ours."""
    return [
        *_first_fits(parts["first_tries"]),
        _all_tables("UCI tables, three to ten splits each", table_tabular.standard_sets(parts)),
        _all_tables("more tables, ten splits each", table_tabular.more_sets(parts)),
        _all_tables("UCI tables with the middle third of a feature held out", table_tabular.gap_sets(parts)),
        _classes(parts["tabular_classes"]),
        _wrong_labels(parts["label_issues"]),
        _ridge(parts["ridge"]),
        _kfac(parts["resnet20_peers"]),
        _resnet(parts["resnet20"]),
        _unfamiliar(parts["ood"]),
    ]


def _first_fits(cells: dict[str, Any]) -> list[tuple[str, str, str]]:
    tries = [cell["result"] for cell in cells.values() if cell["result"]["number"] in first_tries.FINAL]
    tries = [one for one in tries if one["target"] in ("classes", "labels")]
    rows = []
    for validated, rival, told in ((True, "ts", "temperature scaling"), (False, "raw", "the raw network")):
        chosen = [one for one in tries if bool(one["validation_rows"]) == validated and f"minus_{rival}" in one]
        found = np.array([one[f"minus_{rival}"] for one in chosen])
        beyond = 2 * np.array([one[f"minus_{rival}_se"] for one in chosen])
        kind = "with validation data" if validated else "without"
        rows.append((
            f"First fits of {len(chosen)} small classifiers {kind}, one call each: mean NLL less that of {told}",
            f"{int((found > beyond).sum())} significantly better",
            f"{_signed(found.mean())}, **{int((found < -beyond).sum())} significantly better**",
        ))  # fmt: skip
    return rows


def _all_tables(kind: str, sets: dict[str, list[table_tabular.Column]]) -> tuple[str, str, str]:
    """On how many sets a rival is ahead."""
    ahead = [named["ahead"] for named in table_tabular.verdicts(sets).values()]
    peers = {"gp": "Gaussian process", "boosting": "boosting", "mlp": "MLP", "ridge": "ridge"}
    told = ", ".join(f"{name} on {sum(method in names for names in ahead)}" for method, name in peers.items())
    level = sum(not names for names in ahead)
    return (
        f"`BayesianMLPRegressor`: NLL on {len(ahead)} {kind}",
        f"significantly better: {told}",
        f"best or tied on {level}",
    )


def nlls(cells: dict[str, Any]) -> dict[str, dict[str, dict[int, float]]]:
    """NLL on the standard splits of the four tables: by method, table and split."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for name, cell in cells.items():
        asked = cell["arguments"]
        if asked["data"] in UCI and not asked.get("gap") and not name.endswith("a part"):
            splits = found.setdefault(asked["method"], {}).setdefault(asked["data"], {})
            splits |= {one["split"]: one["scores"]["nll"] for one in cell["result"]["outcomes"]}
    return found


def _classes(cells: dict[str, Any]) -> tuple[str, str, str]:
    kept = [cell for name, cell in cells.items() if not name.endswith("a part")]
    sets = {
        data: table_classes.scores_of(data, kept) for data in dict.fromkeys(cell["arguments"]["data"] for cell in kept)
    }
    known = {data: scores for data, scores in sets.items() if len(scores["lapwing"]) > 1}
    level = sum(table_classes.best_or_tied(scores) for scores in known.values())
    counts = sorted({len(scores["lapwing"]) for scores in known.values()})
    splits = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    return (
        f"`BayesianMLPClassifier`: NLL on {len(known)} tables, {splits} splits each",
        f"the best of logistic regression, MLP and boosting: significantly better on {len(known) - level}",
        f"best or tied on {_bold(str(level), level > len(known) / 2)}",
    )


def _wrong_labels(cells: dict[str, Any]) -> tuple[str, str, str]:
    """Beside cleanlab's retraining: AUROC for labels that are wrong by chance and for those of the next class."""
    rival = "cleanlab, five folds"
    random, following = (cells[f"digits, {kind}, 10%"]["result"] for kind in ("symmetric", "class-dependent"))
    aurocs = zip(*(_of_labels(one, rival) for one in (random, following)), strict=True)
    theirs, ours = (" / ".join(found) for found in aurocs)
    seconds = {
        method: float(np.mean([one["methods"][method]["seconds"] for one in (random, following)]))
        for method in (rival, "lapwing")
    }
    peer, own = _times(*seconds.values())
    what = "`label_issues`: every tenth label of 1,797 digits made random / the next class, AUROC of the wrong ones"
    return (
        f"{what} (more is better), processor seconds",
        f"cleanlab with five networks trained on folds: {theirs}, {peer}",
        f"{ours}, {own}",
    )


def _times(theirs: float, ours: float) -> tuple[str, str]:
    return _bold(f"{theirs:.1f} s", theirs < ours), _bold(f"{ours:.1f} s", ours < theirs)


def _of_labels(found: dict[str, Any], rival: str) -> tuple[str, str]:
    """Mean AUROCs of a rival and of ours, over seeds; bold where the paired difference is beyond two errors."""
    theirs, ours = (
        np.array([one["methods"][method]["auroc"] for one in found["each_seed"]]) for method in (rival, "lapwing")
    )
    gap = ours - theirs
    beyond = 2 * gap.std(ddof=1) / np.sqrt(len(gap))
    return _bold(f"{theirs.mean():.3f}", gap.mean() < -beyond), _bold(f"{ours.mean():.3f}", gap.mean() > beyond)


def _ridge(cells: dict[str, Any]) -> tuple[str, str, str]:
    """Seconds and memory of a large problem, and seconds of a small one."""
    sizes = "1,000 × 20,000", "400 × 30"
    peer, own = [], []
    for found in (cells[size]["result"] for size in sizes):
        ours, theirs = (float(np.median(found[f"{whose}_seconds"])) for whose in ("our", "their"))
        memory = {
            whose: f", {found[f'{whose}_peak_bytes'] / 1e9:.1f} GB" if theirs > 1 else "" for whose in ("our", "their")
        }
        peer.append(_bold(_seconds(theirs) + memory["their"], theirs < 0.9 * ours))  # medians of runs repeat to a tenth
        own.append(_bold(_seconds(ours) + memory["our"], ours < 0.9 * theirs))
    return f"`BayesianRidge`, {' / '.join(sizes)}", f"scikit-learn: {' / '.join(peer)}", " / ".join(own)


def _kfac(cells: dict[str, Any]) -> tuple[str, str, str]:
    found = cells["KFAC, n = 1,000"]["result"]
    ours, theirs = found["our_fit_seconds"], found["their_fit_seconds"]
    return (
        "KFAC on ResNet-20, fit and tune",
        f"laplace-torch: {_bold(_seconds(theirs), theirs < ours)}",
        _bold(_seconds(ours), ours < theirs),
    )


def _resnet(cells: dict[str, Any]) -> tuple[str, str, str]:
    found = cells["all weights, n = 300, averaged"]["result"]
    peer, ours = zip(*(_beside(found[part]) for part in ("test", "noise")), strict=True)
    return (
        "ResNet-20 on CIFAR-10, all weights, held-out data, NLL: test images / strong noise",
        f"temperature scaling: {' / '.join(peer)}",
        " / ".join(ours),
    )


def _beside(found: dict[str, Any]) -> tuple[str, str]:
    """NLL of temperature scaling and ours; the better one is bold where the paired difference is beyond two errors."""
    ours, scaled = found["lapwing"], found["temperature scaling"]
    gap, beyond = ours["nll_over_temperature_scaling"], 2 * ours["standard_error"]
    return _bold(f"{scaled['nll']:.3f}", gap > beyond), _bold(f"{ours['nll']:.3f}", gap < -beyond)


def _unfamiliar(cells: dict[str, Any]) -> tuple[str, str, str]:
    auroc = {
        one["method"]: one["scores"]["auroc_mutual_information"]
        for name in ("mnist", "mnist, other networks")
        for one in cells[name]["result"]["outcomes"]
        if "auroc_mutual_information" in one["scores"]
    }
    ours, theirs = auroc["linearised"], auroc["ensemble"]
    return (
        "LeNet on MNIST against letters: AUROC of the mutual information (more is better)",
        f"ensemble of five networks: {_bold(f'{theirs:.2f}', theirs > ours)}",
        _bold(f"{ours:.2f}", ours > theirs),
    )


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _signed(value: float) -> str:
    return f"{value:.3f} on average".replace("-", "−")


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
