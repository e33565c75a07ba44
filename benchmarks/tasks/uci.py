"""uci and uci-gap: nine regressions, the authors' splits, one hidden layer of 50 ReLU units as in the literature.

A tenth of the training rows is held out: it stops the training of every network, chooses the settings of methods that
have any, and tunes the noise of those that do not find it themselves. All methods get the same network (or the same
training of it). Scores are in the targets' own units.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.about import TASKS
from benchmarks.data import UCI, uci, uci_splits
from benchmarks.networks import mlp
from benchmarks.outcomes import Cell
from benchmarks.regressors import METHODS, Pair, Problem, fitted, problem, untrained
from benchmarks.scores import of_numbers
from benchmarks.tasks.study import Study, numbers, shared_weights

HIDDEN, STEPS, LEARNING_RATE = 50, 4000, 5e-3
LARGE = ("kin8nm", "naval", "power", "protein")
SCORES = ("nll", "rmse", "crps", "coverage", "width", "mixture_nll", "joint_nll", "r_hat")
# MC dropout with grid search, github.com/yaringal/DropoutUncertaintyExps: RMSE and log-likelihood, 20 standard splits
DROPOUT = {
    "boston": (2.90, -2.40), "concrete": (4.82, -2.93), "energy": (0.54, -1.21), "kin8nm": (0.08, 1.14),
    "naval": (0.00, 4.45), "power": (4.01, -2.80), "protein": (4.27, -2.87), "wine": (0.62, -0.93),
    "yacht": (0.67, -1.25),
}  # fmt: skip


def split_of(name: str, split: int, *, gap: bool, folder: Path) -> tuple[Problem, Pair, float]:
    """The trained network of a split, the test data in standardised units, and the unit of the targets."""
    task = uci(name, split, gap=gap)
    task, validation = task.held_out(max(10, len(task.train[0]) // 10), seed=split)
    n, cut = len(task.train[0]), len(validation[0])
    both = tuple(torch.cat(parts) for parts in zip(validation, task.test, strict=True))
    task, _, unit = replace(task, test=(both[0], both[1])).standardised()
    train, (x, y) = task.train, task.test
    held_out, test = (x[:cut], y[:cut]), (x[cut:], y[cut:])
    batch_size = 32 if n < 1000 else 64 if n < 3000 else 128 if n < 20_000 else 512
    sizes = [train[0].shape[1], HIDDEN, 1]
    networks = untrained(lambda k: mlp(sizes, activation=nn.ReLU, seed=1000 * split + k).double())
    given = problem(
        networks, train, held_out, batch_size=batch_size, learning_rate=LEARNING_RATE, seed=split
    )  # fmt: skip
    path = folder / "networks" / f"{'uci-gap' if gap else 'uci'}-{name}-{split}.safetensors"

    def trained(whole: nn.Module) -> nn.Module:
        fitted(given, STEPS)
        return whole

    shared_weights(nn.ModuleList(networks), path, trained)
    return given, test, float(unit)


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """The scores of a method on the test rows of a split."""
    given, (inputs, targets), unit = split_of(cell.data, cell.seed, gap=cell.task == "uci-gap", folder=folder)
    found = METHODS[cell.method](given)
    scores = of_numbers(found.predict(inputs), targets, unit)
    return scores | numbers(getattr(found, "diagnostics", {}), "r_hat", "ess", "divergences", "effective_dimension")


def _study(name: str, gap: bool) -> Study:
    large = LARGE, "full-batch HMC is for small sets"
    published = {} if gap else {
        data: {"dropout rmse": rmse, "dropout nll": -density} for data, (rmse, density) in DROPOUT.items()
    }  # fmt: skip
    return Study(
        name, TASKS[name], tuple(METHODS), UCI, run, SCORES, lambda data: uci_splits(data, gap=gap),
        left_out={"hmc": large}, published=published,
    )  # fmt: skip


STANDARD = _study("uci", gap=False)
GAP = _study("uci-gap", gap=True)
