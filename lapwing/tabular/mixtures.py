"""Predictions of several networks as a mixture with equal weights, and the shape of their errors."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import final

import torch
from torch import Tensor

HALVINGS = 60  # of the interval in which a quantile lies
FACTORS = tuple(2.0 ** (k / 2) for k in range(-6, 7))  # of standard deviations, among them one
GAUSSIAN_ROWS = 10.0  # that speak for a factor of one before any are seen, and
OTHER_ROWS = 0.1  # for each of the others, over its square where that is above one
ROUNDS = 500  # of expectation and maximisation


@final
@dataclass(frozen=True, eq=False)
class Shape:
    """Errors as a Gaussian whose standard deviation is multiplied by one of several factors at random.

    Their mean square is one, so that the shape leaves standard deviations as they are. Several factors make errors
    that are mostly smaller than those of a Gaussian, and now and then larger.
    """

    factors: Tensor  # (k, targets), or (k, 1)
    shares: Tensor  # (k, targets), or (k, 1), which sum to one

    @staticmethod
    def gaussian() -> Shape:
        """A single factor."""
        return Shape(torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))

    @staticmethod
    def of(densities: Tensor, weights: Tensor) -> Shape:  # (k, n, targets) at `FACTORS`, (n,)
        """The likeliest shares, from log densities of errors under each factor, with some rows of a Gaussian beside.

        The likelihood is concave in the shares, so that expectation and maximisation find them from anywhere.
        """
        relative = (densities - densities.amax(0)).exp()
        factors = torch.tensor(FACTORS, dtype=torch.float64)[:, None]
        before = torch.where(factors == 1, GAUSSIAN_ROWS, OTHER_ROWS / factors.square().clamp_min(1))
        shares = torch.full((len(factors), densities.shape[2]), 1 / len(factors), dtype=torch.float64)
        for _ in range(ROUNDS):
            responsible = weights[:, None] / torch.einsum("kt,knt->nt", shares, relative)
            counts = shares * torch.einsum("knt,nt->kt", relative, responsible) + before
            shares = counts / counts.sum(0)
        return Shape(factors / (shares * factors.square()).sum(0).sqrt(), shares)

    def placed(self, values: Tensor, axes: int) -> Tensor:  # (1, k, ..., targets), with `axes` axes of places
        """Factors or shares, against (members, k, *places)."""
        return values.reshape(1, len(values), *[1] * (axes - 1), values.shape[1])


@final
@dataclass(frozen=True, eq=False)
class MemberMixture:
    """One Gaussian a member, at each place, or instead of Gaussians errors of another shape."""

    means: Tensor  # (members, *places), the last axis being that of targets
    stds: Tensor  # (members, *places)
    shape: Shape

    @property
    def mean(self) -> Tensor:  # places
        """Of the mixture."""
        return self.means.mean(0)

    @property
    def std(self) -> Tensor:  # places
        """Of the mixture: within members and between them."""
        between = (self.means - self.mean).square().mean(0)
        return (self.stds.square().mean(0) + between).sqrt()

    def log_density(self, values: Tensor) -> Tensor:  # places
        """At one value for each place."""
        means, stds, shares = self.gaussians()
        each = torch.distributions.Normal(means, stds).log_prob(values) + shares.log()
        return each.flatten(0, 1).logsumexp(0) - log(len(self.means))

    def log_densities(self, values: Tensor) -> Tensor:  # (k, *places)
        """Were all errors those of one of `FACTORS`."""
        each = [torch.distributions.Normal(self.means, factor * self.stds).log_prob(values) for factor in FACTORS]
        return torch.stack([one.logsumexp(0) for one in each]) - log(len(self.means))

    def cdf(self, values: Tensor) -> Tensor:  # places
        """The probability of a smaller value."""
        means, stds, shares = self.gaussians()
        return (shares * torch.special.ndtr((values - means) / stds)).sum(1).mean(0)

    def quantile(self, probability: float) -> Tensor:  # places
        """By bisection between the least and the greatest of the Gaussians' quantiles, to round-off."""
        normal = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        means, stds, _ = self.gaussians()
        each = (means + normal * stds).flatten(0, 1)
        low = each.amin(0)
        high = each.amax(0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        return (low + high) / 2

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Between the quantiles that leave equal probabilities outside."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def gaussians(self) -> tuple[Tensor, Tensor, Tensor]:
        """All Gaussians: means (members, 1, *places), standard deviations (members, k, *places) and shares."""
        axes = self.means.ndim - 1
        stds = self.stds[:, None] * self.shape.placed(self.shape.factors, axes)
        return self.means[:, None], stds, self.shape.placed(self.shape.shares, axes)
