"""Several sets of weights of one network that count alike: what ensembles, SWAG and Markov chains end in."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.predictive import Prediction, from_draws
from lapwing.network.input_tree import Sample, as_inputs, outputs_at
from lapwing.network.shuffling import Source
from lapwing.training import Weights

BATCH = 1000
ROUNDS = 1000  # of expectation and maximisation, at most
NO_PRIOR = "no prior over functions is known here, so there is no novelty: use entropy or mutual_information"


class Predictive(Protocol):
    """Whatever predicts: a lapwing posterior, or any of the families."""

    def predict(self, inputs: Any) -> Prediction:
        """The predictive distribution at new inputs."""


@final
@dataclass(frozen=True, eq=False)
class Networks:
    """A network with several sets of weights; its functions are what each of them computes.

    As a mixture (`mixture=True`) the sets are all there is and the variance is theirs; as draws from a posterior they
    stand for more, and the variance has n − 1 in it.
    """

    model: nn.Module  # a copy in eval mode, whose own weights do not matter
    weights: Weights  # parameters and buffers by name, each (sets, *shape)
    likelihood: Likelihood
    prior: Weights | str = NO_PRIOR  # sets of weights drawn from the prior, or why there is none
    mixture: bool = False
    seed: int = 0
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of sets."""
        return len(next(iter(self.weights.values())))

    def functions(self, inputs: Any) -> Tensor:  # (sets, *outputs)
        """The outputs of every set: joint draws, the same at every call and for every batch."""
        return outputs_of(self.model, self.weights, as_inputs(inputs))

    def predict(self, inputs: Any) -> Prediction:
        """The predictive distribution at new inputs; probabilities are averages over the sets."""
        inputs = as_inputs(inputs)
        prior = self.prior if isinstance(self.prior, str) else outputs_of(self.model, self.prior, inputs)
        return from_draws(self.functions(inputs), self.likelihood, prior, mixture=self.mixture, seed=self.seed)


def outputs_of(model: nn.Module, weights: Weights, inputs: Sample) -> Tensor:  # (sets, *outputs)
    """What a network computes with every one of several sets of weights."""
    found, sets = [], len(next(iter(weights.values())))
    with torch.no_grad():
        for number in range(sets):
            one = {name: tensor[number] for name, tensor in weights.items()}
            found.append(torch.cat([outputs_at(model, one, part) for part in inputs.split(BATCH)]))
    return torch.stack(found)


def values(model: nn.Module) -> Weights:
    """Copies of a network's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def stacked(sets: list[Weights]) -> Weights:
    """Sets of weights as one tensor per name, with an axis in front."""
    return {name: torch.stack([one[name] for one in sets]) for name in sets[0]}


def evaluated(model: nn.Module) -> nn.Module:
    """A copy in eval mode that needs no gradients."""
    return deepcopy(model).eval().requires_grad_(False)


def with_noise(found: Any, data: Any) -> Likelihood:
    """The likelihood of something with `likelihood` and `functions`, its Gaussian noise tuned where it is not given."""
    likelihood: Likelihood = found.likelihood
    if not likelihood.tunes_noise:
        return likelihood
    pairs = list(Source.of(data).pairs(BATCH))
    functions = torch.cat([found.functions(inputs) for inputs, _ in pairs], dim=1)
    targets = torch.cat([targets for _, targets in pairs])
    targets = targets.reshape(functions.shape[1:]).to(functions)
    return likelihood.with_tuned(best_noise(functions, targets, per_output=likelihood.per_output))


def best_noise(functions: Tensor, targets: Tensor, *, per_output: bool = False) -> Tensor:  # () or (c,)
    """The noise_std that maximises Σ log p(targets), p the average of N(functions, noise_std²) over sets of weights.

    One for all outputs, or one for each: these are found together, as one datum's outputs belong to one function, and
    from the best noise of each output alone. Functions are (sets, n, …). It is the density of the mixture itself, not
    of the Gaussian with its moments: that one has no need of noise where the sets lie far apart, and a set of weights
    without noise predicts nothing.

    >>> best_noise(torch.zeros(1, 4), torch.tensor([1.0, -1.0, 2.0, 0.0])).square()
    tensor(1.5000, dtype=torch.float64)
    """
    if per_output and targets.ndim > 1:
        columns = zip(functions.unbind(2), targets.unbind(1), strict=True)
        return _together(functions, targets, torch.stack([best_noise(*column) for column in columns]))
    squares = (targets - functions).double().square().reshape(len(functions), len(targets), -1)
    if len(functions) == 1:
        return squares.mean().sqrt()
    outputs, squares = squares.shape[2], squares.sum(2)  # one datum's outputs belong to one function

    def loss(log_variance: float) -> float:
        each = (-squares / (2 * float(np.exp(log_variance)))).logsumexp(0)
        return outputs * log_variance / 2 - float(each.mean())

    ends = squares.amin(0).mean(), squares.amax(0).mean()  # at the best one the noise is a weighted mean of squares
    low, high = (float((end / outputs).clamp_min(1e-300).log()) for end in ends)
    grid = np.linspace(low, high, 30)
    start = grid[int(np.argmin([loss(value) for value in grid]))]
    near = (start - (grid[1] - grid[0]) - 1e-9, start + (grid[1] - grid[0]) + 1e-9)
    best = scipy.optimize.minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-7})
    return torch.tensor(float(np.exp(best.x / 2)), dtype=torch.float64)


def _together(functions: Tensor, targets: Tensor, start: Tensor) -> Tensor:  # (c,)
    """One noise_std for each output by expectation and maximisation, which never lowers the density.

    A round finds the share of every set in each datum, and then the mean squares that are weighted with it.
    """
    squares = (targets - functions).double().square()
    squares = squares.reshape(*squares.shape[:3], -1)  # (sets, n, c, others of an output)
    width, squares, variance = squares.shape[3], squares.sum(3), start.square().clamp_min(1e-300)
    for _ in range(ROUNDS):
        energy = (squares / (2 * variance)).clamp_max(1e300).sum(2)
        shares = (-energy).softmax(0)
        before, variance = variance, torch.einsum("sn,snc->c", shares, squares) / (squares.shape[1] * width)
        variance = variance.clamp_min(1e-300)
        if float((variance / before).log().abs().max()) < 1e-10:
            break
    return variance.sqrt()
