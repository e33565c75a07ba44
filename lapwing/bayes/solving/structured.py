"""Posteriors by a structured curvature (diagonal, Kronecker, low rank) in place of the Gauss-Newton matrix.

The structure stands for the covariance, the effective dimension and the Occam factor, at any precision and without
the data. Mode and fit are those of the linear model itself (recommendation 1 of Antorán et al. 2022) or, by choice,
those of the network's own weights, whose evidence is known to give precisions that are too small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import Moments, Precisions, Problem, grouped
from lapwing.bayes.evidence.indefinite import check_positive, lacking
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.bayes.priors import DiagonalPrior, per_weight
from lapwing.bayes.statistics import (
    Statistics,
    Whitened,
    row_weights,
    scaled_features,
    summarise,
    totals,
    whiten,
    whitened_data,
)
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.operators import Diagonal, LinearOperator
from lapwing.linalg.solvers import CG
from lapwing.linalg.spectral import Spectrum
from lapwing.linalg.truncated import leading, truncated

EvidenceAt = Literal["mode", "weights"]
DIRECT_SIZE = 4000  # up to this smaller side the modes of all precisions come from one decomposition


@final
@dataclass(frozen=True, eq=False)
class Shape:
    """A structured curvature at unit noise, its prior's scale included, and what diagnostics should say of it."""

    curvature: Curvature
    diagnostics: dict[str, Any] = field(default_factory=dict)


class Fits(Protocol):
    """Weights at which the evidence is taken, and how they fit."""

    def moments(self, at: Precisions) -> tuple[Tensor, Tensor]:  # (1,), (groups,)
        """‖y − Φθ‖² at unit noise, and ‖θ‖² of each group in units of the prior's scale."""

    def mean(self, prior: DiagonalPrior, noise: Tensor) -> Tensor:  # (d,)
        """The weights."""

    @property
    def are_cheap(self) -> bool:
        """Whether many precisions take little more than one."""


@final
@dataclass(frozen=True, eq=False)
class AtWeights:
    """The weights of the network itself, whatever the precision."""

    weights: Tensor  # (d,)
    residual: Tensor  # (1,), for class labels −2 log p
    energies: Tensor  # (groups,)
    are_cheap = True

    def moments(self, at: Precisions) -> tuple[Tensor, Tensor]:
        """The same at all precisions."""
        del at
        return self.residual, self.energies

    def mean(self, prior: DiagonalPrior, noise: Tensor) -> Tensor:
        """The same at all precisions."""
        del prior, noise
        return self.weights


@final
@dataclass(frozen=True, eq=False)
class Decomposed:
    """Modes of a Gaussian model from one decomposition of its features."""

    statistics: tuple[Statistics, ...]
    of: Callable[[Precisions], Moments]
    are_cheap = True

    def moments(self, at: Precisions) -> tuple[Tensor, Tensor]:
        """Closed form for one precision, a small decomposition for several."""
        found = self.of(at)
        return found.residual, found.weights

    def mean(self, prior: DiagonalPrior, noise: Tensor) -> Tensor:
        """The mode."""
        return whiten(self.statistics, prior, noise, torch.zeros(len(prior.scale), 0, dtype=torch.float64)).mean


@final
@dataclass(frozen=True, eq=False)
class Iterated:
    """Modes of a Gaussian model by conjugate gradients, the structure as their preconditioner."""

    features: LinearOperator  # (rows, d), with weights and the prior's scale
    targets: Tensor  # (rows,)
    prior: DiagonalPrior
    curvature: Curvature
    are_cheap = False

    def moments(self, at: Precisions) -> tuple[Tensor, Tensor]:
        """By a solve."""
        weights = at.prior.rsqrt()[self.prior.group_of] * self._solved(at)
        fitted = (self.features @ weights.to(self.features.like)).double()
        energies = grouped(weights.square(), self.prior.group_of, len(self.prior.precision))
        return (self.targets - fitted).square().sum().reshape(1), energies

    def mean(self, prior: DiagonalPrior, noise: Tensor) -> Tensor:
        """The mode."""
        return prior.std * self._solved(Precisions(prior.precision, noise))

    def _solved(self, at: Precisions) -> Tensor:  # (d,), in units of the prior's standard deviations
        like, root = self.features.like, float(at.noise.sqrt())
        units = Diagonal(root * at.prior.rsqrt()[self.prior.group_of].to(like))
        whitened = self.features @ units
        near = Nearby(self.curvature.times(root**2).whitened(per_weight(at.prior, self.prior.group_of)))
        rtol = 1e-9 if like.dtype == torch.float64 else 1e-5
        system = Diagonal(torch.ones_like(units.diagonal)) + whitened.T @ whitened
        right = whitened.rmatmat(root * self.targets[:, None].to(like))
        return CG(rtol, 10_000, near).solve(system, right).checked()[:, 0].double()


