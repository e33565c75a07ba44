"""SWAG (Maddox et al. 2019): a Gaussian through the iterates of stochastic gradient descent around a trained network.

Half of the covariance is diagonal, half is of low rank, from the last iterates; one normal vector moves all layers of a
draw together. Statistics of BatchNorm are estimated anew for every draw.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.families.networks import Networks, evaluated, stacked, values, with_noise
from lapwing.network.input_tree import outputs_at
from lapwing.network.parameters import Layout, check_model
from lapwing.network.shuffling import Source
from lapwing.runtime.progress import Report
from lapwing.training import Descent, Weights, loop, objective

__all__ = ["fit"]

Covariance = Literal["low rank", "diagonal"]


@final
@dataclass(frozen=True, eq=False)
class Iterates:
    """The moments of n collected weight vectors, and the last few of them.

    Variances are unbiased: n − 1 in the diagonal, and K (n − 1) / n for K kept columns around the mean of all n, which
    is K − 1 where all are kept.
    """

    count: int
    mean: Tensor  # (p,)
    squares: Tensor  # (p,), sum of squared deviations from the mean
    last: Tensor  # (p, K)

    @staticmethod
    def none(size: Tensor) -> Iterates:
        """Nothing collected yet."""
        zero = torch.zeros_like(size)
        return Iterates(0, zero, zero.clone(), zero.new_zeros(len(zero), 0))

    def add(self, weights: Tensor, rank: int) -> Iterates:
        """With one vector more (Welford 1962)."""
        count = self.count + 1
        mean = self.mean + (weights - self.mean) / count
        squares = self.squares + (weights - self.mean) * (weights - mean)
        last = torch.cat([self.last, weights[:, None]], dim=1)[:, -rank:] if rank else self.last
        return Iterates(count, mean, squares, last)

    @property
    def variance(self) -> Tensor:  # (p,)
        """The variance of every weight over the iterates."""
        return self.squares / (self.count - 1)

    @property
    def root(self) -> Tensor:  # (p, K)
        """R with R Rᵀ the covariance of the last iterates around the mean of all of them."""
        kept = self.last.shape[1]
        return (self.last - self.mean[:, None]) / (kept * (self.count - 1) / self.count) ** 0.5

    def draw(self, noise: Noise, columns: int, covariance: Covariance) -> Tensor:  # (p, columns)
        """Draws from N(mean, ½ diag(variance) + ½ R Rᵀ), or from N(mean, diag(variance))."""
        p, kept = len(self.mean), self.last.shape[1]
        normals = noise.rows(0, p + kept, columns).to(self.mean)
        alone = self.variance.clamp_min(0).sqrt()[:, None] * normals[:p]
        if covariance == "diagonal":
            return self.mean[:, None] + alone
        return self.mean[:, None] + (alone + self.root @ normals[p:]) / 2**0.5


def fit(
    model: nn.Module, data: Any, likelihood: Likelihood, *, epochs: int = 20, learning_rate: float = 0.01,
    momentum: float = 0.9, prior_precision: float = 0.0, batch_size: int = 128, rank: int = 20, per_epoch: int = 1,
    covariance: Covariance = "low rank", validation: Any = None, draws: int = 30, seed: int = 0,
    checkpoint: str | Path | None = None, progress: bool | Report | None = None,
) -> Networks:  # fmt: skip
    """Go on training a copy of a trained network by SGD at a constant rate, and draw from the Gaussian of its iterates.

    `per_epoch` iterates are collected in each epoch and `rank` of them kept. The learning rate is that of the mean loss
    of a batch; too small a one gives no width and too large a one leaves the valley: choose it on held-out data. The
    noise of a Gaussian counts as one in the loss where it is not given, and is then tuned for the draws on `validation`
    or the training data. The model itself is not changed.

    Parameters
    ----------
    model : nn.Module
        A trained network in eval mode; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    epochs : int
        Passes over the data.
    learning_rate : float
        Of the optimiser.
    momentum : float
        Of SGD.
    prior_precision : float
        Precision of a Gaussian prior on the weights: weight decay times the number of data.
    batch_size : int
        Data in each batch.
    rank : int
        Iterates that are kept.
    per_epoch : int
        Iterates that are collected in an epoch.
    covariance : str
        "low rank" or "diagonal".
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    draws : int
        Posterior draws.
    seed : int
        Of the order of the data and of all draws.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Networks
        Networks drawn from the Gaussian, with `predict`.

    Raises
    ------
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> x = torch.linspace(-1, 1, 30)[:, None]
    >>> found = fit(nn.Linear(1, 1).eval(), (x, 2 * x), Gaussian(), epochs=8, batch_size=5, draws=6, progress=False)
    >>> found.functions(x).shape, found.diagnostics["iterates"]
    (torch.Size([6, 30, 1]), 8)
    """
    _check(model, epochs, rank, per_epoch, draws, covariance)
    found, base = collect(
        model, data, likelihood, epochs=epochs, learning_rate=learning_rate, momentum=momentum,
        prior_precision=prior_precision, batch_size=batch_size, rank=rank if covariance == "low rank" else 0,
        per_epoch=per_epoch, seed=seed, checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
    layout = Layout.of(model)
    columns = found.draw(Noise(seed, SAMPLE), draws, covariance)
    sets = [{**base, **layout.unflatten(column)} for column in columns.unbind(1)]
    normalised = any(isinstance(module, _BatchNorm) for module in model.modules())
    if normalised:
        sets = [re_estimated(model, one, data, batch_size) for one in sets]
    about = {
        "iterates": found.count, "rank": found.last.shape[1], "covariance": covariance,
        "batch_norm_re_estimated": normalised, "mean_std": float(found.variance.clamp_min(0).sqrt().mean()),
    }  # fmt: skip
    drawn = Networks(evaluated(model), stacked(sets), likelihood, seed=seed, diagnostics=about)
    return replace(drawn, likelihood=with_noise(drawn, data if validation is None else validation))


def collect(
    model: nn.Module, data: Any, likelihood: Likelihood, *, epochs: int, learning_rate: float, momentum: float,
    prior_precision: float, batch_size: int, rank: int, per_epoch: int, seed: int = 0,
    checkpoint: str | Path | None = None, progress: bool | Report | None = None,
) -> tuple[Iterates, Weights]:  # fmt: skip
    """The moments of the iterates, and the tensors of the network that are not among them."""
    copy, source, layout = deepcopy(model).train(), Source.of(data), Layout.of(model)
    tensors = values(copy)
    loss = objective(copy, likelihood, layout.names, prior_precision / source.size)
    descent = Descent(
        loss, {name: tensors[name] for name in layout.names},
        lambda weights: torch.optim.SGD(weights, lr=learning_rate, momentum=momentum),
        kept={name: tensor for name, tensor in tensors.items() if name not in layout.names},
    )  # fmt: skip
    learner = Collector(descent, layout, rank, -(-source.size // batch_size), per_epoch)
    settings = {"rank": rank, "per_epoch": per_epoch, "learning_rate": learning_rate, "momentum": momentum}
    loop(
        learner, source, epochs=epochs, batch_size=batch_size, seed=seed, checkpoint=checkpoint, progress=progress,
        settings={**settings, "prior_precision": prior_precision},
    )  # fmt: skip
    return learner.found, {name: tensor for name, tensor in tensors.items() if name not in layout.names}


@final
@dataclass(eq=False)
class Collector:
    """Descent that notes its weights several times an epoch, the last time at its end."""

    descent: Descent
    layout: Layout
    rank: int
    steps: int  # per epoch
    per_epoch: int

    def __post_init__(self) -> None:
        self.done = 0
        self.found = Iterates.none(self._flat())

    def _flat(self) -> Tensor:
        return self.layout.flatten({name: tensor.detach() for name, tensor in self.descent.current.items()})

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """One step, noted where it is time."""
        loss = self.descent.step(inputs, targets, generator, done)
        place = self.done % self.steps
        self.done += 1
        if (place + 1) * self.per_epoch // self.steps > place * self.per_epoch // self.steps:
            self.found = self.found.add(self._flat(), self.rank)
        return loss

    def weights(self) -> Weights:
        """The weights as they are now."""
        return self.descent.weights()

    def state(self) -> dict[str, Any]:
        """The descent and what was collected."""
        found = self.found
        kept = {"count": found.count, "mean": found.mean, "squares": found.squares, "last": found.last}
        return {"descent": self.descent.state(), "done": self.done, "iterates": kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.descent.restore(state["descent"])
        self.done, self.found = state["done"], Iterates(**state["iterates"])


def re_estimated(model: nn.Module, weights: Weights, data: Any, batch_size: int) -> Weights:
    """The weights with the statistics of BatchNorm layers averaged over one pass through the data."""
    copy = evaluated(model)
    fresh = {name: tensor.clone() for name, tensor in weights.items()}
    for place, module in copy.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.train()
            module.momentum = None  # the plain average of all batches
            start = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
            for name, value in start.items():
                fresh[f"{place}.{name}" if place else name].fill_(value)
    with torch.no_grad():
        for inputs, _ in Source.of(data).in_order(batch_size):
            outputs_at(copy, fresh, inputs)
    return fresh


def _check(model: nn.Module, epochs: int, rank: int, per_epoch: int, draws: int, covariance: str) -> None:
    check_model(model)
    if epochs * per_epoch < 2 or per_epoch < 1 or rank < 1 or draws < 2:
        raise ValueError(
            f"epochs is {epochs}, per_epoch {per_epoch}, rank {rank} and draws {draws}: a variance takes at least two "
            "iterates, one of rank, and two draws"
        )
    if covariance not in ("low rank", "diagonal"):
        raise ValueError(f"covariance is {covariance!r}, expected 'low rank' or 'diagonal'")
