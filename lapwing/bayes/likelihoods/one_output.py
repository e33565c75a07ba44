"""Observations of one Gaussian output: the mixture of a family of distributions over that output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from lapwing.bayes.likelihoods import quadrature

NODES = 257  # of an average over the output
FURTHEST = 2.0**52  # counts up to there are exact in a float


class Conditional(Protocol):
    """What is known of an observation once its output is known: elementwise, of tensors that broadcast."""

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p."""

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Its gradient in the output."""

    def cumulative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """P(observation ≤ target)."""

    def moments(self, outputs: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of an observation whose output is Gaussian."""

    def quantile(self, reached: Callable[[Tensor], Tensor], outputs: Tensor, std: Tensor) -> Tensor:
        """The least observation at which a condition is met, of outputs no further than a few `std`."""

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """An observation for each uniform number."""


@final
class OverOutput(Distribution):
    """The distribution of an observation whose output is Gaussian, by quadrature over that output.

    >>> from lapwing import Gamma
    >>> found = OverOutput(Gamma(3.0), torch.tensor([0.2]).double(), torch.tensor([0.5]).double())
    >>> [round(float(value), 3) for value in (found.mean, found.cdf(found.mean), found.icdf(torch.tensor(0.5)))]
    [1.568, 0.667, 1.052]
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real

    def __init__(self, of: Conditional, output: Tensor, variance: Tensor) -> None:
        self.of, self.output, self.output_variance = of, output, variance
        super().__init__(output.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean of an observation."""
        return self.of.moments(self.output, self.output_variance)[0]

    @property
    def variance(self) -> Tensor:
        """The variance of an observation."""
        return self.of.moments(self.output, self.output_variance)[1]

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, or log probability, of observations."""
        target = torch.as_tensor(value).double()
        shape = torch.broadcast_shapes(target.shape, self.output.shape)
        found = quadrature.log_average(
            lambda f: self.of.log_density(f, target), lambda f: self.of.gradient(f, target),
            self.output.double().expand(shape), self.output_variance.expand(shape),
        )  # fmt: skip
        return found.to(self.output)

    def cdf(self, value: Tensor) -> Tensor:
        """P(observation ≤ value)."""
        target = torch.as_tensor(value).double()
        centre, std = self.output.double(), self.output_variance.double().sqrt()
        z, weights = quadrature.nodes(NODES)
        total = torch.zeros(torch.broadcast_shapes(target.shape, centre.shape), dtype=torch.float64)
        for at, weight in zip(z.tolist(), weights.tolist(), strict=True):
            total += weight * self.of.cumulative(centre + at * std, target)
        return total.clamp(0, 1).to(self.output)

    def icdf(self, value: Tensor) -> Tensor:
        """The least observation whose cumulative probability reaches a level."""
        level = torch.as_tensor(value).double().expand(self.output.shape)
        std = self.output_variance.double().sqrt()
        found = self.of.quantile(lambda y: self.cdf(y).double() >= level, self.output.double(), std)
        return found.to(self.output)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Observations, from the global random state as all distributions of torch."""
        shape = self._extended_shape(torch.Size(sample_shape))
        normals, uniform = torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64)
        outputs = self.output.double() + self.output_variance.double().sqrt() * normals
        return self.of.sampled(outputs, uniform).to(self.output)


def least_count(reached: Callable[[Tensor], Tensor], bound: Tensor) -> Tensor:
    """The least count up to a bound that meets a condition, by bisection."""
    low, high = torch.full_like(bound, -1.0), bound.ceil().clamp_max(FURTHEST)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        moving, met = high - low > 1, reached(middle)
        low, high = torch.where(moving & ~met, middle, low), torch.where(moving & met, middle, high)
    return high


def least_number(reached: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, halvings: int = 55) -> Tensor:
    """The least positive number between two that meets a condition, by bisection of its logarithm."""
    below, above = low.log(), high.log()
    for _ in range(halvings):
        middle = 0.5 * (below + above)
        met = reached(middle.exp())
        below, above = torch.where(met, below, middle), torch.where(met, middle, above)
    return above.exp()


def elementwise(function: Callable[..., np.ndarray], *values: Tensor) -> Tensor:
    """A function of SciPy, of tensors that broadcast."""
    return torch.from_numpy(np.asarray(function(*(value.detach().double().numpy() for value in values))))