@final
@dataclass(frozen=True, eq=False)
class Unknown:
    """Modes of a loaded posterior whose file lacks what they need: NaN, which predictions around them refuse."""

    are_cheap = False

    def moments(self, at: Precisions) -> tuple[Tensor, Tensor]:
        """Not known."""
        return torch.full((1,), torch.nan, dtype=torch.float64), torch.full_like(at.prior, torch.nan)

    def mean(self, prior: DiagonalPrior, noise: Tensor) -> Tensor:
        """Not known."""
        del noise
        return torch.full_like(prior.scale, torch.nan)


@final
@dataclass(frozen=True, eq=False)
class Nearby:
    """A structure as preconditioner of I + WᵀW: I − V diag(k / (1 + k)) Vᵀ."""

    spectrum: Spectrum

    def solve(self, x: Tensor) -> Tensor:
        """The approximate inverse times a block of columns."""
        shrunk = (self.spectrum.values / (1 + self.spectrum.values))[:, None]
        return x - self.spectrum.expand(shrunk * self.spectrum.coordinates(x.mT).mT).to(x)


@final
@dataclass(frozen=True, eq=False)
class Approximate:
    """What a structure knows of the data: the covariance at every precision, and the fit by which it is tuned."""

    shape: Shape
    fits: Fits | None  # None where a likelihood that is not Gaussian finds its own mode
    count: float  # observations; none where the fit is a log probability
    log_weight: float
    seed: int
    draws: int

    @property
    def curvature(self) -> Curvature:
        """M at unit noise."""
        return self.shape.curvature

    def prior_noise(self) -> Tensor:  # (d, draws)
        """The standard normals of the prior behind every draw."""
        return Noise(self.seed, PRIOR).rows(0, len(self.curvature.scale), self.draws)

    def whitened(self, prior: DiagonalPrior, noise: Tensor) -> Whitened:
        """The posterior at these precisions, around zero.

        With V complete, Vᵀz = (Vᵀθ̃ + √k ζ) / (1 + k) for standard normals ζ has variance 1 / (1 + k): draws follow the
        precision smoothly, as those that are made from the data do. Where a Hessian has k < 0 they are stretched.
        """
        basis = self.curvature.times(float(noise)).whitened(per_weight(prior.precision, prior.group_of))
        check_positive(basis.values, prior)
        k, zeros = basis.values.double(), torch.zeros(len(basis.values), dtype=torch.float64)
        known = Statistics(
            basis=basis, values=k, targets=zeros, remainder=0.0,
            noise=Noise(self.seed, DATA).rows(0, len(k), self.draws),
            prior_noise=k.abs().sqrt()[:, None] * basis.coordinates(self.prior_noise().mT).mT,
            density=torch.ones_like(k),
            count=self.count, log_weight=self.log_weight + 0.5 * self.count * float(noise.log()),
        )  # fmt: skip
        return Whitened(prior.std, known)

    def mean(self, prior: DiagonalPrior, noise: Tensor) -> Tensor:  # (d,)
        """The weights around which draws are made, zero where they are still to be found."""
        return torch.zeros_like(prior.scale) if self.fits is None else self.fits.mean(prior, noise)

    def moments(self, prior: DiagonalPrior) -> Callable[[Precisions], Moments]:
        """What the evidence needs at any precisions of the prior's groups."""
        group_of, groups = prior.group_of, len(prior.precision)

        def moments(at: Precisions) -> Moments:
            scaled, precision = self.curvature.times(float(at.noise)), per_weight(at.prior, group_of)
            k = scaled.ratios(precision).double()
            total = (k / (1 + k)).sum().reshape(1)
            determined = total if groups == 1 else grouped(scaled.determined(precision).double(), group_of, groups)
            nothing = (torch.zeros(1).double(), torch.zeros(groups).double())
            residual, energies = nothing if self.fits is None else self.fits.moments(at)
            return Moments(residual, energies, determined, total, k.log1p().sum())

        return moments

    def problem(self, prior: DiagonalPrior) -> Problem:
        """The evidence, every precision free."""
        return Problem(
            moments=self.moments(prior), counts=torch.tensor([self.count], dtype=torch.float64), sizes=prior.sizes,
            log_weight=self.log_weight, largest=self.largest, one_by_one=True,
            positive_from=lacking(self.curvature.ratios(1.0)),
        )  # fmt: skip

    def in_multiples(self, prior: DiagonalPrior, noise: Tensor) -> Problem:
        """The evidence with precisions and noise counted in multiples of these, all groups tied."""
        of = self.moments(prior)

        def moments(at: Precisions) -> Moments:
            found = of(Precisions(prior.precision * at.prior, noise * at.noise))
            energy = torch.where(prior.precision.isfinite(), prior.precision * found.weights, 0).sum().reshape(1)
            total = found.leverage
            return Moments(noise * found.residual, energy, total, total, found.log_det)

        k = self.curvature.times(float(noise)).ratios(per_weight(prior.precision, prior.group_of))
        return Problem(
            moments=moments, counts=torch.tensor([self.count], dtype=torch.float64),
            sizes=prior.sizes.sum().reshape(1), log_weight=self.log_weight + 0.5 * self.count * float(noise.log()),
            largest=float(k.max()), one_by_one=True, positive_from=lacking(k),
        )  # fmt: skip

    @property
    def largest(self) -> float:
        """The largest eigenvalue of M relative to the prior at precision one."""
        return float(self.curvature.ratios(1.0).max())


