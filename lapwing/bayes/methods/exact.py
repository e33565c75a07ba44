"""Exact posteriors, from an eigen-decomposition of the smaller side of the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import ByEvidence, Optimum, Precisions, Problem, largest_value
from lapwing.bayes.fits import Fit, Packed, fit_of
from lapwing.bayes.fits.bound_search import obstacle
from lapwing.bayes.fits.newton import AS_NEEDED, NewtonSteps
from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.interface import FileContext, Leverages, Method, Run, WeightPosterior, WhitenedPosterior
from lapwing.bayes.methods.packing import LARGEST, named, pack_statistics, prefixed, unpack_fit, unpack_statistics
from lapwing.bayes.methods.storing import in_double, stored
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.priors import DiagonalPrior, Prior, options
from lapwing.bayes.statistics import (
    LOWEST_RATIO,
    Statistics,
    Whitened,
    in_units,
    log_weights,
    project,
    summarise,
    whiten,
)
from lapwing.linalg.operators import Dense, LinearOperator, rows_of
from lapwing.linalg.spectral import COARSE, Side, Spectrum, decompose, needed_bytes, round_off
from lapwing.runtime.memory import check_memory

EPS = torch.finfo(torch.float64).eps
COMPARED = 2**34  # multiplications for a Gram matrix up to which priors are compared
LARGEST_SIDE = 6000  # of a decomposition at another curvature


@final
@dataclass(frozen=True)
class Exact(Method):
    """An eigen-decomposition of the weights' side (d × d) or the data's (n·m × n·m), the smaller one by default.

    Parameters
    ----------
    side : "primal" or "dual", optional
        Whether to decompose the matrix of the weights or of the data. The smaller one by default.
    spectrum : Spectrum, optional
        A decomposition that is known already.
    newton : NewtonSteps
        Tolerance and number of Newton steps for likelihoods that are not Gaussian.

    Examples
    --------
    >>> import lapwing as lw
    >>> model = lw.LinearModel([[3.0, 0.0], [0.0, 1.0]], [1.0, 2.0], lw.Gaussian(1.0))
    >>> lw.infer(model, prior=lw.Isotropic(1.0), method=Exact()).mean
    tensor([0.3000, 1.0000], dtype=torch.float64)
    """

    side: Literal["primal", "dual"] | None = None
    spectrum: Spectrum | None = field(default=None, repr=False, compare=False)  # of the features, where it is known
    newton: NewtonSteps = field(default=AS_NEEDED, repr=False)  # to the mode, where the noise is not Gaussian
    takes_no_draws = True
    averages_by_default = True

    def averaging_obstacle(self, model: LinearModel, groups: int) -> str | None:
        """What a search over a matrix of the features cannot hold."""
        return obstacle(model, groups)

    def check(self, model: LinearModel, prior: Prior) -> None:  # noqa: ARG002
        """Refuse a decomposition of many outputs a datum that cannot fit, before any of their Jacobian is made."""
        features = model.features
        if not features.costs.too_many_outputs:
            return
        rows, d = features.shape
        side = self.side_for(model)
        check_memory(
            needed_bytes((rows, d), side) + rows * d * features.like.element_size(),
            f"an exact posterior, {side} ({d:,} weights, {rows:,} observed outputs),",
            "leave the method out, or use Krylov(), which take products alone; or select fewer weights, as the last "
            "layer",
        )  # fmt: skip

    def for_target(self, column: int) -> Exact:
        """The same for another target of the same features."""
        del column
        return self

    def after(self, posterior: WeightPosterior) -> Exact:
        """The same with what was learnt of the features on the way to a posterior."""
        del posterior
        return self

    def side_for(self, model: LinearModel) -> Literal["primal", "dual"]:
        """The side asked for, or the smaller one."""
        rows, d = model.features.shape
        return self.side or ("primal" if d <= rows else "dual")

    def solve(self, model: LinearModel, prior: Prior, run: Run) -> ExactPosterior:
        """By eigen-decomposition; from singular values where the Gram matrix turns out too coarse."""
        side: Side = self.side_for(model)
        model, on = _prepared(model, prior, run)
        fit = fit_of(model, on, self.newton, run.curvature, prior.free(len(on.precision)))
        own = self._own_optimum(model, prior, fit, run)
        if own is not None:
            fit, on = own.fit, own.prior
        why = run.why
        while True:
            rows, d = model.features.shape
            run.report(f"decomposing {rows:,} × {d:,} features ({side})")
            known = None if side == "svd" else self.spectrum
            posterior = ExactPosterior.of(fit, on, side, run, known)
            run.report("maximising the evidence")
            optimum = own.optimum if own is not None else self._optimum(posterior, prior, model, run)
            error = gram_error(posterior.statistics, optimum.at)
            if side == "svd" or error <= COARSE:
                break
            side, why = "svd", "noise so small beside the prior that a Gram matrix would be too coarse"
        found = posterior.at(replace(on, precision=optimum.at.prior), optimum.at.noise)
        told = self._told(model, found, optimum, error, run, why)
        if own is not None:
            told = replace(told, prior=own.name)
        return replace(found, eps=round_off(model.features), diagnostics=told)

    def _own_optimum(self, model: LinearModel, prior: Prior, first: Fit, run: Run) -> OwnOptimum | None:
        """The best precision by the search of the fit itself, under the likeliest of several priors."""
        best: OwnOptimum | None = None
        if not prior.tuned or prior.hyperprior is not None:
            return None
        rows, d = model.features.shape
        several = min(rows, d) * rows * d <= COMPARED
        for number, option in enumerate(options(prior) if several else options(prior)[:1]):
            if first.is_bound:
                run.report(f"looking for the best Gaussian under {type(option).__name__}")
            fit = first
            if number:
                on = option.on(model.features, model.row_weights, model.blocks)
                fit = fit_of(model, on, self.newton, run.curvature, option.free(len(on.precision)))
            found = OwnOptimum.of(fit, type(option).__name__)
            if found is None or (best is not None and found.optimum.trace[-1] <= best.optimum.trace[-1]):
                continue
            best = found
        return best

    def _optimum(self, posterior: ExactPosterior, prior: Prior, model: LinearModel, run: Run) -> Optimum:
        return run.optimum(posterior.problem(run), prior, model.likelihood, posterior.precisions)

    def _told(
        self, model: LinearModel, found: ExactPosterior, optimum: Optimum, error: float, run: Run, why: str
    ) -> Diagnostics:
        at_floor = model.likelihood.tunes_noise and error >= 0.99 * EPS / LOWEST_RATIO
        return replace(
            run.described(model, found.prior, optimum), method=f"exact, {found.side}", why=why, data_passes=3,
            converged=optimum.converged, round_off=(EPS * error) ** 0.5 if found.side == "svd" else error,
            noise_at_floor=at_floor,
        )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class OwnOptimum:
    """A fit at the best precision that its own search found, and under which prior."""

    fit: Fit
    optimum: Optimum
    prior: DiagonalPrior
    name: str

    @staticmethod
    def of(fit: Fit, name: str) -> OwnOptimum | None:
        """None where a fit leaves its precisions to a search from outside."""
        found = fit.optimum()
        if found is None:
            return None
        at, optimum = found
        return OwnOptimum(at, optimum, at.prior, name)


@final
@dataclass(frozen=True, eq=False)
class ExactPosterior(WhitenedPosterior):
    """A posterior in closed form, at any precisions from the same statistics."""

    statistics: tuple[Statistics, ...]  # one for every noise group
    fit: Fit
    prior: DiagonalPrior
    noise_precision: Tensor
    side: Side | None  # by which the statistics were found
    seed: int
    draws: int
    eps: float = EPS  # the relative precision of the features
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    kind = "exact"

    @staticmethod
    def of(fit: Fit, prior: DiagonalPrior, side: Side | None, run: Run, spectrum: Spectrum | None) -> ExactPosterior:
        """The posterior of a fit at the precisions of its prior, at unit noise."""
        known = summarise(
            fit.gaussian_surrogate,
            prior,
            side=side,
            noise=run.noise,
            draws=run.draws,
            spectrum=spectrum or fit.spectrum(),
        )
        unit = torch.ones(len(known), dtype=torch.float64)
        return ExactPosterior(known, fit, prior, unit, side, run.noise.seed, run.draws)

    @property
    def precisions(self) -> Precisions:
        """Those of the prior and of the noise."""
        return Precisions(self.prior.precision, self.noise_precision)

    def at(self, prior: DiagonalPrior, noise_precision: Tensor) -> ExactPosterior:
        fit = self.fit.at(prior, noise_precision)
        known = self.statistics
        if fit.moves and not torch.equal(prior.precision, self.prior.precision):
            known = self.summary(fit, prior)
        return replace(self, statistics=known, fit=fit, prior=prior, noise_precision=noise_precision)

    def summary(self, fit: Fit, prior: DiagonalPrior) -> tuple[Statistics, ...]:
        """The statistics of other rows, with the same noise."""
        side: Side | None = "svd" if self.side == "svd" else None
        return summarise(
            fit.gaussian_surrogate, prior, side=side, noise=Noise(self.seed), draws=self.draws, spectrum=fit.spectrum()
        )

    @cached_property
    def whitened(self) -> Whitened:
        """Mean, draws and covariance where the prior is standard normal."""
        return whiten(self.statistics, self.prior, self.noise_precision, self.prior_noise)

    def problem(self, run: Run | None = None) -> Problem:
        report = None if run is None else run.report
        return self.fit.problem(evidence.problem(self.statistics, self.prior), report)

    def curvature_in_multiples(self) -> Problem:
        return tied_problem(self.whitened)

    def mean_over_ratio(self, features: LinearOperator) -> Any:
        return mean_over_ratio(self.whitened, features) if self.fit.is_closed_form else None

    def bounds(self, features: LinearOperator) -> tuple[Tensor, Tensor]:
        variance = self.spread(features, (features.shape[0],), full=False).spread.variance
        return variance, variance

    @property
    def knows_leverages(self) -> bool:
        return True

    def check_leverages(self, *, linear: bool) -> None:
        """All leverages are known."""

    def leverages(self, model: LinearModel) -> Leverages:
        """By the left singular vectors U in units of the noise: I − SᵀVS = U (I + K)⁻¹ Uᵀ + (I − UUᵀ)."""
        n, m = len(model.targets), model.outputs
        batch = max(1, 2**22 // (m * model.features.shape[1]))
        starts = range(0, n, batch)
        parts = [self._leverages_of(start, min(start + batch, n), m) for start in starts]
        complement, residual = (torch.cat(part) for part in zip(*parts, strict=True))
        return Leverages(complement, residual if self.fit.is_closed_form else None)

    def _leverages_of(self, start: int, stop: int, m: int) -> tuple[Tensor, Tensor]:
        rows, known = self.fit.gaussian_surrogate, self.whitened
        places = slice(start * m, stop * m)
        root = self.noise_precision[rows.noise_of[places]].sqrt().reshape(-1, m)
        block = rows.features.rows(start * m, stop * m).double() * known.std
        k, seen = known.values, known.statistics.targets[:, None]
        determined = replace(known.spectrum, values=k).determined
        u = root[:, :, None] * (block @ known.vectors).reshape(-1, m, len(k)) * determined
        kept = 1 / (1 + k)
        complement, residual = (u * kept) @ u.mT, ((u * kept) @ seen)[:, :, 0]
        if int((determined > 0).sum()) < rows.features.shape[0]:  # else U spans all data
            complement = complement + torch.eye(m, dtype=torch.float64) - u @ u.mT
            residual = residual + root * rows.targets[places].reshape(-1, m) - (u @ seen)[:, :, 0]
        return complement, residual

    def with_curvature_at_mean(self) -> ExactPosterior:
        """The same where the curvature is taken at the mean already; else decomposed again."""
        fit = self.fit.at_its_mean()
        if fit is self.fit:
            return self
        directions = min(fit.gaussian_surrogate.features.shape)
        if directions > LARGEST_SIDE:
            raise ValueError(
                f"leave-one-out predictions at the linear mode decompose {directions:,} "
                f"directions, more than {LARGEST_SIDE:,}: use mean='network', or infer from fewer data or weights"
            )
        return replace(self, fit=fit, statistics=self.summary(fit, self.prior))

    def check_changeable(self) -> None:
        """Its statistics are sums over data."""

    def retuned(self, likelihood: Likelihood) -> ExactPosterior:
        own = self.fit.optimum()
        if own is not None:
            fit = own[0]
            return replace(self, fit=fit, prior=fit.prior, statistics=self.summary(fit, fit.prior))
        problem = replace(self.problem(), tune_noise=likelihood.tunes_noise, noise_hyperprior=likelihood.hyperprior)
        at = ByEvidence().optimum(problem, self.precisions).at
        return self.at(replace(self.prior, precision=at.prior), at.noise)

    def with_more(self, fit: Fit, more: LinearModel, first: int) -> ExactPosterior:
        """Statistics of old and new rows together, the old ones compressed to as many as their rank."""
        if not fit.is_closed_form:
            return self.with_fit(fit)
        new = more.gaussian_surrogate()
        rows = new.features.shape[0]
        scaled = in_units(new.features, self.prior.scale)
        normals = Noise(self.seed, DATA).rows(first, first + rows, self.draws)
        side: Side | None = "svd" if self.side == "svd" else None
        counts, given = new.counts.tolist(), log_weights(new)
        parts = []
        for group, old in enumerate(self.statistics):
            chosen = new.noise_of == group
            compressed = old.values.sqrt()[:, None] * old.basis.expand(torch.eye(len(old.values)).double()).mT
            both = Dense(torch.cat([compressed, rows_of(scaled, chosen).double()]))
            found = project(
                both, decompose(both, side), torch.cat([old.targets, new.targets[chosen]]),
                torch.cat([old.noise, normals[chosen]]), self.prior_noise, old.count + counts[group],
                old.log_weight + given[group],
            )  # fmt: skip
            parts.append(replace(found, remainder=found.remainder + old.remainder))
        eps = max(self.eps, round_off(more.features))
        return replace(self, statistics=tuple(parts), fit=fit, eps=eps)

    def with_fit(self, fit: Fit) -> ExactPosterior:
        return replace(self, fit=fit, statistics=self.summary(fit, self.prior))

    def pack(self) -> Packed | None:
        packed = pack_statistics(self.statistics, len(self.prior.scale), LARGEST)
        if packed is None:
            return None
        plain, tensors = packed
        told, fitted = self.fit.pack()
        kept = {"statistics": plain, "fit": told, "side": self.side, "eps": self.eps}
        return kept, {**tensors, **prefixed("fit", fitted)}

    @classmethod
    def unpack(cls, plain: dict[str, Any], tensors: dict[str, Tensor], context: FileContext) -> ExactPosterior:
        known = unpack_statistics(plain["statistics"], tensors, context.seed)
        fit = unpack_fit(plain["fit"], named(tensors, "fit."), context)
        return cls(
            known, fit, context.prior, context.noise_precision, plain.get("side"), context.seed,
            context.deviations.shape[1], plain.get("eps", EPS), context.diagnostics,
        )  # fmt: skip


def tied_problem(whitened: Whitened) -> Problem:
    """The evidence of whitened statistics over multiples of their precisions."""
    group_of = torch.zeros(len(whitened.std), dtype=torch.long)
    tied = DiagonalPrior(whitened.std, group_of, torch.ones(1, dtype=torch.float64), ("all",))
    return evidence.problem((whitened.statistics,), tied)


def mean_over_ratio(whitened: Whitened, features: LinearOperator) -> Any:
    """The outputs at the mean of a Gaussian model, as a function of the ratio of noise to prior precision."""
    projected = whitened.project(features)
    k, targets = whitened.values, whitened.statistics.targets
    return lambda ratio: projected @ (ratio * k.sqrt() * targets / (1 + ratio * k))


def gram_error(statistics: tuple[Statistics, ...], at: Precisions) -> float:
    """eps · s_max / ρ: how far round-off in the Gram matrix can reach at these precisions."""
    finite = at.prior[at.prior.isfinite()]
    return float(EPS * largest_value(statistics) * at.noise.max() / finite.min()) if len(finite) else 0.0


def _prepared(model: LinearModel, prior: Prior, run: Run) -> tuple[LinearModel, DiagonalPrior]:
    """The model with stored features, and the prior on them.

    Those of a network are in double precision: under Gaussian noise the evidence sees the last digits of J w̄, and under
    a wide prior variances are small differences. Under other likelihoods than Gaussian noise they are stored first,
    since the prior looks at every row too.
    """
    if not model.likelihood.constant_curvature:
        model = stored(model, run.report)
    on = run.prior_on(prior, model)
    if model.features.costs.has_row_vjp or model.point is not None:
        model = replace(model, features=in_double(model.features))
    return model, on
