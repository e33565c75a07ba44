"""The page benchmarks/tables.md: what every method of `python -m benchmarks` scored, from the results of the bench_*.py of its tasks."""

from __future__ import annotations

from statistics import stdev
from typing import Any

import studies
from table_networks import table

from benchmarks import tables
from benchmarks.tasks import STUDIES

Parts = dict[str, dict[str, Any]]


def grid(parts: Parts, task: str, score: str, *, bold: bool = True) -> str:
    """Methods down, data sets across: one score, bold where it is the best or within a standard error of it."""
    study, found = STUDIES[task], studies.outcomes(parts[task.replace("-", "_")], task)
    rows = tables.entries(study, found)
    sets = [name for name in study.data if any(row.data == name for row in rows)]
    tied = {name: tables.best(study, rows, name, score)[1] if bold else [] for name in sets}
    here = {(row.data, row.method): row for row in rows if row.score == score}
    met = {(row.data, row.method): row.mean for row in rows if row.score == "r_hat" and row.values}
    lines = []
    for method in [name for name in study.methods if any(row.method == name for row in rows)]:
        cells = [here.get((name, method)) for name in sets]
        shown = [
            "–" if cell is None else f"{cell} (R-hat {met[name, method]:.2f})" if (name, method) in met else str(cell)
            for name, cell in zip(sets, cells, strict=True)
        ]  # fmt: skip
        lines.append([
            method, *(f"**{text}**" if method in tied[name] else text for name, text in zip(sets, shown, strict=True))
        ])  # fmt: skip
    published = [study.published.get(name, {}).get(f"dropout {score}") for name in sets]
    if any(value is not None for value in published):
        lines.append(["*dropout, published*", *("–" if value is None else f"{value:.4g}" for value in published)])
    counts = [f"{name} ({_seeds(rows, name)})" for name in sets]
    return table(["method", *counts], lines)


def _seeds(rows: list[tables.Entry], data: str) -> int:
    return max(len(row.values) for row in rows if row.data == data)


def ranks(parts: Parts, task: str, score: str) -> str:
    """On how many data sets each method is best or tied."""
    study, found = STUDIES[task], studies.outcomes(parts[task.replace("-", "_")], task)
    rows = tables.entries(study, found)
    sets = [name for name in study.data if any(row.data == name for row in rows)]
    wins = {
        method: sum(method in tables.best(study, rows, name, score)[1] for name in sets) for method in study.methods
    }
    ordered = sorted(((count, method) for method, count in wins.items() if count), reverse=True)
    return f"Best or tied, of {len(sets)} sets: " + ", ".join(f"{method} {count}" for count, method in ordered) + "."


def columns(parts: Parts, task: str, data: str, scores: list[str]) -> str:
    """Methods down, scores across, for one data set."""
    study, found = STUDIES[task], studies.outcomes(parts[task.replace("-", "_")], task)
    lines = []
    for method in study.methods:
        mine = [one for one in found if (one.cell.data, one.cell.method) == (data, method) and not one.failed]
        if mine:
            values = [[one.scores[score] for one in mine if score in one.scores] for score in scores]
            lines.append([method, *map(_mean, values)])
    return table(["method", *scores], lines)


def _mean(values: list[float]) -> str:
    """A mean over seeds, with its standard error where there are several."""
    if not values:
        return "–"
    error = f" ± {stdev(values) / len(values) ** 0.5:.2g}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.3g}{error}"


def missing(parts: Parts) -> str:
    """Which sets and methods of the task have not been run."""
    study, found = STUDIES["uci"], studies.outcomes(parts["uci"], "uci")
    sets, methods = ({getattr(one.cell, name) for one in found} for name in ("data", "method"))
    absent = [name for name in study.data if name not in sets]
    left_out = [name for name in study.methods if name not in methods]
    not_run = " and ".join(", ".join(names) for names in (absent, left_out) if names)
    return ("**All nine sets**" if not absent else f"**{len(sets)} of nine sets**") + (
        f"; not run: {not_run}." if not_run else "."
    )


def uci(parts: Parts) -> str:
    return f"""## UCI regressions

{missing(parts)} NLL in the targets' own units, mean over the authors' splits (their number stands behind the name) ± standard error; splits
overlap, so those errors are on the small side. Bold: the best, and what is within one standard error of it by paired
differences over splits. One hidden layer of 50 ReLU units, the same trained networks for all methods; a tenth of the training
rows chooses weight decay, the best epoch and every setting, and the test rows are scored once. `linearised` chooses
noise, precision and prior (the g-prior or one precision for all weights) by evidence; `linearised-g` is the default of
`lapwing.fit`; `linearised-ensemble` is a mixture of the linearised posteriors of the five members of `ensemble`. The last row is Monte-Carlo dropout as published (Gal & Ghahramani's code, 20 splits, its own
training). HMC has four chains of the whole batch on the small sets, with its R-hat: far above 1 where chains did not meet. A noise that evidence
found counts, around the network's outputs, as no less than what the network leaves of its training data: that rule was made when `linearised` had an
NLL of 29 on naval's test rows, chosen on held-out rows of eight sets, and the rows of `linearised`, `-g`, `-ensemble` and `last-layer` scored again.

{grid(parts, "uci", "nll")}

{ranks(parts, "uci", "nll")}

Root mean square errors:

{grid(parts, "uci", "rmse")}

The density of the mixture of draws instead of the Gaussian with its moments:

{grid(parts, "uci", "mixture_nll")}

The share of test targets in 90 % intervals:

{grid(parts, "uci", "coverage", bold=False)}
"""


