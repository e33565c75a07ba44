"""toy: a curve with a gap, and how far each approximation is from the truth there.

A network with two hidden layers, a known noise and a known prior: all methods that have a prior share it, so that
full-batch HMC is their common truth. Scores compare draws of functions with those of HMC on a grid (`gap_distance`,
Wasserstein-1 averaged over the gap; `distance` over the whole grid), and predict fresh observations (`nll`, inside and
outside the gap alike; `gap_nll`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn

from benchmarks.about import TASKS
from benchmarks.networks import mlp
from benchmarks.outcomes import Cell
from benchmarks.regressors import Pair, best_of, falling
from benchmarks.scores import of_numbers
from benchmarks.tasks.study import Study, numbers, shared_weights
from lapwing import metrics
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.methods import KFAC, Diagonal
from lapwing.bayes.priors import Isotropic
from lapwing.facade import fit
from lapwing.families import dropout, ensemble, mcmc, swag, variational
from lapwing.families import point as network_alone
from lapwing.families.networks import Predictive
from lapwing.families.sampled import Sampled
from lapwing.network.parameters import last_layer
from lapwing.training import adam, train

NOISE_STD, PRECISION, DRAWS, EPOCHS, MEMBERS = 0.1, 1.0, 400, 1000, 10
NOISE = Gaussian(NOISE_STD)
UNITS = {"gap": 25, "small": 4}  # of both hidden layers; the second is for trying things out
CHAINS = {25: (8, 400, 50, 64), 4: (2, 40, 20, 16)}  # by units: chains, warm-up, draws, steps of a path
EDGES = ((-1.5, -0.6), (0.5, 1.4))  # where training inputs lie; the gap is between
SCORES = ("gap_distance", "distance", "nll", "gap_nll", "gap_std", "coverage")


def curve(x: Tensor) -> Tensor:
    """The truth: a wave on a slope."""
    return torch.sin(4 * x) * 0.6 + 0.4 * x


def problem(seed: int) -> tuple[Pair, Pair, Tensor]:
    """100 training pairs on both sides of the gap, 400 test pairs everywhere, and a grid."""
    generator = Generator().manual_seed(seed)

    def observed(x: Tensor) -> Pair:
        return x, curve(x) + NOISE_STD * torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def uniform(low: float, high: float, n: int) -> Tensor:
        return low + (high - low) * torch.rand(n, 1, generator=generator, dtype=torch.float64)

    train = observed(torch.cat([uniform(*ends, 50) for ends in EDGES]))
    test = observed(uniform(EDGES[0][0], EDGES[1][1], 400))
    return train, test, torch.linspace(-1.8, 1.7, 71, dtype=torch.float64)[:, None]


def make(seed: int, units: int) -> nn.Module:
    """The network."""
    return mlp([1, units, units, 1], seed=seed).double()


def units_of(model: nn.Module) -> int:
    """How many units the hidden layers of a network from `make` have."""
    return int(next(weight for weight in model.parameters() if weight.ndim == 1).numel())


def trained(model: nn.Module, data: Pair, seed: int) -> nn.Module:
    """The mode of the posterior, by Adam with a falling rate."""
    return train(
        model, data, NOISE, epochs=EPOCHS, batch_size=50, optimiser=adam(0.01), schedule=falling,
        prior_precision=PRECISION, seed=seed, progress=False,
    )  # fmt: skip


def _linear(**options: Any) -> Callable[..., Predictive]:
    def method(model: nn.Module, data: Pair, seed: int) -> Predictive:
        select = last_layer(model) if options.get("head") else None
        return fit(
            model, data, NOISE, prior=Isotropic(PRECISION), method=options.get("method"), select=select, draws=DRAWS,
            seed=seed, progress=False,
        )  # fmt: skip

    return method


def _sampled(model: nn.Module, data: Pair, seed: int) -> Predictive:
    posterior = fit(model, data, NOISE, prior=Isotropic(PRECISION), draws=DRAWS, seed=seed, progress=False)
    return Sampled(posterior)


def _ensemble(model: nn.Module, data: Pair, seed: int) -> Predictive:
    others = [
        trained(make(1000 * (seed + 1) + k, units_of(model)), data, 1000 * (seed + 1) + k) for k in range(1, MEMBERS)
    ]
    return ensemble.of([model, *others], data, NOISE)


def _dropout(model: nn.Module, data: Pair, seed: int) -> Predictive:
    copy, (x, y) = dropout.insert(make(seed, units_of(model)), 0.1), data
    found = train(
        copy, (x, y), NOISE, epochs=EPOCHS, batch_size=50, optimiser=adam(0.01), schedule=falling, seed=seed,
        progress=False,
    )  # fmt: skip
    return dropout.fit(found, data, NOISE, draws=DRAWS, seed=seed)


def _swag(model: nn.Module, data: Pair, seed: int) -> Predictive:
    def at(rate: float) -> Callable[[], Predictive]:
        return lambda: swag.fit(
            model, data, NOISE, epochs=100, learning_rate=rate, batch_size=10, prior_precision=PRECISION, draws=DRAWS,
            seed=seed, progress=False,
        )  # fmt: skip

    held_out = problem(seed + 10_000)[0]  # fresh data of the same kind, outside the gap
    return best_of(map(at, (1e-5, 1e-4, 1e-3, 3e-3)), held_out)


def _variational(model: nn.Module, data: Pair, seed: int) -> Predictive:
    return variational.fit(
        model, data, NOISE, temperature=1.0, prior_variance=1 / PRECISION, epochs=EPOCHS, batch_size=50,
        method=variational.BayesByBackprop(0.01), initial_std=0.02, schedule=falling, draws=DRAWS, seed=seed,
        progress=False,
    )  # fmt: skip


def _hmc(model: nn.Module, data: Pair, seed: int) -> Predictive:
    chains, warmup, draws, steps = CHAINS[units_of(model)]
    return mcmc.fit(
        model, data, NOISE, prior_precision=PRECISION, method=mcmc.HMC(max_steps=steps), chains=chains, warmup=warmup,
        draws=draws, thin=4, seed=seed, progress=False,
    )  # fmt: skip


METHODS: dict[str, Callable[[nn.Module, Pair, int], Predictive]] = {
    "map": lambda model, data, _: network_alone.fit(model, data, NOISE),
    "linearised": _linear(),
    "last-layer": _linear(head=True),
    "diagonal": _linear(method=Diagonal()),
    "kfac": _linear(method=KFAC()),
    "sampled": _sampled,
    "dropout": _dropout,
    "ensemble": _ensemble,
    "swag": _swag,
    "variational": _variational,
    "hmc": _hmc,
}


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """The distance of a method's draws from HMC's, and its scores on fresh data."""
    train_data, (inputs, targets), grid = problem(cell.seed)
    start = make(cell.seed, UNITS[cell.data])
    path = folder / "networks" / f"toy-{UNITS[cell.data]}-{cell.seed}.safetensors"
    model = shared_weights(start, path, lambda network: trained(network, train_data, cell.seed))
    found = METHODS[cell.method](model, train_data, cell.seed)
    truth = _truth(cell, model, train_data, grid, folder)
    drawn = found.functions(grid)[:, :, 0]  # type: ignore[attr-defined]
    distance = metrics.wasserstein(drawn, truth)
    gap = (grid[:, 0] > EDGES[0][1]) & (grid[:, 0] < EDGES[1][0])
    inside = (inputs[:, 0] > EDGES[0][1]) & (inputs[:, 0] < EDGES[1][0])
    whole = of_numbers(found.predict(inputs), targets)
    in_gap = of_numbers(found.predict(inputs[inside]), targets[inside])
    return {
        "gap_distance": float(distance[gap].mean()), "distance": float(distance.mean()),
        "gap_std": float(found.predict(grid[gap]).epistemic_variance.sqrt().mean()), "gap_nll": in_gap["nll"], **whole,
        **numbers(getattr(found, "diagnostics", {}), "r_hat", "ess", "divergences"),
    }  # fmt: skip


def _truth(cell: Cell, model: nn.Module, data: Pair, grid: Tensor, folder: Path) -> Tensor:
    """Draws of an HMC run of its own, with another seed than the method's: shared by the cells of a seed."""
    path = folder / "truth" / f"toy-{UNITS[cell.data]}-{cell.seed}.safetensors"
    if path.exists():
        return load_file(path)["draws"]
    drawn = _hmc(model, data, 777 + cell.seed).functions(grid)[:, :, 0]  # type: ignore[attr-defined]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{id(drawn)}.tmp")
    save_file({"draws": drawn.contiguous()}, fresh)
    fresh.replace(path)
    return drawn


STUDY = Study(
    "toy", TASKS["toy"],
    tuple(METHODS), tuple(UNITS), run, (*SCORES, "r_hat"), lambda _: 1000, default_seeds=3,
)  # fmt: skip