def low_rank(model: LinearModel, prior: DiagonalPrior, rank: int, rtol: float, seed: int) -> Shape:
    """The leading eigenpairs of the Gauss-Newton matrix of any Gaussian model, the prior outside their span."""
    scaled = scaled_features(model.features, row_weights(model).sqrt(), prior.scale)
    found = leading(scaled, rank, generator=torch.Generator().manual_seed(seed), rtol=rtol)
    told = {
        "rank": len(found.values), "largest_left_out": found.dropped, "data_passes": found.passes,
        "largest_residual": float(found.residuals.max()) if len(found.values) else 0.0, "limited_by": found.limited_by,
    }  # fmt: skip
    return Shape(truncated(found, prior.scale), told)


def least_squares(model: LinearModel, prior: DiagonalPrior, curvature: Curvature, noise: Noise) -> Fits:
    """The modes of a Gaussian model: from one decomposition where it is small, else by solves."""
    if min(model.features.shape) <= DIRECT_SIZE:
        statistics = summarise(model, prior, side=None, noise=noise, draws=0)
        return Decomposed(statistics, evidence.problem(statistics, prior).moments)
    scaled, targets, _ = whitened_data(model, prior, noise, 0)
    return Iterated(scaled, targets, prior, curvature)


def approximate(shape: Shape, model: LinearModel, fits: Fits | None, noise: Noise, draws: int) -> Approximate:
    """What is known of a model through a structure; the fit of class labels is a log probability and counts none."""
    k = shape.curvature.ratios(1.0)
    if not len(k) or not bool(k.max() > 0):
        raise ValueError(
            "the curvature is zero: the outputs do not depend on these weights, or the labels are certain everywhere; "
            "select other weights, or give more data"
        )
    count, log_weight = totals(model) if isinstance(model.likelihood, Gaussian) else (0.0, 0.0)
    return Approximate(shape, fits, count, log_weight, noise.seed, draws)


def at_weights(model: LinearModel, prior: DiagonalPrior) -> AtWeights:
    """The network's own weights and how they fit; for class labels by twice their negative log probability."""
    if model.centre is None:
        raise ValueError("evidence_at='weights' is for a linearised network: this model has no weights of its own yet")
    weights = model.centre.weights.double()
    energies = grouped((weights / prior.scale).square(), prior.group_of, len(prior.precision))
    return AtWeights(weights, _misfit(model, model.at_centre()).reshape(1), energies)


def _misfit(model: LinearModel, outputs: Tensor) -> Tensor:
    of = model.likelihood
    if isinstance(of, Gaussian):
        return (row_weights(model) * (model.targets.reshape(-1) - outputs).square()).sum()
    outputs = outputs if model.offset is None else outputs + model.offset.double()
    return -2 * of.log_prob(of.shaped(outputs, model.targets), model.targets, model.weights)
