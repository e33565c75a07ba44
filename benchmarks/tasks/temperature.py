"""temperature: cold posteriors of one hidden layer on MNIST, by variational inference and by Langevin dynamics.

Networks (1/N) Σ a_j relu(⟨b_j, x⟩ + c_j) with N hidden units, all weights with the prior N(0, 0.2). `vi-eta-…` and
`vi-tau-…` are mean-field Gaussians at a fixed temperature η of the likelihood and at η = τ p / N; `sgld-eta-…` is
stochastic gradient Langevin dynamics at the same, likelihood^(1/η) × prior, and `sgld-…` at (likelihood × prior)^(1/T),
the cold posterior of Wenzel et al. (2020). At η = T = 1 all are after the same. 6,000 training images; 2,000 others for
`validation_nll`, by which a temperature is to be chosen, and 2,000 test images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Generator, Tensor

from benchmarks.about import TASKS
from benchmarks.data import digits, mnist
from benchmarks.networks import Wide, seeded
from benchmarks.outcomes import Cell
from benchmarks.regressors import falling
from benchmarks.tasks.study import Study, numbers
from lapwing.bayes.likelihoods import Categorical
from lapwing.families import mcmc, variational
from lapwing.families.variational.scores import FunctionSampler

Pair = tuple[Tensor, Tensor]
Tempered = Literal["posterior", "likelihood"]
TRAIN, HELD_OUT, BATCH_SIZE, PRIOR_VARIANCE = 6000, 2000, 100, 0.2
EPOCHS, LEARNING_RATE, DRAWS = 12, 0.03, 20
CHAINS, WARMUP, KEPT, THIN, STEP = 4, 2000, 20, 25, 5e-3
TAUS, ETAS, COLD = ("1e-6", "1e-5", "1e-4", "1e-3", "1e-2"), ("1", "0.1"), ("1", "0.3", "0.1", "0.01")
COLD_LIKELIHOOD = ("0.1", "0.01")
WIDTHS = ("64", "256", "1024")


def pictures(name: str = "mnist") -> tuple[Pair, Pair, Pair]:
    """Flat training, validation and test images with labels."""
    task = digits() if name == "digits" else mnist(TRAIN + HELD_OUT, HELD_OUT)
    n, held, test = (500, 200, 200) if name == "digits" else (TRAIN, HELD_OUT, HELD_OUT)
    (x, y), (new_x, new_y) = (
        (inputs.reshape(len(inputs), -1).to(torch.float32), labels) for inputs, labels in (task.train, task.test)
    )
    return (x[:n], y[:n]), (x[n : n + held], y[n : n + held]), (new_x[:test], new_y[:test])


def network(train: Pair, hidden: int, seed: int) -> Wide:
    """The network of the theory for pictures of ten classes, at torch's own start."""
    return seeded(lambda: Wide(train[0].shape[1], hidden, 10), seed)


def by_variation(
    train: Pair, hidden: int, temperature: variational.Balanced | float, *, epochs: int = EPOCHS, seed: int = 0
) -> variational.Variational:
    """Mean-field Gaussians by Bayes by Backprop."""
    return variational.fit(
        network(train, hidden, seed), train, Categorical(), temperature=temperature, prior_variance=PRIOR_VARIANCE,
        epochs=epochs, batch_size=BATCH_SIZE, method=variational.BayesByBackprop(LEARNING_RATE), draws=DRAWS, seed=seed,
        schedule=falling, progress=False,
    )  # fmt: skip


def by_langevin(
    train: Pair, hidden: int, temperature: float, *, tempered: Tempered = "posterior", warmup: int = WARMUP,
    seed: int = 0,
) -> mcmc.Chains:  # fmt: skip
    """Chains from draws of the prior. The step is proportional to T, so that their drift is the same at every T.

    Where only the likelihood is tempered, a prior precision smaller by as much makes up for the temperature.
    """
    only_likelihood = tempered == "likelihood"
    precision = (temperature if only_likelihood else 1.0) / PRIOR_VARIANCE
    start: Literal["prior"] | list[Wide] = "prior"
    if only_likelihood:
        start = [_from_prior(network(train, hidden, seed), seed + k) for k in range(CHAINS)]
    return mcmc.fit(
        network(train, hidden, seed).eval(), train, Categorical(), temperature=temperature,
        method=mcmc.SGLD(STEP * temperature, batch_size=BATCH_SIZE), prior_precision=precision, chains=CHAINS,
        warmup=warmup, draws=KEPT, thin=THIN * warmup // WARMUP, start=start, seed=seed, progress=False,
    )  # fmt: skip


def _from_prior(model: Wide, seed: int) -> Wide:
    """The network with weights drawn from N(0, 0.2), in place."""
    generator = Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, PRIOR_VARIANCE**0.5, generator=generator)
    return model


def _vi(temperature: variational.Balanced | float, train: Pair, hidden: int, seed: int) -> FunctionSampler:
    return by_variation(train, hidden, temperature, seed=seed)


def _sgld(temperature: float, tempered: Tempered, train: Pair, hidden: int, seed: int) -> FunctionSampler:
    return by_langevin(train, hidden, temperature, tempered=tempered, seed=seed)


METHODS: dict[str, Callable[[Pair, int, int], FunctionSampler]] = {
    **{f"vi-tau-{tau}": partial(_vi, variational.Balanced(float(tau), units="hidden")) for tau in TAUS},
    **{f"vi-eta-{eta}": partial(_vi, float(eta)) for eta in ETAS},
    **{f"sgld-eta-{eta}": partial(_sgld, float(eta), "likelihood") for eta in COLD_LIKELIHOOD},
    **{f"sgld-{cold}": partial(_sgld, float(cold), "posterior") for cold in COLD},
}


def scores(found: FunctionSampler, validation: Pair, test: Pair) -> dict[str, float]:
    """Scores of the test images, and the log density of the others."""
    return {"validation_nll": variational.held_out(found, validation)["nll"], **variational.held_out(found, test)}


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """The scores of a method at one width."""
    del folder
    train, validation, test = pictures()
    found = METHODS[cell.method](train, int(cell.data), cell.seed)
    return scores(found, validation, test) | numbers(found.diagnostics, "r_hat", "ess", "divergence")  # type: ignore[attr-defined]


def _there(width: str) -> int:
    """How many seeds there are, once the files are."""
    del width
    mnist(1, 1)
    return 1000


STUDY = Study(
    "temperature", TASKS["temperature"], tuple(METHODS), WIDTHS, run,
    ("nll", "gibbs_nll", "accuracy", "ece", "confidence", "validation_nll"), _there, frozenset({"accuracy"}),
    default_seeds=1,
)  # fmt: skip
