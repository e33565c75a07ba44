"""Successes among trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import scipy.special
import torch
from torch import Tensor
from torch.nn.functional import softplus

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, logistic, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, check_one_each, check_positive, counted
from lapwing.bayes.likelihoods.one_output import OverOutput, elementwise, least_count
from lapwing.bayes.likelihoods.spread import Link, Spread


@final
@dataclass(frozen=True)
class Binomial(Likelihood):
    """Successes among a number of trials, with the logit of their probability as output: (n,), or (n, m).

    −log p is convex in the outputs. Where trials differ from datum to datum, give proportions as the targets of
    `Binomial(1)` and the numbers of trials as weights: the posterior is the same.

    Parameters
    ----------
    trials : float or Tensor
        Number of trials of every target; a tensor is for predictions, one for each.

    Raises
    ------
    ValueError
        If the number of trials is not positive.

    Examples
    --------
    >>> import torch
    >>> Binomial(2).log_prob(torch.zeros(2).double(), torch.tensor([0.0, 1.0])).exp()
    tensor(0.1250, dtype=torch.float64)
    """

    trials: float | Tensor = 1
    is_discrete: ClassVar[bool] = True
    outputs_alone: ClassVar[bool] = True
    unit: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        check_positive("trials", self.trials)

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature alone: it is exact."""
        return ("quadrature",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        values = check_one_each("Binomial()", targets, rows, "one number of successes")
        wrong = ~((values >= 0) & (values <= self.trials))
        if bool(wrong.any()):
            raise ValueError(
                f"Binomial({self.trials:g}) takes numbers of successes from 0 to {self.trials:g}, got "
                f"{int(wrong.sum())} others, the first {float(values[wrong][0]):g}: trials= says how many there were"
            )
        return values

    def _constant(self, targets: Tensor) -> Tensor:
        """The logarithm of the binomial coefficient."""
        trials = torch.as_tensor(self.trials).to(targets)
        return torch.lgamma(trials + 1) - torch.lgamma(targets + 1) - torch.lgamma(trials - targets + 1)

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each target."""
        return targets * outputs - self.trials * softplus(outputs) + self._constant(targets)

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""
        return counted(targets - self.trials * outputs.sigmoid(), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # outputs' shape  # fmt: skip
        """The diagonal of the Hessian in the outputs, which is all of it."""
        return counted(self.trials * outputs.sigmoid() * (-outputs).sigmoid(), weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), every one for itself."""
        soft, sigma, slope = logistic(mean, own_variances(mean, covariance))
        return Expectation(
            targets * mean - self.trials * soft + self._constant(targets), targets - self.trials * sigma,
            as_given(self.trials * slope, covariance),
        )  # fmt: skip

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> OverOutput:  # noqa: ARG002
        """The distribution of new numbers of successes, every one for itself."""
        return OverOutput(self, mean, spread.variance)

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """None, since outputs are logits."""
        return "outputs are logits, and a number of successes is not one of them plus noise: use distribution.variance"

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A number of successes for each uniform number."""
        level = uniform.double()
        found = self.quantile(lambda y: self.cumulative(outputs, y) >= level, outputs.double(), torch.zeros_like(level))
        return found.to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The entropy of the mean distribution over draws less their mean entropy."""
        outputs = mean + spread.deviations()
        most = int(torch.as_tensor(self.trials).max())
        total, within = torch.zeros_like(mean), torch.zeros_like(mean)
        for count in range(most + 1):
            at = torch.full_like(mean, float(count))
            known = self.log_density(outputs, at).where(at <= self.trials, -torch.inf).exp()
            total += torch.special.entr(known.mean(0))
            within += torch.special.entr(known).mean(0)
        return (total - within).clamp_min(0)

    # what a prediction takes

    def cumulative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """P(successes ≤ target) at known outputs, by the incomplete beta function."""
        count = targets.double().floor()
        left = torch.as_tensor(self.trials).double() - count
        found = elementwise(
            scipy.special.betainc, left.clamp_min(1), count.clamp_min(0) + 1, (-outputs.double()).sigmoid()
        )
        return torch.where(count < 0, 0.0, torch.where(left > 0, found, 1.0))

    def moments(self, outputs: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of a number of successes whose logit is Gaussian."""
        _, sigma, slope = logistic(outputs, variance)
        squared = sigma - slope  # E σ², since σ′ = σ − σ²
        return self.trials * sigma, self.trials * slope + self.trials**2 * (squared - sigma.square())

    def quantile(self, reached: Callable[[Tensor], Tensor], outputs: Tensor, std: Tensor) -> Tensor:
        """The least number of successes at which a condition is met."""
        most = torch.as_tensor(self.trials).double().expand(torch.broadcast_shapes(outputs.shape, std.shape))
        return least_count(reached, most)
