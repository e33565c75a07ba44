"""The evidence under one prior precision and one noise: sums over a spectrum, with both derivatives.

In NumPy, whose calls on short arrays cost a fraction of torch's: for few columns the calls are all that takes time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from lapwing.bayes.likelihoods import GammaHyperprior
from lapwing.bayes.statistics import Statistics

LOG_2PI = math.log(2 * math.pi)
MOST_STEPS = 20
ROUND_OFF = 1e-12  # of the evidence
NO_HYPERPRIOR = GammaHyperprior(0.0, 0.0)


@final
@dataclass(frozen=True, eq=False)
class Slopes:
    """The objective at one setting, with gradient and Hessian in (log prior precision, log noise precision)."""

    value: float
    prior: float
    noise: float
    prior_prior: float
    prior_noise: float
    noise_noise: float

    @property
    def determinant(self) -> float:
        """Of the Hessian."""
        return self.prior_prior * self.noise_noise - self.prior_noise**2

    @property
    def is_concave(self) -> bool:
        """Whether a Newton step goes uphill."""
        return self.prior_prior < 0 and self.determinant > 0

    def newton(self) -> tuple[float, float]:
        """Minus the inverse Hessian times the gradient."""
        first = self.prior_noise * self.noise - self.noise_noise * self.prior
        second = self.prior_noise * self.prior - self.prior_prior * self.noise
        return first / self.determinant, second / self.determinant


@final
@dataclass(frozen=True, eq=False)
class ClosedForm:
    """What the evidence needs of the data: with k = s β/α every term is a sum over eigenvalues s."""

    values: np.ndarray  # (rank,), s
    squares: np.ndarray  # (rank,), (Uᵀy)²
    density: np.ndarray  # (rank,), how many eigenvalues each value stands for
    remainder: float  # ‖y − UUᵀy‖²
    count: float  # observations
    log_weight: float
    prior_hyperprior: GammaHyperprior = NO_HYPERPRIOR
    noise_hyperprior: GammaHyperprior = NO_HYPERPRIOR

    @staticmethod
    def of(statistics: Statistics) -> ClosedForm:
        """Of compressed data."""
        return ClosedForm(
            statistics.values.numpy(), statistics.targets.numpy() ** 2, statistics.density.numpy(),
            statistics.remainder, statistics.count, statistics.log_weight,
        )  # fmt: skip

    def at_ratios(self, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # (settings,) each
        """The best noise precision for every ratio of prior to noise precision, and the objective there."""
        a, b = self.prior_hyperprior, self.noise_hyperprior
        k = self.values / ratios[:, None]
        energy = self.remainder + (self.squares / (1 + k)).sum(1)
        noise = (self.count + 2 * (a.shape + b.shape)) / (energy + 2 * (b.rate + a.rate * ratios))
        prior = ratios * noise
        log_noise = np.log(noise)
        value = self.count * (log_noise - LOG_2PI) - noise * energy - np.log1p(k) @ self.density
        hyperpriors = a.shape * np.log(prior) - a.rate * prior + b.shape * log_noise - b.rate * noise
        return noise, 0.5 * value + self.log_weight + hyperpriors

    def slopes(self, log_prior: float, log_noise: float) -> Slopes:
        """The objective and its derivatives."""
        a, b = self.prior_hyperprior, self.noise_hyperprior
        prior, noise = math.exp(log_prior), math.exp(log_noise)
        k = self.values * (noise / prior)
        kept = 1 / (1 + k)
        shrunk = k * kept
        both, weighed = shrunk * kept, self.squares * kept
        determined, spread = float(self.density @ shrunk), float(self.density @ both)
        penalty = noise * float(self.squares @ both)  # α ‖θ̄‖²
        energy = noise * (self.remainder + float(weighed.sum()))
        residual = energy - penalty  # β ‖y − Φθ̄‖²
        bent = noise * float(weighed @ both)  # half of what the residual loses for a unit of log k
        value = -0.5 * (energy + float(np.log1p(k) @ self.density)) + 0.5 * self.count * (log_noise - LOG_2PI)
        hyperpriors = a.shape * log_prior - a.rate * prior + b.shape * log_noise - b.rate * noise
        return Slopes(
            value=value + self.log_weight + hyperpriors,
            prior=0.5 * (determined - penalty) + a.shape - a.rate * prior,
            noise=0.5 * (self.count - determined - residual) + b.shape - b.rate * noise,
            prior_prior=0.5 * (2 * bent - penalty - spread) - a.rate * prior,
            prior_noise=0.5 * spread - bent,
            noise_noise=0.5 * (2 * bent - residual - spread) - b.rate * noise,
        )

    def maximum(
        self, log_prior: float, log_noise: float, *, enough: float, most: int = MOST_STEPS
    ) -> tuple[float, float, list[float]] | None:
        """The maximum by Newton steps from a start near it, and the objective on the way; None where they go astray."""
        trace: list[float] = []
        for _ in range(min(most, MOST_STEPS) + 1):
            at = self.slopes(log_prior, log_noise)
            if trace and not at.value >= trace[-1] - ROUND_OFF * (1 + abs(at.value)):
                return None
            trace.append(at.value)
            if max(abs(at.prior), abs(at.noise)) <= enough:
                return log_prior, log_noise, trace
            if not at.is_concave:
                return None
            step, other = at.newton()
            log_prior, log_noise = log_prior + step, log_noise + other
        return None
