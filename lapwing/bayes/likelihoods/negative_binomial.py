"""Counts that vary more than those of Poisson."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log
from typing import ClassVar, final

import scipy.special
import torch
from torch import Tensor
from torch.nn.functional import softplus

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, logistic, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, check_one_each, check_positive, counted
from lapwing.bayes.likelihoods.one_output import OverOutput, elementwise, least_count
from lapwing.bayes.likelihoods.poisson import check_counts
from lapwing.bayes.likelihoods.spread import Link, Spread


@final
@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """Counts with mean μ = e^f and variance μ + dispersion · μ²: outputs and targets are (n,), or (n, m).

    It is Poisson's distribution with a rate that varies around μ as a Gamma variable (NB2; Cameron and Trivedi 2013).
    −log p is convex in the outputs, and its averages over Gaussian outputs are those of log(1 + eᶠ).

    Parameters
    ----------
    dispersion : float
        The relative variance of the rate; Poisson's distribution is the limit of zero.
    rates : bool
        Whether targets may be numbers between the counts, such as counts per exposure.

    Raises
    ------
    ValueError
        If the dispersion is not positive.

    Examples
    --------
    >>> import torch
    >>> NegativeBinomial(1.0).log_prob(torch.zeros(2).double(), torch.tensor([0.0, 1.0])).exp()
    tensor(0.1250, dtype=torch.float64)
    """

    dispersion: float = 1.0
    rates: bool = False
    is_discrete: ClassVar[bool] = True
    outputs_alone: ClassVar[bool] = True
    unit: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        check_positive("dispersion", self.dispersion)

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature alone: it is exact."""
        return ("quadrature",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The counts of this many outputs, or an error."""
        values = check_one_each("NegativeBinomial()", targets, rows, "one count")
        return check_counts("NegativeBinomial()", values, whole=not self.rates)

    @property
    def _size(self) -> float:
        """r = 1 / dispersion, the shape of the Gamma distribution of the rate."""
        return 1 / self.dispersion

    def _constant(self, targets: Tensor) -> Tensor:
        r = self._size
        return torch.lgamma(targets + r) - lgamma(r) - torch.lgamma(targets + 1)

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each count."""
        away = outputs - log(self._size)
        return targets * away - (targets + self._size) * softplus(away) + self._constant(targets)

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""
        share = (outputs - log(self._size)).sigmoid()
        return counted(targets - (targets + self._size) * share, weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:  # outputs' shape
        """The diagonal of the Hessian in the outputs, which is all of it."""
        if targets is None:
            raise ValueError("the curvature of NegativeBinomial() depends on the targets, which are not known here")
        away = outputs - log(self._size)
        return counted((targets + self._size) * away.sigmoid() * (-away).sigmoid(), weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), every one for itself."""
        away, total = mean - log(self._size), targets + self._size
        soft, sigma, slope = logistic(away, own_variances(mean, covariance))
        return Expectation(
            targets * away - total * soft + self._constant(targets), targets - total * sigma,
            as_given(total * slope, covariance),
        )  # fmt: skip

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> OverOutput:  # noqa: ARG002
        """The distribution of new counts, every one for itself."""
        return OverOutput(self, mean, spread.variance)

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """None, since outputs are logarithms of rates."""
        return "outputs are logarithms of rates, and a count is not one of them plus noise: use distribution.variance"

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A count for each uniform number."""
        level = uniform.double()
        found = self.quantile(lambda y: self.cumulative(outputs, y) >= level, outputs.double(), torch.zeros_like(level))
        return found.to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # noqa: ARG002
        """Not known."""
        raise ValueError("NegativeBinomial() has no entropy in closed form: use epistemic_variance of the outputs")

    # what a prediction takes

    def cumulative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """P(count ≤ target) at known outputs, by the incomplete beta function."""
        r, count = self._size, targets.double().floor()
        share = (log(r) - outputs.double()).sigmoid()
        found = elementwise(scipy.special.betainc, torch.tensor(r), count.clamp_min(0) + 1, share)
        return torch.where(count >= 0, found, 0)

    def moments(self, outputs: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of a count whose log rate is Gaussian."""
        mean = (outputs + 0.5 * variance).exp()
        squared = mean.square() * variance.exp()  # E μ²
        return mean, mean + (1 + self.dispersion) * squared - mean.square()

    def quantile(self, reached: Callable[[Tensor], Tensor], outputs: Tensor, std: Tensor) -> Tensor:
        """The least count at which a condition is met."""
        rate = (outputs + 9 * std).exp()
        return least_count(reached, (rate * (1 + 40 * self.dispersion) + 9 * rate.sqrt() + 40).expand(std.shape))
