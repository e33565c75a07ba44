"""Positive numbers whose noise grows with their mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log
from typing import ClassVar, final

import scipy.special
import torch
from torch import Tensor

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, check_one_each, check_positive, counted
from lapwing.bayes.likelihoods.one_output import OverOutput, elementwise, least_number
from lapwing.bayes.likelihoods.spread import Link, Spread


@final
@dataclass(frozen=True)
class Gamma(Likelihood):
    """Positive numbers with mean μ = e^f and standard deviation μ / √shape: outputs and targets are (n,), or (n, m).

    −log p is convex in the outputs, and its averages over Gaussian outputs have a closed form.

    Parameters
    ----------
    shape : float
        Shape of the Gamma distribution, one over the squared relative noise; one is the exponential distribution.

    Raises
    ------
    ValueError
        If the shape is not positive.

    Examples
    --------
    >>> import torch
    >>> Gamma(1.0).log_prob(torch.zeros(2).double(), torch.tensor([0.5, 1.5])).exp()
    tensor(0.1353, dtype=torch.float64)
    """

    shape: float = 1.0
    outputs_alone: ClassVar[bool] = True
    unit: ClassVar[str] = "output"

    def __post_init__(self) -> None:
        check_positive("shape", self.shape)

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature alone: it is exact."""
        return ("quadrature",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        values = check_one_each("Gamma()", targets, rows, "one positive number")
        wrong = ~(values > 0)
        if bool(wrong.any()):
            raise ValueError(
                f"Gamma() takes positive numbers, got {int(wrong.sum())} others, the first {float(values[wrong][0]):g}"
            )
        return values

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each target."""
        return self._constant(targets) - self.shape * (outputs + targets * (-outputs).exp())

    def _constant(self, targets: Tensor) -> Tensor:
        k = self.shape
        return k * log(k) - lgamma(k) + (k - 1) * targets.log()

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""
        return counted(self.shape * (targets * (-outputs).exp() - 1), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:  # outputs' shape
        """The diagonal of the Hessian in the outputs, which is all of it."""
        if targets is None:
            raise ValueError("the curvature of Gamma() depends on the targets, which are not known here")
        return counted(self.shape * targets * (-outputs).exp(), weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), in closed form: E e^−f = e^(v/2 − m)."""
        relative = targets * (0.5 * own_variances(mean, covariance) - mean).exp()
        return Expectation(
            self._constant(targets) - self.shape * (mean + relative), self.shape * (relative - 1),
            as_given(self.shape * relative, covariance),
        )  # fmt: skip

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> OverOutput:  # noqa: ARG002
        """The distribution of new observations, every one for itself."""
        return OverOutput(self, mean, spread.variance)

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """None, since outputs are logarithms."""
        return "outputs are logarithms of means, and noise does not add to them: use distribution.variance"

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A number for each uniform one."""
        unit = elementwise(scipy.special.gammaincinv, torch.tensor(self.shape).double(), uniform) / self.shape
        return (outputs.double().exp() * unit).to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # noqa: ARG002
        """Not known."""
        raise ValueError("a mixture of Gamma distributions has no entropy in closed form: use epistemic_variance")

    # what a prediction takes

    def cumulative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """P(number ≤ target) at known outputs."""
        relative = self.shape * targets.double().clamp_min(0) * (-outputs.double()).exp()
        return torch.special.gammainc(torch.tensor(self.shape).to(relative), relative)

    def moments(self, outputs: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of an observation whose log mean is Gaussian."""
        mean = (outputs + 0.5 * variance).exp()
        squared = mean.square() * variance.exp()  # E μ²
        return mean, (1 + 1 / self.shape) * squared - mean.square()

    def quantile(self, reached: Callable[[Tensor], Tensor], outputs: Tensor, std: Tensor) -> Tensor:
        """The least number at which a condition is met."""
        ends = torch.tensor([1e-13, 1 - 1e-13], dtype=torch.float64)
        low, high = (scipy.special.gammaincinv(self.shape, ends.numpy()) / self.shape).tolist()
        bottom = ((outputs - 9 * std).exp() * max(low, 1e-100)).clamp_min(1e-290)
        return least_number(reached, bottom, (outputs + 9 * std).exp() * high)