def uci_gap(parts: Parts) -> str:
    return f"""## The same with a gap

The middle third of one feature is the test set, so that it lies between the training data (Foong et al. 2019). The first
features of each set; their number stands behind its name.

{grid(parts, "uci-gap", "nll")}

{ranks(parts, "uci-gap", "nll")}

The share of test targets in 90 % intervals:

{grid(parts, "uci-gap", "coverage", bold=False)}
"""


def toy(parts: Parts) -> str:
    scores = ["gap_distance", "distance", "nll", "gap_nll", "gap_std", "coverage", "r_hat"]
    return f"""## Distance from the truth on a curve with a gap

100 observations on both sides of a gap, 25 + 25 tanh units, noise and prior known and the same for all. The truth is
full-batch HMC with eight chains from the prior; distances are of drawn functions, Wasserstein-1 averaged over the gap and
over the whole grid. The row of HMC is another run of it with another seed: the error of the truth itself.

{columns(parts, "toy", "gap", scores)}
"""


def corrupted_cifar(parts: Parts) -> str:
    study = STUDIES["corrupted-cifar"]
    return f"""## A trained ResNet-20 under corruptions

Somebody else's network, 269,722 weights. 100 test images, Gaussian noise, defocus blur and contrast at severities 1, 3 and
5; 200 other test images tune everyone. Posteriors see 1,000 training images, that of all weights (`linearised`) 100, counted as
50,000; SWAG trains on for two epochs of the 1,000. `over_temperature` is the NLL over that of temperature scaling, averaged over
the nine corruptions image by image; its standard error stands in the next column.

{columns(parts, "corrupted-cifar", "cifar10", ["over_temperature", "over_temperature_error", *study.scores[1:]])}
"""


def rotated_mnist(parts: Parts) -> str:
    study = STUDIES["rotated-mnist"]
    return f"""## Rotated digits

LeNet on 6,000 MNIST images, 1,000 held out for tuning, 500 test images rotated by 0° to 180°; one seed.

{columns(parts, "rotated-mnist", "mnist", list(study.scores))}
"""


def ood(parts: Parts) -> str:
    study = STUDIES["ood"]
    return f"""## Out-of-distribution images

How well scores separate 500 out-of-distribution images from 500 in-distribution ones: LeNet on MNIST against notMNIST, and on Fashion-MNIST against
MNIST; one seed. Then the ResNet-20 of the corruptions, 100 photographs of CIFAR-10 against 100 pictures of clothes.

MNIST:

{columns(parts, "ood", "mnist", list(study.scores))}

Fashion-MNIST:

{columns(parts, "ood", "fashion", list(study.scores))}

CIFAR-10:

{columns(parts, "ood", "cifar10", list(study.scores))}
"""


def bandit(parts: Parts) -> str:
    scores = ["regret_100", "regret_200", "regret_400", "regret", "last_errors"]
    return f"""## Thompson sampling

Wrong arms pulled in the first 100, 200, 400 and in all 600 rounds, and the share of wrong ones in the last hundred; mean ± standard
error over seeds (five and three). An arm is a class, the learner sees the reward of the arm it pulled, and fits anew every 50 rounds. `linear` is a
Bayesian linear model, the others have 30 hidden units; `greedy` is the network without error bars.

Breast cancer, 2 arms:

{columns(parts, "bandit", "breast-cancer", scores)}

Digits, 10 arms:

{columns(parts, "bandit", "digits", scores)}
"""


def scaling(parts: Parts) -> str:
    scores = ["weights", "rows", "fit_passes", "predict_passes", "fit_seconds", "predict_seconds"]
    sections = [
        f"{name}:\n\n{columns(parts, 'scaling', name, scores)}" for name in STUDIES["scaling"].data
    ]  # fmt: skip
    return "## What it costs\n\n" + SCALING + "\n\n".join(sections) + "\n"


SCALING = """In forward passes over the same data (a fit: all training data; a prediction: 200 new inputs), by processor time of one
thread on a machine that was shared. Two hidden layers, three outputs, given noise and precision: no tuning is in it.
Forward passes of such small networks are a fraction of a millisecond, so fixed costs weigh heavily in the first rows.

"""
SECTIONS = (uci, uci_gap, toy, corrupted_cifar, rotated_mnist, ood, bandit, scaling)


ENOUGH = {
    "uci_gap": "energy",
    "toy": "gap",
    "rotated_mnist": "all methods",
    "ood": "cifar10",
    "bandit": "digits",
}  # cells that make a table


def page(parts: Parts) -> str:
    sections = [
        section(parts) for section in SECTIONS
        if section.__name__ in parts and ENOUGH.get(section.__name__, "") in ("", *parts[section.__name__])
    ]  # fmt: skip
    return INTRODUCTION + "\n".join(sections)


INTRODUCTION = """# Tables

Every method of `python -m benchmarks` on the same data with the same networks, settings chosen on held-out data. Written by
`benchmarks/table.py` from `benchmarks/results`; a table is made again by its script, such as
`python benchmarks/bench_uci.py --force`, or grown with more splits and seeds by `python -m benchmarks uci --seeds 0-19 --out
folder`. What follows from them is in [What is better, what is worse, and why](comparison.md).

"""
