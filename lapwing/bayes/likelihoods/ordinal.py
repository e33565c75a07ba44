"""Levels that have an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import softplus

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, logistic, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, check_one_each, counted
from lapwing.bayes.likelihoods.spread import Link, Spread

FAR = 1e4  # stands for the thresholds below the first level and above the last


@final
@dataclass(frozen=True)
class Ordinal(Likelihood):
    """Levels 0, 1, …, K with one output f each: P(level ≤ k) = σ(threshold k − f), for (n,) or (n, m) outputs.

    This is the cumulative logit, or proportional odds (McCullagh 1980). −log p is convex in the outputs: with u and l
    the thresholds around a level less the output, σ(u) − σ(l) = σ(u) σ(−l) (1 − e^(l − u)), so that averages over
    Gaussian outputs are those of log(1 + eᶠ).

    Parameters
    ----------
    thresholds : tuple of float
        Between the levels, in rising order: one fewer than levels.

    Raises
    ------
    ValueError
        If the thresholds do not rise.

    Examples
    --------
    >>> import torch
    >>> Ordinal((-1.0, 1.0)).log_prob(torch.zeros(1).double(), torch.tensor([1.0])).exp()
    tensor(0.4621, dtype=torch.float64)
    """

    thresholds: tuple[float, ...] = (0.0,)
    is_discrete: ClassVar[bool] = True
    outputs_alone: ClassVar[bool] = True
    unit: ClassVar[str] = "level"

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", tuple(float(value) for value in self.thresholds))
        pairs = zip(self.thresholds, self.thresholds[1:], strict=False)
        if not self.thresholds or not all(low < high for low, high in pairs):
            raise ValueError(f"thresholds are {self.thresholds}, expected one or more numbers in rising order")

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.thresholds) + 1

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature alone: it is exact."""
        return ("quadrature",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The levels of this many outputs, or an error."""
        values = check_one_each("Ordinal()", targets, rows, "one level")
        wrong = ~((values >= 0) & (values < self.levels) & (values == values.round()))
        if bool(wrong.any()):
            raise ValueError(
                f"Ordinal() with {len(self.thresholds)} thresholds takes levels 0 to {self.levels - 1}, got "
                f"{int(wrong.sum())} other values, the first {float(values[wrong][0]):g}"
            )
        return values

    def around(self, targets: Tensor) -> tuple[Tensor, Tensor]:  # targets' shape each
        """The thresholds above and below each level."""
        edges = torch.tensor([-FAR, *self.thresholds, FAR]).to(targets)
        level = targets.long()
        return edges[level + 1], edges[level]

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each level."""
        above, below = self.around(targets)
        return _gap(above - below) - softplus(outputs - above) - softplus(below - outputs)

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""
        above, below = self.around(targets)
        return counted((below - outputs).sigmoid() - (outputs - above).sigmoid(), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:  # outputs' shape
        """The diagonal of the Hessian in the outputs, which is all of it."""
        if targets is None:
            raise ValueError("the curvature of Ordinal() depends on the targets, which are not known here")
        parts = [(edge - outputs).sigmoid() * (outputs - edge).sigmoid() for edge in self.around(targets)]
        return counted(parts[0] + parts[1], weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), every one for itself."""
        variance = own_variances(mean, covariance)
        above, below = self.around(targets)
        over, over_slope, over_curve = logistic(mean - above, variance)
        under, under_slope, under_curve = logistic(below - mean, variance)
        return Expectation(
            _gap(above - below) - over - under, under_slope - over_slope, as_given(over_curve + under_curve, covariance)
        )

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> Levels:  # noqa: ARG002
        """The distribution of new levels, every one for itself."""
        return Levels(self.level_probabilities(mean, spread.variance))

    def level_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:  # (…, levels)
        """The probability of every level, averaged over Gaussian outputs."""
        edges = torch.tensor(self.thresholds).to(mean)
        shape = (*mean.shape, len(edges))
        below = logistic(edges - mean[..., None], variance[..., None].expand(shape))[1]
        return torch.diff(below, prepend=torch.zeros_like(below[..., :1]), append=torch.ones_like(below[..., :1]))

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """None, since outputs are logits."""
        return "outputs are logits, and a level is not one of them plus noise: use distribution.variance"

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A level for each uniform number."""
        edges = torch.tensor(self.thresholds).to(outputs)
        return (uniform[..., None] > (edges - outputs[..., None]).sigmoid()).sum(-1).to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The entropy of the mean probabilities over draws less their mean entropy."""
        outputs = mean + spread.deviations()
        known = self.level_probabilities(outputs, torch.zeros_like(outputs)).clamp_min(0)
        total = torch.special.entr(known.mean(0)).sum(-1)
        return (total - torch.special.entr(known).sum(-1).mean(0)).clamp_min(0)


@final
class Levels(Distribution):
    """Levels 0, 1, … with probabilities, as numbers: they have a mean and quantiles."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.nonnegative_integer

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs.clamp_min(torch.finfo(probs.dtype).tiny)
        super().__init__(probs.shape[:-1], validate_args=False)

    @property
    def _levels(self) -> Tensor:
        return torch.arange(self.probs.shape[-1]).to(self.probs)

    @property
    def mean(self) -> Tensor:
        """The mean level."""
        return self.probs @ self._levels

    @property
    def variance(self) -> Tensor:
        """The variance of the level."""
        return (self.probs * (self._levels - self.mean[..., None]).square()).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log probability of levels."""
        level = torch.as_tensor(value).long()
        shape = torch.broadcast_shapes(level.shape, self.batch_shape)
        chosen = self.probs.expand(*shape, -1).gather(-1, level.expand(shape)[..., None])
        return chosen[..., 0].log()

    def cdf(self, value: Tensor) -> Tensor:
        """P(level ≤ value)."""
        below = self._levels <= torch.as_tensor(value).to(self.probs)[..., None]
        return (self.probs * below).sum(-1).clamp_max(1)

    def icdf(self, value: Tensor) -> Tensor:
        """The least level whose cumulative probability reaches one that is given."""
        level = torch.as_tensor(value).to(self.probs)[..., None]
        return (self.probs.cumsum(-1)[..., :-1] < level).sum(-1).to(self.probs)

    def entropy(self) -> Tensor:
        """In nats."""
        return torch.special.entr(self.probs).sum(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Levels, from the global random state as all distributions of torch."""
        shape = self._extended_shape(torch.Size(sample_shape))
        uniform = torch.rand(shape, dtype=self.probs.dtype)
        return (uniform[..., None] > self.probs.cumsum(-1)[..., :-1]).sum(-1).to(self.probs)


def _gap(width: Tensor) -> Tensor:
    """log(1 − e^−width)."""
    return (-(-width).expm1()).log()
