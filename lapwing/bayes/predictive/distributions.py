"""Mixtures of predictive distributions that count alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, constraints

from lapwing.bayes.likelihoods.heteroscedastic import NormalMixture

HALVINGS = 60  # of the interval in which a quantile lies


def mixture_of(parts: Sequence[Distribution]) -> Distribution:
    """The mixture of distributions of one kind: labels are labels again, of normal ones it has quantiles and entropy.

    >>> float(mixture_of([Bernoulli(torch.tensor(0.2)), Bernoulli(torch.tensor(0.4))]).probs)
    0.3...
    """
    match parts[0]:
        case Categorical():
            return Categorical(logits=_mean_of_logs([part.logits for part in parts]), validate_args=False)  # type: ignore[attr-defined]
        case Bernoulli():
            yes = _mean_of_logs([torch.nn.functional.logsigmoid(part.logits) for part in parts])  # type: ignore[attr-defined]
            no = _mean_of_logs([torch.nn.functional.logsigmoid(-part.logits) for part in parts])  # type: ignore[attr-defined]
            return Bernoulli(logits=yes - no, validate_args=False)
        case Normal():
            means, stds = (torch.stack([getattr(part, name) for part in parts], -1) for name in ("loc", "scale"))
            return NormalMixture(means, stds, torch.full_like(means[..., :], 1 / len(parts)))
        case NormalMixture():
            return _joined(parts)
        case _:
            return Several(parts)


def _joined(parts: Sequence[Any]) -> NormalMixture:
    """One mixture of all components of several."""
    means = torch.cat([part.component_distribution.loc for part in parts], -1)
    stds = torch.cat([part.component_distribution.scale for part in parts], -1)
    weights = torch.cat([part.mixture_distribution.probs for part in parts], -1) / len(parts)
    return NormalMixture(means, stds, weights)


@final
class Several(Distribution):
    """A mixture of distributions whose kind is not known: what each of them can say, averaged."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts = tuple(parts)
        super().__init__(parts[0].batch_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """That of each."""
        return self.parts[0].support  # type: ignore[return-value]

    @property
    def mean(self) -> Tensor:
        """The mean of their means."""
        return torch.stack([part.mean for part in self.parts]).mean(0)

    @property
    def variance(self) -> Tensor:
        """Within them, on average, and between them."""
        within = torch.stack([part.variance for part in self.parts]).mean(0)
        return within + torch.stack([part.mean for part in self.parts]).var(0, correction=0)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log of the mean density."""
        return _mean_of_logs([part.log_prob(value) for part in self.parts])

    def cdf(self, value: Tensor) -> Tensor:
        """The mean of their cumulative probabilities."""
        return torch.stack([part.cdf(value) for part in self.parts]).mean(0)

    def icdf(self, value: Tensor) -> Tensor:
        """By bisection between the least and the largest of their quantiles; of counts the first that reaches it."""
        each = torch.stack([part.icdf(value) for part in self.parts]).double()
        low, high = each.amin(0), each.amax(0)
        counts = self.support is constraints.nonnegative_integer
        if counts:
            low = low - 1
        for _ in range(HALVINGS):
            if counts and not bool((high - low > 1).any()):
                break
            middle = ((low + high) / 2).floor() if counts else (low + high) / 2
            reached = (self.cdf(middle) >= value) & (middle > low)
            low = torch.where(reached, low, middle)
            high = torch.where(reached, middle, high)
        return high if counts else (low + high) / 2


def _mean_of_logs(values: Sequence[Tensor]) -> Tensor:
    """log of the mean of exponentials."""
    return torch.stack(list(values)).logsumexp(0) - log(len(values))
