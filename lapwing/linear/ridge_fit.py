"""The posterior of one target of a ridge regression, without the training data, and the short way to it.

Under one prior precision and one noise all that a posterior needs is a spectrum, which targets share. That way has no
linear model and no diagnostics in it, which for a few columns take longer than the numbers do. What it cannot do, such
as a Gram matrix that is too coarse or an evidence without a maximum inside, is left to `find`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from lapwing.bayes.evidence.closed_form import ClosedForm
from lapwing.bayes.likelihoods import GammaHyperprior
from lapwing.bayes.methods.exact import EPS, ExactPosterior
from lapwing.bayes.methods.outputs import variances
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.statistics import Eigenbasis, Statistics, Whitened
from lapwing.linalg.operators import LinearOperator, row_blocks
from lapwing.linalg.spectral import COARSE, Spectrum

RATIOS = np.logspace(-13, 5, 25)  # of prior to noise precision, over the largest eigenvalue: where a search begins


@final
@dataclass(frozen=True)
class Search:
    """How precisions are looked for."""

    prior: GammaHyperprior
    noise: GammaHyperprior
    max_steps: int
    tolerance: float  # relative gradient
    prior_start: float | None
    noise_start: float | None

    def start(self, sums: ClosedForm) -> tuple[float, float]:
        """Log precisions to begin with: the best of a scan over scales, or what was given."""
        ratios = RATIOS * float(sums.values.max())
        noises, heights = sums.at_ratios(ratios)
        best = int(heights.argmax())  # a NaN comes first, and ends the search before it begins
        noise = self.noise_start or float(noises[best])
        return math.log(self.prior_start or float(ratios[best] * noises[best])), math.log(noise)


@final
@dataclass(frozen=True, eq=False)
class Decomposed:
    """A posterior in closed form: a spectrum with one prior precision and one noise."""

    spectrum: Spectrum
    targets: Tensor  # (rank,), Uᵀy
    noise_precision: float
    prior_precision: float

    @cached_property
    def whitened(self) -> Whitened:
        """Mean, draws and covariance."""
        ratio = self.noise_precision / self.prior_precision
        none = self.targets.new_empty(len(self.targets), 0)
        statistics = Statistics(
            Eigenbasis(self.spectrum), ratio * self.spectrum.values, self.noise_precision**0.5 * self.targets,
            remainder=0.0, noise=none, prior_noise=none, density=torch.ones_like(self.targets), count=0.0,
            log_weight=0.0,
        )  # fmt: skip
        size = self.spectrum.right.shape[0]
        return Whitened(torch.full((size,), self.prior_precision**-0.5, dtype=torch.float64), statistics)


@final
@dataclass(frozen=True, eq=False)
class TargetFit:
    """One target's posterior, without the training data."""

    noise_precision: float
    prior_precision: float
    steps: int
    scores: tuple[float, ...]
    mean: Tensor  # (d,)
    exact: Decomposed | None  # None of a matrix-free fit, which would hold the training data
    deviations: Tensor  # (d, draws), of a matrix-free fit; no columns where variances have a closed form

    @staticmethod
    def of(posterior: Posterior) -> TargetFit:
        """What is kept of a posterior."""
        gaussian, told = posterior.gaussian, posterior.diagnostics
        noise, prior = float(gaussian.noise_precision), float(gaussian.prior.precision)
        exact, deviations = None, gaussian.deviations
        if isinstance(gaussian, ExactPosterior):
            (statistics,) = gaussian.statistics
            exact = Decomposed(statistics.basis.spectrum(), statistics.targets, noise, prior)
            deviations = deviations[:, :0]
        return TargetFit(noise, prior, told.tuning_steps, told.evidence_trace, gaussian.mean, exact, deviations)

    def variance(self, features: LinearOperator) -> Tensor:  # (rows,)
        """The epistemic variance of every row: closed form, or the mean square of draws."""
        if self.exact is None:
            return (features @ self.deviations.to(features.like)).double().square().mean(1)
        known = self.exact.whitened
        parts = [variances(rows.double() * known.std, known.spectrum, known.values)[1] for rows in row_blocks(features)]
        return torch.cat(parts)

    def draws(self, n: int, seed: int) -> Tensor:  # (d, n)
        """Draws of the coefficients: fresh ones in closed form, else those that are kept."""
        if self.exact is not None:
            return self.mean[:, None] + self.exact.whitened.root(Noise(seed, SAMPLE).rows(0, len(self.mean), n))
        available = self.deviations.shape[1]
        if n > available:
            raise ValueError(f"a matrix-free fit of this size holds {available} draws, and {n} were asked for")
        return self.mean[:, None] + self.deviations[:, :n]


def decomposed_fits(
    spectrum: Spectrum, rows: LinearOperator, targets: Tensor, count: float, search: Search
) -> tuple[TargetFit, ...] | None:
    """The fit of every column of targets (n, k), from one decomposition; None where one of them needs more care."""
    if not len(spectrum.values) or float(spectrum.values.max()) == 0:
        return None
    seen = spectrum.left(rows, targets)
    remainders = (targets - spectrum.left_adjoint(rows, seen)).square().sum(0).tolist()
    found: list[TargetFit] = []
    for column, remainder in zip(seen.mT, remainders, strict=True):
        fit = _target_fit(spectrum, column, remainder, count, search)
        if fit is None:
            return None
        found.append(fit)
    return tuple(found)


def _target_fit(spectrum: Spectrum, seen: Tensor, remainder: float, count: float, search: Search) -> TargetFit | None:
    values = spectrum.values.numpy()
    sums = ClosedForm(
        values, seen.numpy() ** 2, np.ones(len(values)), remainder, count, 0.0, search.prior, search.noise
    )
    prior, noise = search.start(sums)
    size = max(1.0, count)
    found = sums.maximum(prior, noise, enough=search.tolerance * size, most=search.max_steps)
    if found is None:
        return None
    prior_precision, noise_precision = math.exp(found[0]), math.exp(found[1])
    ratio = noise_precision / prior_precision
    if EPS * float(values.max()) * ratio > COARSE:
        return None
    k = ratio * spectrum.values
    mean = spectrum.expand((ratio * spectrum.values.sqrt() * seen / (1 + k))[:, None])[:, 0]
    exact = Decomposed(spectrum, seen, noise_precision, prior_precision)
    none = mean.new_empty(len(mean), 0)
    return TargetFit(noise_precision, prior_precision, len(found[2]) - 1, tuple(found[2]), mean, exact, none)
