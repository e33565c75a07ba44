"""Mixtures of predictive distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, constraints

from lapwing.bayes.likelihoods.heteroscedastic import NormalMixture

HALVINGS = 60  # of the interval in which a quantile lies


def mixture_of(parts: Sequence[Distribution], shares: Sequence[float] | None = None) -> Distribution:
    """The mixture of distributions of one kind: labels are labels again, of normal ones it has quantiles and entropy.

    >>> round(float(mixture_of([Bernoulli(torch.tensor(0.2)), Bernoulli(torch.tensor(0.4))], [0.75, 0.25]).probs), 6)
    0.25
    """
    weights = torch.tensor(shares or [1 / len(parts)] * len(parts), dtype=torch.float64)
    match parts[0]:
        case Categorical():
            return Categorical(logits=_log_average([part.logits for part in parts], weights), validate_args=False)  # type: ignore[attr-defined]
        case Bernoulli():
            yes = _log_average([torch.nn.functional.logsigmoid(part.logits) for part in parts], weights)  # type: ignore[attr-defined]
            no = _log_average([torch.nn.functional.logsigmoid(-part.logits) for part in parts], weights)  # type: ignore[attr-defined]
            return Bernoulli(logits=yes - no, validate_args=False)
        case Normal():
            means, stds = (torch.stack([getattr(part, name) for part in parts], -1) for name in ("loc", "scale"))
            return NormalMixture(means, stds, weights.to(means).expand_as(means))
        case NormalMixture():
            return _joined(parts, weights)
        case _:
            return Several(parts, weights)


def _joined(parts: Sequence[Any], shares: Tensor) -> NormalMixture:
    """One mixture of all components of several."""
    means = torch.cat([part.component_distribution.loc for part in parts], -1)
    stds = torch.cat([part.component_distribution.scale for part in parts], -1)
    own = [part.mixture_distribution.probs for part in parts]
    weights = [share * probabilities for share, probabilities in zip(shares.tolist(), own, strict=True)]
    return NormalMixture(means, stds, torch.cat(weights, -1))


@final
class Several(Distribution):
    """A mixture of distributions whose kind is not known: what each of them can say, averaged."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[Distribution], shares: Tensor) -> None:
        self.parts, self.shares = tuple(parts), shares
        super().__init__(parts[0].batch_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """That of each."""
        return self.parts[0].support  # type: ignore[return-value]

    @property
    def mean(self) -> Tensor:
        """The average of their means."""
        return self._average([part.mean for part in self.parts])

    @property
    def variance(self) -> Tensor:
        """Within them, on average, and between them."""
        within = self._average([part.variance for part in self.parts])
        return within + self._average([(part.mean - self.mean).square() for part in self.parts])

    def log_prob(self, value: Tensor) -> Tensor:
        """The log of the average density."""
        return _log_average([part.log_prob(value) for part in self.parts], self.shares)

    def cdf(self, value: Tensor) -> Tensor:
        """The average of their cumulative probabilities."""
        return self._average([part.cdf(value) for part in self.parts])

    def _average(self, values: Sequence[Tensor]) -> Tensor:
        return torch.tensordot(self.shares.to(values[0]), torch.stack(list(values)), 1)

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


def _log_average(values: Sequence[Tensor], shares: Tensor) -> Tensor:
    """log of the average of exponentials."""
    stacked = torch.stack(list(values))
    return (stacked + shares.log().to(stacked).reshape(-1, *[1] * (stacked.ndim - 1))).logsumexp(0)
