"""Does a linearised network know more than the raw network, and does the network at sampled weights know less?

The table of Immer et al. (2021), in small: three convolutions and three linear layers, 26,794 weights, trained here on
10,000 Fashion-MNIST images (theirs: all of them, and a larger network). 400 others tune every precision, and the
temperature; 1,000 test images are scored once, and told from MNIST's. A Kronecker posterior sees all training images;
the exact one a few of them, counted as all. Networks are drawn from the Kronecker posterior: at the precision tuned
for the linearised network, and at one tuned for themselves, which can be so stiff that they are the raw network.
Seed 0 was run first, with 10 epochs, after which the network still underfits its training images (85 % right); the length
of the other seeds was set for that reason, before any of them had been run.
The rows of CIFAR-10, in small: the same layers on the same number of JPEG-compressed images (lossy: a network trained on them is
not one trained on CIFAR-10), to be told from MNIST in colour; 30 epochs, set before any was run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import harness
import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks import data
from benchmarks.classifiers import Problem
from benchmarks.networks import seeded
from lapwing import metrics
from lapwing.bayes.predictive import Prediction
from lapwing.families import point as network_alone
from lapwing.families import temperature

Pair = tuple[Tensor, Tensor]
MULTIPLES = tuple(10.0**power for power in range(7))  # of the linearised precision, for the network at sampled weights
SHORT = {"train": 10_000, "epochs": 10, "held_out": 400, "test": 1000, "few": 60}
FULL = SHORT | {"epochs": 60, "few": 150}
SMALL = {"train": 100, "epochs": 1, "held_out": 6, "test": 10, "few": 2}
CELLS: dict[str, dict[str, Any]] = {
    "fashion, small": {"name": "fashion", "seed": 0, **SMALL},
    "fashion, seed 0": {"name": "fashion", "seed": 0, **SHORT},
    **{f"fashion, 60 epochs, seed {seed}": {"name": "fashion", "seed": seed, **FULL} for seed in (1, 2)},
    **{f"CIFAR-10 (JPEG), seed {seed}": {"name": "cifar", "seed": seed, **FULL, "epochs": 30} for seed in (1, 2)},
}
SOURCES = {"fashion": data.fashion_mnist, "cifar": data.cifar10_jpeg}


def measure(name: str, seed: int, train: int, epochs: int, held_out: int, test: int, few: int) -> dict[str, Any]:
    there = {"fashion": 60_000, "cifar": 50_000}[name]
    task, validation = SOURCES[name](min(there, 20 * train), test).held_out(held_out, seed=seed)
    _, chosen = task.held_out(train, seed=seed + 1)
    channels, size = chosen[0].shape[1:3]
    given = Problem(
        lambda s: cnn(channels, size, seed=s), cnn(channels, size, seed=seed), chosen, validation, epochs, seed, few
    )
    spent = {"training": time.process_time()}
    model = given.trained(given.model).eval()
    spent["KFAC"] = time.process_time()
    alone = network_alone.fit(model, chosen, lw.Categorical())
    factored = posterior(model, chosen, validation, seed, method=lw.KFAC())
    spent["exact"] = time.process_time()
    exact = posterior(model, (chosen[0][:few], chosen[1][:few]), validation, seed, dataset_size=train)
    spent["predictions"] = time.process_time()
    precision = float(factored.prior.precision[0])
    multiple = min(MULTIPLES, key=lambda m: held_out_nll(factored.at(precision=m * precision), validation))
    stiff = factored.at(precision=multiple * precision)
    roads: dict[str, Callable[[Tensor], Prediction]] = {
        "MAP": alone.predict,
        "temperature scaling": temperature.fit(alone, validation).predict,
        "networks drawn, same precision": factored.predict_unlinearised,
        "networks drawn, own precision": stiff.predict_unlinearised,
        "linearised, KFAC": factored.predict,
        "linearised, exact on a few": exact.predict,
    }
    found = {road: scored(predict, task.test, foreign(test, channels, size)) for road, predict in roads.items()}
    ends = [*list(spent.values())[1:], time.process_time()]
    spent = {part: round(end - start, 1) for (part, start), end in zip(spent.items(), ends, strict=True)}
    rival = found["MAP"]["each"]
    for scores in found.values():
        gap = metrics.paired(scores["each"], rival)
        scores |= {"nll_over_map": gap.mean, "nll_over_map_error": gap.standard_error}
    return {
        "weights": sum(part.numel() for part in model.parameters()), "training_accuracy": fitted(model, chosen),
        "seconds_by_part": spent,
        "precision": {"KFAC": precision, "exact": float(exact.prior.precision[0])}, "multiple_for_networks": multiple,
        "method": exact.diagnostics.method,
        "edge_of_range": [one.diagnostics.edge_of_range for one in (factored, exact)],
        "roads": {road: {k: v for k, v in scores.items() if k != "each"} for road, scores in found.items()},
    }  # fmt: skip


def foreign(count: int, channels: int, size: int) -> Tensor:
    """Digits of MNIST, in as many channels and as large as the other pictures."""
    digits = data.mnist(1, count).test[0]
    margin = (size - digits.shape[-1]) // 2
    return nn.functional.pad(digits, (margin,) * 4).expand(-1, channels, -1, -1)


def cnn(channels: int, size: int, *, seed: int) -> nn.Sequential:
    """Three convolutions and three linear layers."""

    def make() -> nn.Sequential:
        sizes = ((channels, 8), (8, 16), (16, 32))
        body = [part for pair in sizes for part in (nn.Conv2d(*pair, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
        head = nn.Linear(32 * (size // 8) ** 2, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        return nn.Sequential(*body, nn.Flatten(), *head)

    return seeded(make, seed)


def posterior(model: nn.Module, pair: Pair, validation: Pair, seed: int, **options: Any) -> lw.Posterior:
    draws = 32 if len(validation[0]) > 100 else 3
    found = lw.fit(
        model, pair, lw.Categorical(), validation=validation, draws=draws, seed=seed, progress=False,
        curvature="network", **options,
    )  # fmt: skip
    return replace(found, alternative=None)  # itself, whatever held-out data would take in its place


def held_out_nll(found: lw.Posterior, validation: Pair) -> float:
    return metrics.nll(found.predict_unlinearised(validation[0]).probs.double(), validation[1])


def fitted(model: nn.Module, pair: Pair) -> float:
    with torch.no_grad():
        return metrics.accuracy(torch.cat([model(part) for part in pair[0].split(500)]).softmax(1).double(), pair[1])


def scored(predict: Callable[[Tensor], Prediction], test: Pair, strange: Tensor) -> dict[str, Any]:
    """Accuracy, NLL and ECE (15 bins) on the test images, and how well entropy tells the unfamiliar ones."""
    inside, outside = (torch.cat([predict(part).probs.double() for part in x.split(250)]) for x in (test[0], strange))
    return {
        "accuracy": metrics.accuracy(inside, test[1]), "nll": metrics.nll(inside, test[1]),
        "ece": metrics.ece(inside, test[1]),
        "auroc": metrics.auroc(metrics.entropy(inside), metrics.entropy(outside)),
        "each": metrics.nll_each(inside, test[1]),
    }  # fmt: skip


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
