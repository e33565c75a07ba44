"""Means of the linear model beside a structured curvature, which stands for the covariance alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import Moments, Precisions, grouped
from lapwing.bayes.fits import Fit, LaplaceAtPoint, ModeSearch, NetworkWeights, Packed
from lapwing.bayes.fits.interface import Preconditioning, nothing_known
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.interface import FileContext, Run
from lapwing.bayes.methods.packing import LARGEST, pack_statistics, unpack_statistics
from lapwing.bayes.methods.storing import in_double, stored
from lapwing.bayes.priors import DiagonalPrior, per_weight
from lapwing.bayes.statistics import Statistics, in_units, summarise, whiten
from lapwing.linalg import operators
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.operators import LinearOperator
from lapwing.linalg.solvers import ConjugateGradients
from lapwing.linalg.spectral import Spectrum

EvidenceAt = Literal["mode", "weights"]
DIRECT_SIZE = 4000  # up to this smaller side the modes of all precisions come from one decomposition


@final
@dataclass(frozen=True, eq=False)
class DecomposedFit(Fit):
    """Means of a Gaussian model from one decomposition of its features, beside a structure for its covariance."""

    rows: GaussianSurrogate | None  # None in a file
    statistics: tuple[Statistics, ...]
    prior: DiagonalPrior
    noise_precision: Tensor
    moments: Callable[[Precisions], Moments] = field(repr=False)
    kind = "statistics"
    is_closed_form = True

    @staticmethod
    def of(rows: GaussianSurrogate | None, known: tuple[Statistics, ...], prior: DiagonalPrior) -> DecomposedFit:
        """At the precisions of the prior, and unit noise."""
        unit = torch.ones(1, dtype=torch.float64)
        return DecomposedFit(rows, known, prior, unit, evidence.problem(known, prior).moments)

    @property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        if self.rows is None:
            raise ValueError("the rows of this posterior are not in the file that it was loaded from: fit it again")
        return self.rows

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor,
        preconditioner: Preconditioning = nothing_known,  # noqa: ARG002
    ) -> DecomposedFit:  # fmt: skip
        return replace(self, prior=prior, noise_precision=noise_precision)

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        nothing = torch.zeros(len(self.prior.scale), 0, dtype=torch.float64)
        return whiten(self.statistics, self.prior, self.noise_precision, nothing).mean

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        found = self.moments(at)
        return found.residual, found.weights

    def pack(self) -> Packed:
        packed = pack_statistics(self.statistics, len(self.prior.scale), LARGEST)
        if packed is None:
            return {"kind": "lost", "weights": len(self.prior.scale)}, {}
        return {"kind": self.kind, "statistics": packed[0]}, packed[1]

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: FileContext) -> DecomposedFit:
        """The fit of a file."""
        known = unpack_statistics(plain["statistics"], tensors, context.seed)
        fit = DecomposedFit.of(None, known, context.prior)
        return replace(fit, noise_precision=context.noise_precision)


@final
@dataclass(frozen=True, eq=False)
class IteratedFit(Fit):
    """Means of a Gaussian model by conjugate gradients, the structure as their preconditioner."""

    rows: GaussianSurrogate
    curvature: Curvature
    prior: DiagonalPrior
    noise_precision: Tensor
    kind = "lost"  # in a file, which has no data

    @property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        return self.rows

    @property
    def features(self) -> LinearOperator:  # (rows, d)
        """With the prior's scale."""
        return in_units(self.rows.features, self.prior.scale)

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor,
        preconditioner: Preconditioning = nothing_known,  # noqa: ARG002
    ) -> IteratedFit:  # fmt: skip
        return replace(self, prior=prior, noise_precision=noise_precision)

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        return self.prior.std * self._solved(Precisions(self.prior.precision, self.noise_precision))

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        weights = at.prior.rsqrt()[self.prior.group_of] * self._solved(at)
        images = (self.features @ weights.to(self.features.like)).double()
        energies = grouped(weights.square(), self.prior.group_of, len(self.prior.precision))
        return (self.rows.targets - images).square().sum().reshape(1), energies

    def _solved(self, at: Precisions) -> Tensor:  # (d,), in units of the prior's standard deviations
        like, root = self.features.like, float(at.noise.sqrt())
        units = operators.Diagonal(root * at.prior.rsqrt()[self.prior.group_of].to(like))
        whitened = self.features @ units
        near = Nearby(basis_of(self.curvature, replace(self.prior, precision=at.prior), at.noise))
        rtol = 1e-9 if like.dtype == torch.float64 else 1e-5
        system = operators.Diagonal(torch.ones_like(units.diagonal)) + whitened.T @ whitened
        right = whitened.rmatmat(root * self.rows.targets[:, None].to(like))
        return ConjugateGradients(rtol, 10_000, near).solve(system, right).checked()[:, 0].double()

    def pack(self) -> Packed:
        return {"kind": self.kind, "weights": len(self.prior.scale)}, {}


@final
@dataclass(frozen=True, eq=False)
class Nearby:
    """A structure as preconditioner of I + WᵀW: I − V diag(k / (1 + k)) Vᵀ."""

    spectrum: Spectrum

    def solve(self, x: Tensor) -> Tensor:
        """The approximate inverse times a block of columns."""
        shrunk = (self.spectrum.values / (1 + self.spectrum.values))[:, None]
        return x - self.spectrum.expand(shrunk * self.spectrum.coordinates(x.mT).mT).to(x)


def basis_of(curvature: Curvature, prior: DiagonalPrior, noise_precision: Tensor) -> Spectrum:
    """The structure in units of prior and noise."""
    return curvature.times(float(noise_precision)).whitened(per_weight(prior.precision, prior.group_of))


def fit_beside(
    model: LinearModel, rows: GaussianSurrogate, prior: DiagonalPrior, curvature: Curvature, place: EvidenceAt, run: Run
) -> Fit:
    """Where the evidence is taken, and the mean."""
    if place == "weights":
        return NetworkWeights.of(model, prior)
    many = model.features.costs.too_many_outputs
    if not model.likelihood.constant_curvature:
        search = ModeSearch.of(model if many else stored(model, run.report), prior)
        return LaplaceAtPoint(search, rows, prior)
    run.report("finding the modes of the linear model")
    if model.point is not None and not many:
        rows = replace(model, features=in_double(model.features)).gaussian_surrogate()
    if min(rows.features.shape) <= DIRECT_SIZE:
        known = summarise(rows, prior, side=None, noise=run.noise, draws=0)
        return DecomposedFit.of(rows, known, prior)
    return IteratedFit(rows, curvature, prior, torch.ones(1, dtype=torch.float64))
