"""Posteriors by a structured curvature (diagonal, Kronecker, low rank) in place of the Gauss-Newton matrix.

The structure stands for the covariance, the effective dimension and the Occam factor, at any precision and without
the data. Mode and fit are those of the linear model itself (recommendation 1 of Antorán et al. 2022) or, by choice,
those of the network's own weights, whose evidence is known to give precisions that are too small.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import Moments, Precisions, Problem, grouped
from lapwing.bayes.evidence.tuning import check_positive, min_stiffening
from lapwing.bayes.fits import (
    Fit,
    Packed,
    fit_of,
)
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.interface import FileContext, Method, Run, WhitenedPosterior
from lapwing.bayes.methods.packing import (
    named,
    pack_curvature,
    prefixed,
    unpack_curvature,
    unpack_fit,
)
from lapwing.bayes.methods.structured_fits import EvidenceAt, Nearby, basis_of, fit_beside
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.priors import DiagonalPrior, Prior, per_weight
from lapwing.bayes.statistics import LOWEST_RATIO, Eigenbasis, Statistics, Whitened
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.operators import check_adjoint
from lapwing.linalg.solvers import Preconditioner


class Structure(Method):
    """A structured curvature in place of the Gauss-Newton matrix.

    `evidence_at` says where the evidence is taken: at the mode of the linear model, or at the network's own weights,
    for which no mode is found and whose precisions are known to be too small. By default the mode, and the weights
    where precisions are tuned on held-out data, which need neither.
    """

    evidence_at: EvidenceAt | None
    takes_no_draws = True
    by_layer: ClassVar[bool] = True  # whether it is made from the layers of a network, not from products

    @abstractmethod
    def curvature(
        self, model: LinearModel, rows: GaussianSurrogate, prior: DiagonalPrior, seed: int
    ) -> tuple[Curvature, dict[str, Any]]:
        """The curvature at unit noise, with the prior's scale as it can hold it, and what diagnostics say of it."""

    @property
    def takes_modes(self) -> bool:  # type: ignore[override]
        """Unless the evidence is taken at the network's own weights."""
        return self.evidence_at != "weights"

    def with_evidence_at_weights(self) -> Structure:
        """The same with its evidence at the network's own weights."""
        return replace(self, evidence_at="weights")  # type: ignore[type-var]

    def check(self, model: LinearModel, prior: Prior) -> None:  # noqa: ARG002
        """Refuse a design matrix, and several noises."""
        if model.structure is None:
            raise ValueError(
                f"{self!r} needs a network with layers, and this linear model is of a design matrix: use "
                "LowRank(rank) or Exact(), or linearise a network"
            )
        if model.noise_groups > 1:
            raise ValueError(
                f"{self!r} serves one noise for all outputs, and one per output is to be tuned: give their noise_std, "
                "or use Exact()"
            )

    def solve(self, model: LinearModel, prior: Prior, run: Run) -> StructuredPosterior:
        """By the structure, its precisions at the maximum of the evidence."""
        place = self._place(model, run)
        if not (self.by_layer and place == "weights"):  # then products are needed, and must belong together
            check_adjoint(model.features, generator=torch.Generator().manual_seed(0))
        on = run.prior_on(prior, model)
        rows = _rows(model, on)
        run.report(f"making the curvature by {self!r}")
        curvature, told = self.curvature(model, rows, on, run.noise.seed)
        _check_not_zero(curvature)
        scale = torch.where(curvature.scale > 0, curvature.scale, on.scale)
        moved = float((scale / on.scale).log().abs().max().exp())  # to fit into Kronecker products
        on = replace(on, scale=scale)
        fit = fit_beside(model, rows, on, curvature, place, run)
        unit = torch.ones(1, dtype=torch.float64)
        known = StructuredPosterior(
            curvature, fit, on, unit, float(rows.counts.sum()), rows.log_weight, run.noise.seed, run.draws
        )
        return self._tuned(known, model, prior, run, {**told, "evidence_at": place, "prior_scale_moved": moved})

    def _place(self, model: LinearModel, run: Run) -> EvidenceAt:
        if self.evidence_at not in (None, "mode", "weights"):
            raise ValueError(f"evidence_at is {self.evidence_at!r}, expected 'mode' or 'weights'")
        if self.evidence_at is not None:
            return self.evidence_at
        return "weights" if not run.tuning.by_evidence and model.point is not None else "mode"

    def _tuned(
        self, known: StructuredPosterior, model: LinearModel, prior: Prior, run: Run, told: dict[str, Any]
    ) -> StructuredPosterior:
        """At its precisions; the noise of a mode that fits every target has to be kept from running to zero.

        It runs where the structure leaves out what that fit takes, as few eigenpairs do.
        """
        run.report("maximising the evidence")
        problem, of = known.problem(run), model.likelihood
        optimum = run.optimum(problem, prior, of, Precisions(known.prior.precision, known.noise_precision))
        found = known.at(replace(known.prior, precision=optimum.at.prior), optimum.at.noise)
        check_positive(basis_of(found.curvature, found.prior, found.noise_precision).values, found.prior)
        lowest = problem.lowest_noise_ratio * problem.largest
        finite = optimum.at.prior[optimum.at.prior.isfinite()]
        bounded = (
            of.tunes_noise
            and len(finite) > 0
            and bool((optimum.at.noise >= 0.999 * finite.min() / max(lowest, 1e-300)).any())
        )
        own = {name: told.pop(name) for name in SAID if name in told}
        diagnostics = replace(
            run.described(model, found.prior, optimum), method=repr(self), data_passes=own.pop("data_passes", 1),
            converged=optimum.converged and not bounded, noise_at_floor=bounded, structure=told, **own,
        )  # fmt: skip
        return replace(found, diagnostics=diagnostics)


