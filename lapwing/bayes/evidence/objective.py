"""The log evidence of a Gaussian linear model as a function of its prior and noise precisions.

A `Problem` sees the model through `Moments` alone, whatever those are made from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from lapwing.bayes.evidence.closed_form import NO_HYPERPRIOR, ClosedForm
from lapwing.bayes.likelihoods import GammaHyperprior
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics import LOWEST_RATIO, Statistics, compressed
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import Dense
from lapwing.linalg.spectral import decompose_whitened

LOG_2PI = float(np.log(2 * np.pi))


@final
@dataclass(frozen=True, eq=False)
class Precisions:
    """What is tuned: one precision per group of weights and one per group of noise; many settings, as rows, at once."""

    prior: Tensor  # (groups,)
    noise: Tensor  # (noise groups,)


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """What the evidence and its stationary points need to know at one setting of the precisions."""

    residual: Tensor  # (noise groups,), ‖y − Φθ̄‖² at unit noise
    weights: Tensor  # (groups,), ‖θ̄‖² at unit prior precision
    determined: Tensor  # (groups,), γ, the effective number of weights
    leverage: Tensor  # (noise groups,), γ again, shared out over the observations
    log_det: Tensor  # (), log det(I + A⁻¹M)


@final
@dataclass(frozen=True)
class EvidenceParts:
    """The log evidence as a sum: fit and penalty at the mode, Occam factor, constants, hyperpriors."""

    fit: float  # −½ Σ β ‖y − Φθ̄‖²
    penalty: float  # −½ Σ α ‖θ̄‖²
    occam: float  # −½ log det(I + A⁻¹M)
    normaliser: float  # ½ log det B − ½ N log 2π
    hyperprior: float  # not part of the evidence of the data, but of what is maximised

    @property
    def total(self) -> float:
        """The log evidence."""
        return self.fit + self.penalty + self.occam + self.normaliser


class NoMode(ValueError):
    """A density that has no bound under so wide a prior, and so no mode."""


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """An evidence to be maximised: moments as a function of the precisions, and which of those are free."""

    moments: Callable[[Precisions], Moments]  # of many settings at once where there is one precision and one noise
    counts: Tensor  # (noise groups,), observations
    sizes: Tensor  # (groups,), weights
    log_weight: float
    largest: float  # eigenvalue of the scaled features' Gram matrix
    lowest_ratio: float = 0.0  # of prior to noise precision at which the moments can be trusted
    positive_from: float = 0.0  # the ratio above which a curvature with negative eigenvalues makes a posterior
    one_by_one: bool = False  # whether moments take one setting at a time
    has_gradient: bool = True  # or the moments belong to a curvature that moves with the precisions
    resolution: float = 1e-5  # in log precision, of a search by values alone
    points: int = 37  # of a scan for the scale of the precisions
    bound: Problem | None = field(default=None, repr=False)  # a cheaper problem that is nowhere below this one
    at_point: Callable[[Precisions], Moments] | None = None  # at the network's own outputs, for where there is no mode
    middle: float = 1.0  # the ratio at which half of what can be determined is
    lowest_noise_ratio: float = LOWEST_RATIO  # of prior to noise precision, over the largest eigenvalue
    tune_prior: Tensor | bool = True  # or which of the prior precisions are free: (groups,)
    tune_noise: bool = True
    prior_hyperprior: GammaHyperprior | None = None
    noise_hyperprior: GammaHyperprior | None = None
    closed_form: ClosedForm | None = field(default=None, repr=False)  # where the moments are sums over a spectrum

    def __post_init__(self) -> None:
        free = torch.as_tensor(self.tune_prior).expand(self.sizes.shape)
        object.__setattr__(self, "tune_prior", free)

    def free_prior(self, at: Precisions) -> Tensor:  # (groups,), bool
        """Which prior precisions are tuned: those that are neither given nor infinite, of a pruned group."""
        return self.tune_prior & at.prior.isfinite()

    @property
    def tunes_prior(self) -> bool:
        """Whether any prior precision is free."""
        return bool(torch.as_tensor(self.tune_prior).any())

    @property
    def is_fixed(self) -> bool:
        """Whether nothing is free."""
        return not (self.tunes_prior or self.tune_noise)

    def parts(self, at: Precisions, moments: Moments | None = None) -> EvidenceParts:
        """The log evidence at these precisions, by part."""
        return EvidenceParts(*(float(term) for term in self._terms(at, moments)))

    def objective(self, at: Precisions, moments: Moments | None = None) -> float:
        """What is maximised: the log evidence, plus the hyperpriors where there are any."""
        return float(self.objectives(at, moments))

    @property
    def simple(self) -> bool:
        """Whether there is one precision and one noise, so that many settings can be looked at in one go."""
        return not self.one_by_one and len(self.counts) == len(self.sizes) == 1

    @property
    def sums(self) -> ClosedForm | None:
        """The objective as sums over a spectrum, where it is nothing else."""
        if self.closed_form is None or self.one_by_one:
            return None
        none = NO_HYPERPRIOR
        return replace(
            self.closed_form, prior_hyperprior=self.prior_hyperprior or none,
            noise_hyperprior=self.noise_hyperprior or none,
        )  # fmt: skip

    def objectives(self, at: Precisions, moments: Moments | None = None) -> Tensor:  # (settings,) or ()
        """The objective of every setting."""
        return sum(self._terms(at, moments), torch.zeros((), dtype=torch.float64))

    def _terms(self, at: Precisions, moments: Moments | None) -> tuple[Tensor, ...]:
        m = moments or self.moments(at)
        return (
            -0.5 * (at.noise * m.residual).sum(-1),
            -0.5 * torch.where(at.prior.isfinite(), at.prior * m.weights, 0).sum(-1),
            -0.5 * m.log_det,
            0.5 * (self.counts * (at.noise.log() - LOG_2PI)).sum(-1) + self.log_weight,
            self._hyperprior(at),
        )

    def gradient(self, at: Precisions, m: Moments) -> Precisions:
        """The gradient of the objective in the log precisions."""
        prior = torch.where(at.prior.isfinite(), 0.5 * (m.determined - at.prior.nan_to_num(posinf=0) * m.weights), 0)
        noise = 0.5 * (self.counts - m.leverage - at.noise * m.residual)
        if self.prior_hyperprior:
            prior = prior + self.prior_hyperprior.shape - self.prior_hyperprior.rate * at.prior
        if self.noise_hyperprior:
            noise = noise + self.noise_hyperprior.shape - self.noise_hyperprior.rate * at.noise
        return Precisions(prior, noise)

    def _hyperprior(self, at: Precisions) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for gamma, values in ((self.prior_hyperprior, at.prior), (self.noise_hyperprior, at.noise)):
            if gamma:
                density = torch.where(values.isfinite(), gamma.log_density(values), -torch.inf)
                total = total + density.sum(-1)
        return total


@final
@dataclass(frozen=True)
class EffectiveDimension:
    """γ from posterior draws in three ways, each unbiased; `combined` has the smallest variance."""

    function_space: Estimate  # mean ‖Φz‖²_B, good where the data determine little
    weight_space: Estimate  # d − mean ‖z‖²_A, good where they determine nearly everything
    combined: Estimate


def effective_dimension(fit: Tensor, penalty: Tensor, size: int) -> EffectiveDimension:
    """γ from the energies ‖Φz‖²_B and ‖z‖²_A of zero-mean draws: (draws,) each.

    With s_i the shrinkage of each direction the variances are 2 Σ s² / k, 2 Σ (1 − s)² / k and 2 Σ (s − s̄)² / k.
    """
    by_weights = size - penalty
    share = float((fit.mean() / size).clamp(0, 1))
    both = (1 - share) * fit + share * by_weights
    return EffectiveDimension(*(_mean_of(values) for values in (fit, by_weights, both)))


def _mean_of(values: Tensor) -> Estimate:
    error = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else float("inf")  # one says nothing of itself
    return Estimate(float(values.mean()), error)


def shift_invariant(statistics: Statistics) -> Callable[[Precisions], Moments]:
    """Moments under one prior precision and one noise: a few sums over the spectrum, O(rank) a setting."""
    s, density = statistics.values, statistics.density
    squares, remainder = statistics.targets.square(), statistics.remainder

    def moments(at: Precisions) -> Moments:
        k = s * (at.noise / at.prior)  # 0 where the prior precision is infinite
        shrunk, kept = k / (1 + k), 1 / (1 + k)
        determined = _sum(density * shrunk)
        return Moments(
            residual=remainder + _sum(squares * kept.square()),
            weights=_sum(squares * shrunk * kept) * (at.noise / at.prior),
            determined=determined,
            leverage=determined,
            log_det=(density * k.log1p()).sum(-1),
        )

    return moments


def general(statistics: tuple[Statistics, ...], group_of: Tensor, groups: int) -> Callable[[Precisions], Moments]:
    """Moments under several precisions: the compressed rows are decomposed at every call."""
    rows, targets, _ = compressed(statistics, torch.ones(len(statistics), dtype=torch.float64))
    noise_of = torch.cat([torch.full((len(s.targets),), g) for g, s in enumerate(statistics)])
    remainder = torch.tensor([s.remainder for s in statistics], dtype=torch.float64)

    def moments(at: Precisions) -> Moments:
        noise_root, prior_std = at.noise.sqrt()[noise_of], at.prior.rsqrt()[group_of]
        whitened = Dense(noise_root[:, None] * rows * prior_std)
        spectrum = decompose_whitened(whitened)
        k = spectrum.values
        left = spectrum.left_adjoint(whitened, torch.eye(len(k), dtype=k.dtype))
        y = left.mT @ (noise_root * targets)
        inside = noise_root * targets - left @ y
        residual = (left @ (y / (1 + k)) + inside) / noise_root
        mean = prior_std * (spectrum.vectors @ (k.sqrt() * y / (1 + k)))
        return Moments(
            residual=grouped(residual.square(), noise_of, len(statistics)) + remainder,
            weights=grouped(mean.square(), group_of, groups),
            determined=grouped(spectrum.vectors.square() @ (k / (1 + k)), group_of, groups),
            leverage=grouped(left.square() @ (k / (1 + k)), noise_of, len(statistics)),
            log_det=k.log1p().sum(),
        )

    return moments


def problem(statistics: tuple[Statistics, ...], prior: DiagonalPrior) -> Problem:
    """The evidence problem of a model, every precision free."""
    groups = len(prior.precision)
    simple = len(statistics) == 1 and groups == 1
    first = statistics[0]
    return Problem(
        moments=shift_invariant(first) if simple else general(statistics, prior.group_of, groups),
        counts=torch.tensor([s.count for s in statistics], dtype=torch.float64),
        sizes=prior.sizes,
        log_weight=sum(s.log_weight for s in statistics),
        largest=largest_value(statistics),
        lowest_ratio=_trusted(first) if simple else 0.0,
        points=37 if simple else 19,
        middle=float(first.values.median()) if len(first.values) else 1.0,
        lowest_noise_ratio=first.basis.lowest_noise_ratio,
        closed_form=ClosedForm.of(first) if simple else None,
    )


def _trusted(statistics: Statistics) -> float:
    return 0.0 if statistics.basis.is_complete else statistics.basis.lowest_ratio()


def largest_value(statistics: tuple[Statistics, ...]) -> float:
    """The largest eigenvalue of the scaled features' Gram matrix."""
    return max((float(s.values.max()) for s in statistics if len(s.values)), default=0.0)


def grouped(values: Tensor, group_of: Tensor, groups: int) -> Tensor:
    """Sums over the members of each group."""
    return torch.zeros(groups, dtype=values.dtype).index_add(0, group_of, values)


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True)
