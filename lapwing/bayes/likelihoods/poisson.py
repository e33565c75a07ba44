"""Counts."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log, pi
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from lapwing.bayes.likelihoods import quadrature
from lapwing.bayes.likelihoods.expectation import Expectation, as_given, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, check_one_each, counted
from lapwing.bayes.likelihoods.spread import Link, Spread

SUMMED = 256  # counts below are summed one by one, those above are smooth enough for an integral
LARGE = 1e7  # counts times the variance of their log rate, beyond which they are as spread as the rate


@final
@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts 0, 1, 2, … with the logarithm of their rate as output: outputs and targets are (n,), or (n, m).

    −log p is convex in the outputs, so B is its Hessian, the rate. A log exposure is added to the outputs, inside the
    network. Predictions have a log-normal rate: its mean is known in closed form, densities by quadrature.

    Parameters
    ----------
    rates : bool
        Whether targets may be numbers between the counts, such as counts per exposure that are weighted by it.

    Examples
    --------
    >>> Poisson().log_prob(torch.zeros(2).double(), torch.tensor([0.0, 1.0])).exp()
    tensor(0.1353, dtype=torch.float64)
    """

    rates: bool = False
    is_discrete: ClassVar[bool] = True
    outputs_alone: ClassVar[bool] = True
    unit: ClassVar[str] = "count"

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature alone: it is exact."""
        return ("quadrature",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The counts of this many outputs, or an error."""
        values = check_one_each("Poisson()", targets, rows, "one count")
        return check_counts("Poisson()", values, whole=not self.rates)

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each count."""
        return targets * outputs - outputs.exp() - torch.lgamma(targets + 1)

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs, y − rate."""
        return counted(targets - outputs.exp(), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # outputs' shape  # fmt: skip
        """The diagonal of the Hessian in the outputs, which is all of it: the rates."""
        return counted(outputs.exp(), weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), in closed form: the mean rate is e^(m + v/2)."""
        rate = (mean + 0.5 * own_variances(mean, covariance)).exp()
        return Expectation(
            targets * mean - rate - torch.lgamma(targets + 1), targets - rate, as_given(rate, covariance)
        )

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> LogNormalPoisson:  # noqa: ARG002
        """The distribution of new counts, every one for itself."""
        return LogNormalPoisson(mean, spread.variance)

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """None, since outputs are logarithms of rates."""
        return (
            "outputs are logarithms of rates, and a count is not one of them plus noise: use distribution.variance of "
            "the counts, or entropy − mutual_information"
        )

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A count for each uniform number."""
        rate, level = outputs.double().exp(), uniform.double()
        bound = rate + 9 * rate.sqrt() + 40
        return _first_count(lambda count: torch.special.gammaincc(count + 1, rate), level, bound).to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The entropy of a count less its mean entropy at known rates."""
        z, weights = quadrature.nodes()
        rates = (mean.double()[..., None] + spread.variance.double().sqrt()[..., None] * z).exp()
        within = (poisson_entropy(rates) * weights).sum(-1).to(mean)
        return (LogNormalPoisson(mean, spread.variance).entropy() - within).clamp_min(0)


@final
class LogNormalPoisson(Distribution):
    """A count whose log rate is Gaussian: the mixture of Poisson distributions that a Gaussian output makes.

    >>> found = LogNormalPoisson(torch.tensor([1.0]).double(), torch.tensor([0.5]).double())
    >>> counts = torch.arange(3000.0).double()[:, None]
    >>> mean = (counts * found.log_prob(counts).exp()).sum()
    >>> torch.allclose(mean, found.mean)
    True
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.nonnegative_integer

    def __init__(self, log_rate: Tensor, variance: Tensor) -> None:
        self.log_rate, self.log_variance = log_rate, variance
        super().__init__(log_rate.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean rate, e^(m + v/2)."""
        return (self.log_rate + 0.5 * self.log_variance).exp()

    @property
    def variance(self) -> Tensor:
        """That of a count at a known rate, on average, and that of the rate."""
        return self.mean + self.mean.square() * self.log_variance.expm1()

    def log_prob(self, value: Tensor) -> Tensor:
        """The log probability of counts."""
        count = torch.as_tensor(value).double()
        shape = torch.broadcast_shapes(count.shape, self.log_rate.shape)
        found = quadrature.log_average(
            lambda f: count * f - f.exp(), lambda f: count - f.exp(), self.log_rate.double().expand(shape),
            self.log_variance.expand(shape),
        )  # fmt: skip
        exact = found - torch.lgamma(count + 1)
        return torch.where(count * self.log_variance.clamp_max(1) > LARGE, self._of_rate(count), exact).to(
            self.log_rate
        )

    def _of_rate(self, count: Tensor) -> Tensor:
        """The log density of the rate at large counts: its logarithm is Gaussian, with 1 / count of the count itself.

        The exact terms would cancel there, as large as the count times its logarithm.
        """
        large = count.clamp_min(1)
        variance = self.log_variance.double() + 1 / large
        away = large.log() - self.log_rate.double()
        return -0.5 * (away.square() / variance + (2 * pi * variance).log()) - large.log()

    def cdf(self, value: Tensor) -> Tensor:
        """P(count ≤ value), by the rates or by the exponential arrivals that a count is made of.

        A count is at most k where a Gamma(k + 1) variable G exceeds the rate, so the probability is an average of
        P(G > e^f) over f, or of P(f < log G) over G: whichever of the two is the smoother.
        """
        mean, std = self.log_rate.double(), self.log_variance.double().sqrt()
        order = torch.as_tensor(value).double().floor() + 1
        order, mean, std = torch.broadcast_tensors(order, mean, std)
        z, weights = quadrature.nodes()
        narrow = std * order.clamp_min(1).sqrt() < 1
        by_rate = sum(
            w * torch.special.gammaincc(order.clamp_min(1), (mean + std * at).exp())
            for at, w in zip(z.tolist(), weights.tolist(), strict=True)
        )
        low, high = _gamma_range(order.clamp_min(1))
        step = (high - low) / (2 * len(z) - 1)
        by_arrival, total = torch.zeros_like(mean), torch.zeros_like(mean)
        for k in range(2 * len(z)):
            away = low + k * step  # from the mode log(order) of the log density of log G
            weight = (order.clamp_min(1) * (away - away.expm1())).exp()
            total += weight
            by_arrival += weight * torch.special.ndtr((order.clamp_min(1).log() + away - mean) / std.clamp_min(1e-300))
        found = torch.where(narrow, torch.as_tensor(by_rate), by_arrival / total)
        return torch.where(order >= 1, found, 0).clamp(0, 1).to(self.log_rate)

    def icdf(self, value: Tensor) -> Tensor:
        """The smallest count whose cumulative probability reaches a level."""
        level = torch.as_tensor(value).double().expand(self.log_rate.shape)
        reach = self.log_variance.double().sqrt() * 9
        rate = (self.log_rate.double() + reach).exp()
        return _first_count(lambda count: self.cdf(count).double(), level, rate + 9 * rate.sqrt() + 40).to(
            self.log_rate
        )

    def entropy(self) -> Tensor:
        """In nats: a sum over small counts, and over large ones an integral (Euler and Maclaurin)."""
        shape = self.log_rate.shape
        wide = LogNormalPoisson(self.log_rate.double().reshape(-1), self.log_variance.double().reshape(-1))

        def term(count: Tensor) -> Tensor:  # (k,) or (k, n) -> (k, n)
            at = wide.log_prob(count if count.ndim > 1 else count[:, None])
            return torch.special.entr(at.exp())  # zero where a count is impossible

        small = term(torch.arange(SUMMED, dtype=torch.float64))
        start = SUMMED - 0.5
        low, high = ((wide.log_rate + side * 9 * wide.log_variance.sqrt()).exp() for side in (-1, 1))
        low = (low - 12 * low.sqrt()).clamp_min(start)
        range_ = ((high + 12 * high.sqrt()).clamp_min(2 * start) / low).clamp_min(1.001).log()
        at, weights = (torch.from_numpy(part)[:, None] for part in np.polynomial.legendre.leggauss(256))
        count = low * (0.5 * (at + 1) * range_).exp()  # nodes of Gauss and Legendre in the logarithm of the count
        large = (weights * term(count) * count).sum(0) * 0.5 * range_
        slope = term(torch.tensor([start + 0.5, start - 0.5], dtype=torch.float64))
        return (small.sum(0) + large + (slope[0] - slope[1]) / 24).reshape(shape).to(self.log_rate)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Counts, from the global random state as all distributions of torch."""
        shape = self._extended_shape(torch.Size(sample_shape))
        normals = torch.randn(shape, dtype=self.log_rate.dtype, device=self.log_rate.device)
        return torch.poisson((self.log_rate + self.log_variance.sqrt() * normals).exp())


def check_counts(name: str, values: Tensor, *, whole: bool) -> Tensor:
    """Counts, or an error where some are negative or, if they should be `whole`, lie between the counts."""
    wrong = (values < 0) | ((values != values.round()) & whole)
    if bool(wrong.any()):
        raise ValueError(
            f"{name} takes counts 0, 1, 2, …, got {int(wrong.sum())} other values, the first "
            f"{float(values[wrong][0]):g}: the rate is the exponential of an output, exposures go into the network"
        )
    return values


def poisson_entropy(rate: Tensor) -> Tensor:  # rate's shape
    """The entropy of a Poisson distribution, in nats: summed, or for rates of 100 and more by its asymptotic series."""
    small, total = rate.clamp_max(100), torch.zeros_like(rate)
    for count in range(260):  # beyond, a rate of 100 leaves 1e-38
        at = count * small.log() - small - torch.lgamma(torch.tensor(count + 1.0, dtype=torch.float64))
        total = total - torch.where(at > -700, at.exp() * at, 0)
    large = rate.clamp_min(100)
    series = 0.5 * (log(2 * pi * e) + large.log()) - 1 / (12 * large) - 1 / (24 * large**2) - 19 / (360 * large**3)
    return torch.where(rate < 100, total, series)


def _gamma_range(order: Tensor) -> tuple[Tensor, Tensor]:
    """Where the log density of the logarithm of a Gamma variable has fallen by `DROP`, or further, from its mode."""
    drop = quadrature.DROP / order
    left = torch.where(3 * drop <= 1, (3 * drop).sqrt(), drop + 1)
    return -left, (2 * drop).sqrt()


def _first_count(cdf: Any, level: Tensor, bound: Tensor) -> Tensor:
    """The smallest count up to a bound whose cumulative probability reaches a level, by bisection."""
    low, high = torch.full_like(level, -1.0), bound.ceil().clamp_max(2.0**52)  # up to there floats are exact
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        reached = cdf(middle) >= level
        moving = high - low > 1
        low, high = torch.where(moving & ~reached, middle, low), torch.where(moving & reached, middle, high)
    return high