SAID = (
    "data_passes", "evidence_at", "prior_scale_moved", "rank", "largest_left_out", "largest_residual", "limited_by",
)  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class StructuredPosterior(WhitenedPosterior):
    """What a structure knows of the data: the covariance at every precision, and the fit by which it is tuned."""

    curvature: Curvature  # M at unit noise, with the prior's scale
    fit: Fit
    prior: DiagonalPrior
    noise_precision: Tensor
    count: float  # observations; none where the fit is a log probability
    log_weight: float
    seed: int
    draws: int
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    kind = "structure"

    def at(self, prior: DiagonalPrior, noise_precision: Tensor) -> StructuredPosterior:
        fit = self.fit.at(prior, noise_precision, lambda: self._preconditioner(prior, noise_precision))
        found = replace(self, fit=fit, prior=prior, noise_precision=noise_precision)
        if min_stiffening(self.curvature.ratios(1.0)) > 0:
            check_positive(basis_of(self.curvature, prior, noise_precision).values, prior)
        return found

    def _preconditioner(self, prior: DiagonalPrior, noise_precision: Tensor) -> Preconditioner:
        return Nearby(basis_of(self.curvature, prior, noise_precision))

    @cached_property
    def whitened(self) -> Whitened:
        """The posterior at these precisions, around zero.

        With V complete, Vᵀz = (Vᵀθ̃ + √k ζ) / (1 + k) for standard normals ζ has variance 1 / (1 + k): draws follow the
        precision smoothly, as those that are made from the data do. Where a Hessian has k < 0 they are stretched.
        """
        basis = basis_of(self.curvature, self.prior, self.noise_precision)
        check_positive(basis.values, self.prior)
        k = basis.values.double()
        known = Statistics(
            basis=Eigenbasis(basis), values=k, targets=torch.zeros_like(k), remainder=0.0,
            noise=Noise(self.seed, DATA).rows(0, len(k), self.draws),
            prior_noise=k.abs().sqrt()[:, None] * basis.coordinates(self.prior_noise.mT).mT,
            density=torch.ones_like(k), count=self.count,
            log_weight=self.log_weight + 0.5 * self.count * float(self.noise_precision.log()),
        )  # fmt: skip
        return Whitened(self.prior.std, known)

    def problem(self, run: Run | None = None) -> Problem:
        return self.fit.problem(self._curvature_problem(), None if run is None else run.report)

    def _curvature_problem(self) -> Problem:
        k = self.curvature.ratios(1.0)
        values = k[k > 1e-10 * k.max()]
        return Problem(
            moments=self._moments, counts=torch.tensor([self.count], dtype=torch.float64), sizes=self.prior.sizes,
            log_weight=self.log_weight, largest=float(k.max()), one_by_one=True, points=19,
            positive_from=min_stiffening(k), middle=float(values.median()), lowest_noise_ratio=LOWEST_RATIO,
        )  # fmt: skip

    def _moments(self, at: Precisions) -> Moments:
        """What the structure has of the evidence at any precisions of the prior's groups."""
        groups, group_of = len(self.prior.precision), self.prior.group_of
        scaled = self.curvature.times(float(at.noise))
        precision = per_weight(at.prior, group_of)
        k = scaled.ratios(precision).double()
        total = (k / (1 + k)).sum().reshape(1)
        determined = total if groups == 1 else grouped(scaled.determined(precision).double(), group_of, groups)
        return Moments(torch.zeros_like(total), torch.zeros_like(at.prior), determined, total, k.log1p().sum())

    def curvature_in_multiples(self) -> Problem:
        def moments(at: Precisions) -> Moments:
            found = self._moments(Precisions(self.prior.precision * at.prior, self.noise_precision * at.noise))
            return replace(found, weights=torch.zeros_like(found.leverage), determined=found.leverage)

        noise = float(self.noise_precision)
        k = self.curvature.times(noise).ratios(per_weight(self.prior.precision, self.prior.group_of))
        return Problem(
            moments=moments, counts=torch.tensor([self.count], dtype=torch.float64),
            sizes=self.prior.sizes.sum().reshape(1),
            log_weight=self.log_weight + 0.5 * self.count * float(self.noise_precision.log()),
            largest=float(k.max()), one_by_one=True, positive_from=min_stiffening(k),
        )  # fmt: skip

    def check_leverages(self, *, linear: bool) -> None:
        """Leverages at the network's own outputs are rough, but known; those at the mode would need the data."""
        if not linear and self.count == 0:  # labels
            return
        raise ValueError(
            "leave_one_out() needs the leverages of method=Exact(): a structure approximates them too coarsely"
        )

    def check_changeable(self) -> None:
        raise ValueError(
            "a structured posterior (Diagonal, KFAC, EKFAC, LowRank) is not a sum over data that more could be added "
            "to: fit it again on all of them; a prior with the precision found here saves the search"
        )

    @property
    def has_residuals(self) -> bool:
        return False

    def pack(self) -> Packed | None:
        packed = pack_curvature(self.curvature)
        if packed is None:
            return None
        plain, tensors = packed
        told, fitted = self.fit.pack()
        kept = {"curvature": plain, "count": self.count, "log_weight": self.log_weight, "fit": told}
        return kept, {**tensors, **prefixed("fit", fitted)}

    @classmethod
    def unpack(cls, plain: dict[str, Any], tensors: dict[str, Tensor], context: FileContext) -> StructuredPosterior:
        fit = unpack_fit(plain["fit"], named(tensors, "fit."), context)
        return cls(
            unpack_curvature(plain["curvature"], tensors), fit, context.prior, context.noise_precision,
            plain["count"], plain["log_weight"], context.seed, context.deviations.shape[1], context.diagnostics,
        )  # fmt: skip


def _rows(model: LinearModel, prior: DiagonalPrior) -> GaussianSurrogate:
    """The Gaussian model that is approximated: its curvature at the network's outputs, or at a linear model's mode."""
    if model.point is None:
        return fit_of(model, prior).gaussian_surrogate
    return model.gaussian_surrogate(model.outputs_at_point())


def _check_not_zero(curvature: Curvature) -> None:
    k = curvature.ratios(1.0)
    if not len(k) or not bool(k.max() > 0):
        raise ValueError(
            "the curvature is zero: the outputs do not depend on these weights, or the labels are certain everywhere; "
            "select other weights, or give more data"
        )
