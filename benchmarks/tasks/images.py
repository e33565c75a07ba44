"""fashion, rotated-mnist and ood: LeNet on a part of MNIST or Fashion-MNIST, judged in and out of distribution.

In ood also the ResNet-20 of corrupted-cifar, photographs against clothes.

6,000 training images, 1,000 held out for tuning, 500 test images: small enough for a laptop's evening, so absolute
numbers are not those of papers with all 60,000; every method has the same. ECE has 15 bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from benchmarks.about import TASKS
from benchmarks.classifiers import METHODS, Pair, Problem
from benchmarks.corruptions import rotate
from benchmarks.data import Task, fashion_mnist, mnist, notmnist
from benchmarks.networks import lenet
from benchmarks.outcomes import Cell
from benchmarks.scores import of_classes, of_foreign
from benchmarks.tasks import cifar
from benchmarks.tasks.study import Study, shared_weights
from lapwing.families.networks import Predictive

TRAIN, HELD_OUT, TEST, EPOCHS, FEW = 6000, 1000, 500, 12, 200
ROTATIONS = (0, 30, 60, 90, 120, 150, 180)
FOREIGN = {
    "fashion": lambda: mnist(0, TEST).test[0], "mnist": lambda: notmnist(TEST)[0],
    "cifar10": lambda: cifar.clothes(cifar.IMAGES),
}  # fmt: skip
SOURCES: dict[str, Callable[[int, int], Task]] = {"fashion": fashion_mnist, "mnist": mnist}


def problem(name: str, seed: int, folder: Path) -> tuple[Problem, Pair]:
    """The trained network of a seed, which also chooses the training images, and the test images."""
    task = SOURCES[name](60_000, TEST)
    task, held_out = task.held_out(HELD_OUT, seed=seed)
    rest, chosen = task.held_out(TRAIN, seed=seed + 1)
    del rest
    start = Problem(_network, _network(seed), chosen, held_out, EPOCHS, seed, FEW)
    path = folder / "networks" / f"{name}-{seed}.safetensors"
    return replace(start, model=shared_weights(_network(seed), path, start.trained)), task.test


def _network(seed: int) -> nn.Module:
    return lenet(seed=seed)


def _fitted(cell: Cell, folder: Path) -> tuple[Predictive, Pair]:
    trained = cell.data == "cifar10"
    given, test = cifar.problem(cell.method, cell.seed) if trained else problem(cell.data, cell.seed, folder)
    return METHODS[cell.method](given), test


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """In-distribution scores, and how well unfamiliar pictures are told apart."""
    found, (inputs, labels) = _fitted(cell, folder)
    inside = found.predict(inputs)
    foreign = of_foreign(inside, found.predict(FOREIGN[cell.data]()))
    return of_classes(inside, labels) | foreign


def run_rotated(cell: Cell, folder: Path) -> dict[str, float]:
    """Scores at every rotation of the test images, and their means."""
    found, (inputs, labels) = _fitted(cell, folder)
    each = {degrees: of_classes(found.predict(_turned(inputs, degrees)), labels) for degrees in ROTATIONS}
    scores = {f"{name}_{degrees}": one[name] for degrees, one in each.items() for name in ("nll", "ece", "accuracy")}
    means = {name: sum(one[name] for one in each.values()) / len(each) for name in ("nll", "ece")}
    return {"mean_nll": means["nll"], "mean_ece": means["ece"], **scores}


def _turned(inputs: Tensor, degrees: int) -> Tensor:
    return rotate(inputs, degrees) if degrees else inputs


def _there(name: str) -> int:
    """How many seeds there are, once the files are."""
    if name == "cifar10":
        fashion_mnist(1, 1)
        return cifar.there(name)
    SOURCES[name](1, 1)
    if name == "mnist":
        notmnist(1)
    return 1000


_CLASSES = ("nll", "ece", "accuracy", "brier")
_FOREIGN = ("auroc_entropy", "auroc_max_probability", "auroc_mutual_information", "fpr95_entropy", "aupr_entropy")
_HIGHER = frozenset({
    "accuracy", "auroc_entropy", "auroc_max_probability", "auroc_mutual_information", "aupr_entropy", "auroc_novelty",
})  # fmt: skip

# KFAC posteriors with all 60,000 images, Immer et al. 2021: accuracy, NLL, ECE and the AUROC of unfamiliar pictures
_IMMER = {
    "map nll": 0.258, "map ece": 0.017, "map auroc": 0.864, "sampled nll": 0.942, "sampled ece": 0.411,
    "sampled auroc": 0.945, "linearised nll": 0.244, "linearised ece": 0.012, "linearised auroc": 0.955,
}  # fmt: skip

_GIVEN = ("cifar10",), "the ResNet-20 is taken as it was given, and others like it would take days to train"

FASHION = Study(
    "fashion", TASKS["fashion"], tuple(METHODS),
    ("fashion",), run, (*_CLASSES, "auroc_entropy"), _there, frozenset({"accuracy", "auroc_entropy"}), default_seeds=3,
    published={"fashion": _IMMER},
)  # fmt: skip
OOD = Study(
    "ood", TASKS["ood"], tuple(METHODS),
    ("fashion", "mnist", "cifar10"), run, (*_FOREIGN, "auroc_novelty"), _there, _HIGHER - {"accuracy"}, default_seeds=3,
    left_out=dict.fromkeys(("dropout", "ensemble", "ivon"), _GIVEN),
)  # fmt: skip
ROTATED = Study(
    "rotated-mnist", TASKS["rotated-mnist"], tuple(METHODS),
    ("mnist",), run_rotated,
    ("mean_nll", "mean_ece", *(f"nll_{degrees}" for degrees in ROTATIONS)), _there, default_seeds=3,
)  # fmt: skip
