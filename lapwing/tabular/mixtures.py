"""Predictions of several networks as a mixture of Gaussians with equal weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import final

import torch
from torch import Tensor

HALVINGS = 60  # of the interval in which a quantile lies


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """One Gaussian a member, at each place."""

    means: Tensor  # (members, *places)
    stds: Tensor  # (members, *places)

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
        each = torch.distributions.Normal(self.means, self.stds).log_prob(values)
        return each.logsumexp(0) - log(len(self.means))

    def cdf(self, values: Tensor) -> Tensor:  # places
        """The probability of a smaller value."""
        return torch.special.ndtr((values - self.means) / self.stds).mean(0)

    def quantile(self, probability: float) -> Tensor:  # places
        """By bisection between the least and the greatest of the members' quantiles, to round-off."""
        normal = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        each = self.means + normal * self.stds
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
