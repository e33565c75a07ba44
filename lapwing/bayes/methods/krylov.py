"""Posteriors from one shared block-Krylov space: matrix products only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import exp, inf, log
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import Optimum, Precisions, Problem
from lapwing.bayes.evidence.fixed_point import LARGEST_STEP, at_the_weights, determined, rough_enough, secant
from lapwing.bayes.fits import AveragedOverDraws, Fit, LaplaceAtMode, LaplaceAtPoint, Packed, averaged, fit_of
from lapwing.bayes.fits.averaged import Drawn, DrawnSearch, Draws
from lapwing.bayes.fits.newton import AS_NEEDED, NewtonSteps
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.long_runs import kept_mode
from lapwing.bayes.methods.exact import mean_over_ratio, tied_problem
from lapwing.bayes.methods.interface import FileContext, Method, Run, WeightPosterior, WhitenedPosterior
from lapwing.bayes.methods.packing import LARGEST, named, pack_space, prefixed, unpack_fit, unpack_space
from lapwing.bayes.noise import Noise
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.statistics import (
    Growth,
    Ritz,
    Statistics,
    Whitened,
    converged,
    data_noise,
    from_space,
    in_units,
    known_trace,
    prior_noise,
    shared_space,
    whiten,
)
from lapwing.linalg import krylov
from lapwing.linalg.operators import LinearOperator, check_adjoint, row_blocks
from lapwing.linalg.solvers import Preconditioner
from lapwing.runtime.journal import Journal
from lapwing.runtime.progress import Report

MODE_ROUNDS = 20
SPACE_RESOLUTION = 2e-2  # in log precision, of a search with a space for each
SEARCH_RTOL = 0.1  # of a Krylov space while the precision is looked for
ONE_EACH = "a Krylov space serves one prior precision and one noise: use Exact() or CG() for several"


@final
@dataclass(frozen=True)
class Krylov(Method):
    """The shared block-Krylov space: matrix products only, one space for every draw and every precision.

    It grows until the relative function error of every draw on the data is at most `rtol` at the precisions in use,
    for at most `steps` block steps and half of the memory that is free, or that `fit(max_memory=…)` leaves. Where even
    that is too little, a `fallback` is used instead, if there is one.

    Parameters
    ----------
    steps : int, optional
        Largest number of block steps.
    rtol : float
        Relative error of function draws on the training data at which the space is large enough.
    fallback : method, optional
        Method to use where the memory does not suffice.
    newton : NewtonSteps
        Tolerance and number of Newton steps for likelihoods that are not Gaussian.
    targets : Tensor, optional
        Targets to start the space from, set by lapwing.
    column : int
        Column of `targets` that it is for, set by lapwing.
    known : Ritz, optional
        A space that is known already, set by lapwing.

    Raises
    ------
    ValueError
        If `rtol` is not between 0 and 1, or `steps` is below one.

    Examples
    --------
    >>> import lapwing as lw
    >>> model = lw.LinearModel([[3.0, 0.0], [0.0, 1.0]], [1.0, 2.0], lw.Gaussian(1.0))
    >>> lw.infer(model, prior=lw.Isotropic(1.0), method=Krylov()).mean
    tensor([0.3000, 1.0000], dtype=torch.float64)
    """

    steps: int | None = None
    rtol: float = 1e-2
    fallback: Method | None = field(default=None, repr=False)
    newton: NewtonSteps = field(default=AS_NEEDED, repr=False)  # to the mode, where the noise is not Gaussian
    targets: Tensor | None = field(default=None, repr=False, compare=False)  # (rows, targets), that share one space
    column: int = field(default=0, repr=False)  # of the target that is meant
    known: Ritz | None = field(default=None, repr=False, compare=False)  # a space that is there already

    def __post_init__(self) -> None:
        if not 0 < self.rtol < 1:
            raise ValueError(f"rtol must lie between 0 and 1, got {self.rtol}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def for_target(self, column: int) -> Krylov:
        """The same for another of the targets that share the space."""
        return replace(self, column=column)

    def after(self, posterior: WeightPosterior) -> Krylov:
        """The same with the space that was grown on the way to a posterior."""
        return replace(self, known=posterior.ritz) if isinstance(posterior, KrylovPosterior) else self

    @property
    def growth(self) -> Growth:
        """How far the space may grow."""
        return Growth(self.rtol, self.steps)

    def check(self, model: LinearModel, prior: Prior) -> None:
        """Refuse several precisions or noises, unless every precision has a space of its own."""
        several = prior.group_count > 1 and (model.likelihood.constant_curvature or model.point is not None)
        if several or model.noise_groups > 1:
            raise ValueError(ONE_EACH)

    def averaging_obstacle(self, model: LinearModel, groups: int) -> str | None:
        """What a search over draws cannot hold, or do."""
        return averaged.obstacle(model, groups)

    def needed_bytes(self, model: LinearModel, draws: int) -> float:
        """That of one step."""
        return space_bytes(model.features, draws, steps=1)

    def solve(self, model: LinearModel, prior: Prior, run: Run) -> WeightPosterior:
        """By one space, large enough for the precisions that it is tuned to."""
        check_adjoint(model.features, generator=torch.Generator().manual_seed(0))
        on = run.prior_on(prior, model)
        fit = self._fit(model, on, run)
        posterior, optimum = self._tuning(fit, prior, run)(self, fit, on, model, prior, run)
        if posterior.is_cut_short and self.fallback is not None:
            because = "the basis of a Krylov space would not fit into memory"
            return self.fallback.solve(model, prior, replace(run, why=because))
        told = replace(run.described(model, posterior.prior, optimum), mode_passes=posterior.diagnostics.mode_passes)
        return posterior.at(posterior.prior, posterior.noise_precision, told)

    def _fit(self, model: LinearModel, on: DiagonalPrior, run: Run) -> Fit:
        if run.curvature != "expected":
            return fit_of(model, on, self.newton, run.curvature)
        return AveragedOverDraws(DrawnSearch.of(model, SpaceDraws(self, run), run.report), on)

    def _tuning(self, fit: Fit, prior: Prior, run: Run) -> Any:
        """How precisions are found: with a space for each, with a mode for each, or in one space alone."""
        by_evidence = prior.tuned and run.tuning.by_evidence
        if isinstance(fit, AveragedOverDraws):
            return _tuned_by_draws
        if isinstance(fit, LaplaceAtMode):
            return _tuned_by_spaces
        return _tuned_by_modes if by_evidence and not fit.is_closed_form else _tuned_in_space


@final
@dataclass(frozen=True, eq=False)
class KrylovPosterior(WhitenedPosterior):
    """A posterior from a Krylov space, which grows where other precisions need more of it."""

    statistics: Statistics
    ritz: Ritz
    fit: Fit
    prior: DiagonalPrior
    noise_precision: Tensor
    seed: int
    draws: int
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    column: int = 0  # of the target, where several share the space
    kind = "krylov"

    @staticmethod
    def of(ritz: Ritz, fit: Fit, prior: DiagonalPrior, noise_precision: Tensor, run: Run) -> KrylovPosterior:
        """The posterior of a space at some precisions."""
        known = statistics_of(ritz, fit)
        return KrylovPosterior(known, ritz, fit, prior, noise_precision, run.noise.seed, run.draws)

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor, diagnostics: Diagnostics | None = None
    ) -> KrylovPosterior:
        """The posterior at other precisions; the space grows for them where it can."""
        fit = self.fit.at(prior, noise_precision, self._preconditioner)
        moved = fit.moves and not torch.equal(prior.precision, self.prior.precision)
        if moved:
            known = self.solved_again(fit, prior, noise_precision)
        else:
            alpha = float(frame_of(fit, prior).precision[0])
            known = converged(self.statistics, self.ritz, alpha, float(noise_precision[0]), self.column)
        found = replace(
            self, statistics=known, ritz=_ritz(known), fit=fit, prior=prior, noise_precision=noise_precision
        )
        return replace(found, diagnostics=found.diagnosed(diagnostics or self.diagnostics))

    def solved_again(self, fit: Fit, prior: DiagonalPrior, noise_precision: Tensor) -> Statistics:
        """The statistics of other rows, from a space that is made anew with the same noise."""
        growth = Growth(self.ritz.rtol)
        ritz = space_at(fit, prior, float(noise_precision[0]), Noise(self.seed), self.draws, growth, None)
        return statistics_of(ritz, fit)

    @property
    def frame(self) -> DiagonalPrior:
        """The prior in whose units the space is."""
        return frame_of(self.fit, self.prior)

    def _preconditioner(self) -> Preconditioner:
        return KrylovPreconditioner(self.ritz, self.whitened.values)

    def diagnosed(self, before: Diagnostics) -> Diagnostics:
        """What diagnostics say of the space at these precisions: it may be too small where it cannot grow."""
        space, alpha = self.ritz.space, float(self.frame.precision[0])
        error = 0.0 if alpha == inf else self.ritz.error(alpha, float(self.noise_precision[0]))
        return replace(
            before, method=f"shared Krylov space, {space.side}", data_passes=space.chain.passes,
            column_products=space.chain.columns, block_steps=space.steps, directions=len(space.ritz),
            error_bound=error, converged=before.converged and error <= self.ritz.rtol, limited_by=space.limited_by,
        )  # fmt: skip

    @cached_property
    def whitened(self) -> Whitened:
        """Mean, draws and covariance where the prior is standard normal."""
        return whiten((self.statistics,), self.frame, self.noise_precision, self.prior_noise)

    def problem(self) -> Problem:
        if self.fit.moves:
            return self.fit.problem(replace(evidence.problem((self.statistics,), self.frame), sizes=self.prior.sizes))
        return self.fit.problem(evidence.problem((self.statistics,), self.prior))

    def curvature_in_multiples(self) -> Problem:
        return tied_problem(self.whitened)

    def mean_over_ratio(self, features: LinearOperator) -> Any:
        return mean_over_ratio(self.whitened, features) if self.fit.is_closed_form else None

    def bounds(self, features: LinearOperator) -> tuple[Tensor, Tensor]:
        """From the space: what it holds, and what it may have left out."""
        alpha, beta = float(self.frame.precision), float(self.noise_precision)
        blocks = [
            krylov.variances(
                self.ritz.space, rows.double() * self.frame.scale, alpha=alpha, beta=beta, operator=self.ritz.operator
            )
            for rows in row_blocks(features)
        ]
        return torch.cat([block.lower for block in blocks]), torch.cat([block.upper for block in blocks])

    @property
    def is_cut_short(self) -> bool:
        return self.ritz.space.limited_by == "memory"

    def knows_as_much_as(self, other: WeightPosterior) -> bool:
        return isinstance(other, KrylovPosterior) and self.ritz is other.ritz

    def check_changeable(self) -> None:
        """A space is made anew."""

    def with_fit(self, fit: Fit) -> KrylovPosterior:
        """From a space that is made anew: what is saved is the search for the precision."""
        known = self.solved_again(fit, self.prior, self.noise_precision)
        found = replace(self, statistics=known, ritz=_ritz(known), fit=fit)
        return replace(found, diagnostics=found.diagnosed(self.diagnostics))

    def pack(self) -> Packed | None:
        if 8 * len(self.statistics.values) * len(self.prior.scale) > LARGEST:
            return None
        plain, tensors = pack_space(self.statistics, self.ritz)
        told, fitted = self.fit.pack()
        return {"space": plain, "fit": told}, {**tensors, **prefixed("fit", fitted)}

    @classmethod
    def unpack(cls, plain: dict[str, Any], tensors: dict[str, Tensor], context: FileContext) -> KrylovPosterior:
        known, ritz = unpack_space(plain["space"], tensors, context.seed)
        fit = unpack_fit(plain["fit"], named(tensors, "fit."), context)
        return cls(
            known, ritz, fit, context.prior, context.noise_precision, context.seed, context.deviations.shape[1],
            context.diagnostics,
        )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class KrylovPreconditioner:
    """Preconditioner of the loss's Hessian by a Krylov space of it at other outputs: I − V diag(k / (1 + k)) Vᵀ.

    V is orthonormal to the precision of the features, and worse where k is small beside the largest: no more is taken
    out than leaves the rest positive.
    """

    ritz: Ritz
    values: Tensor  # (rank,), k

    def solve(self, x: Tensor) -> Tensor:
        """The approximate inverse times a block of columns."""
        inside = krylov.coordinates(self.ritz.space, x, self.ritz.operator)
        return x - self.ritz.expand(self._share[:, None] * inside)

    @property
    def _share(self) -> Tensor:  # (rank,)
        k, eps = self.values, torch.finfo(self.ritz.space.chain.ahead.dtype).eps
        safe = 1 - 4 * (eps * k.max() / k.clamp_min(1e-300)).sqrt() if len(k) else k
        return torch.minimum(k / (1 + k), safe.clamp_min(0))


def space_bytes(features: LinearOperator, draws: int, *, steps: int) -> float:
    """Memory of a space after so many steps."""
    columns = 2 * draws + 1
    rows, d = features.shape
    return 8.0 * columns * (steps * min(rows, d) + 3 * d) + features.costs.working_bytes(columns)


def frame_of(fit: Fit, prior: DiagonalPrior) -> DiagonalPrior:
    """The prior in whose units a space is: where every setting of the precisions has its own, with them inside."""
    if not fit.moves:
        return prior
    one, group_of = torch.ones(1, dtype=torch.float64), torch.zeros_like(prior.group_of)
    return DiagonalPrior(prior.std, group_of, one, ("all",))


def space_at(
    fit: Fit, prior: DiagonalPrior, beta: float, noise: Noise, draws: int, growth: Growth, report: Report | None
) -> Ritz:
    """A space that is large enough for the precisions of a prior."""
    frame = frame_of(fit, prior)
    scaled = in_units(fit.gaussian_surrogate.features, frame.scale)
    block = block_of(fit.gaussian_surrogate, frame, noise, draws, None)
    space = krylov.build(
        scaled, block, alpha=float(frame.precision[0]), beta=beta, rtol=growth.rtol, max_steps=growth.steps,
        report=report,
    )  # fmt: skip
    return Ritz(space, scaled, growth.rtol, known_trace(scaled))


def block_of(
    surrogate: GaussianSurrogate, prior: DiagonalPrior, noise: Noise, draws: int, journal: Journal | None
) -> krylov.StartBlock:
    """What a space starts from: the noise of every draw, and the targets."""
    weights = prior_noise(prior, noise, draws)
    return krylov.StartBlock(weights, data_noise(surrogate, noise, draws), surrogate.targets[:, None], journal)


def statistics_of(ritz: Ritz, fit: Fit, target: int = 0) -> Statistics:
    """The statistics that a space gives, of one of its targets."""
    rows = fit.gaussian_surrogate
    count = float(rows.counts.sum())
    return from_space(ritz.space, ritz, count=count, log_weight=rows.log_weight, target=target)


def _ritz(known: Statistics) -> Ritz:
    assert isinstance(known.basis, Ritz)
    return known.basis


def _tuned_in_space(
    method: Krylov, fit: Fit, on: DiagonalPrior, model: LinearModel, prior: Prior, run: Run
) -> tuple[KrylovPosterior, Optimum]:
    """Precisions from the space alone, which grows with them in turn."""
    unit = torch.ones(1, dtype=torch.float64)

    def tuned(ritz: Ritz) -> Optimum:
        curvature = evidence.problem((statistics_of(ritz, fit, method.column),), on)
        return run.optimum(fit.problem(curvature), prior, model.likelihood, Precisions(on.precision, unit))

    def settings(ritz: Ritz) -> list[tuple[float, float]]:
        at = tuned(ritz).at
        return [(float(at.prior), float(at.noise))]

    scaled = in_units(fit.gaussian_surrogate.features, on.scale)
    block = block_of(fit.gaussian_surrogate, on, run.noise, run.draws, run.journal)
    if method.targets is not None:
        block = replace(block, targets=method.targets)
    ritz = shared_space(scaled, block, settings, method.growth, run.report, method.known)
    optimum = tuned(ritz)
    found = replace(on, precision=optimum.at.prior)
    known = statistics_of(ritz, fit, method.column)
    posterior = KrylovPosterior(known, ritz, fit, found, optimum.at.noise, run.noise.seed, run.draws)
    return replace(posterior, column=method.column), optimum


def _tuned_by_modes(
    method: Krylov, fit: Fit, on: DiagonalPrior, model: LinearModel, prior: Prior, run: Run  # noqa: ARG001
) -> tuple[KrylovPosterior, Optimum]:  # fmt: skip
    """The same by evidence at the mode: space, mode and precision take turns.

    MacKay's fixed point α = γ(α) / ‖θ⋆(α)‖² is found by secants in log α; the space is coarse until it has settled.
    """
    assert isinstance(fit, LaplaceAtPoint)
    unit, search = torch.ones(1, dtype=torch.float64), fit.search
    ritz = _begun(fit, on, method, run)
    log_alpha = at_the_weights(statistics_of(ritz, fit), search.start) + LARGEST_STEP  # from above, where it is cheap
    seen: list[tuple[float, float]] = []
    settled, passes = False, 0.0
    for number in range(MODE_ROUNDS):
        alpha = exp(log_alpha)
        ritz = _grown(ritz, run, method, alpha, max(method.rtol, SEARCH_RTOL))
        gamma = determined(statistics_of(ritz, fit), log_alpha)
        rough = rough_enough(gamma, abs(seen[-1][1]) if seen else 1.0)
        at = torch.tensor([alpha], dtype=torch.float64)
        near = KrylovPreconditioner(ritz, ritz.values / at) if search.row_space is None else None
        mode = kept_mode(run.journal, f"mode {number}", partial(search.mode, at, fit.near, near, rough))
        passes += mode.mode.passes
        fit = replace(fit, near=mode)
        if gamma <= 0:  # no precision is likelier than another
            break
        wanted = log(gamma / float(search.energies(mode).sum()))
        seen.append((log_alpha, wanted - log_alpha))
        run.report(f"prior precision {alpha:.4g}, {passes:.0f} passes for the mode")
        settled = abs(seen[-1][1]) < 1e-2
        if settled:
            break
        log_alpha = secant(seen)
    ritz = _grown(ritz, run, method, exp(log_alpha), method.rtol)
    found = replace(on, precision=torch.tensor([exp(log_alpha)], dtype=torch.float64))
    optimum = Optimum(Precisions(found.precision, unit), len(seen), settled)
    posterior = KrylovPosterior.of(ritz, fit.at(found, unit), found, unit, run)
    return replace(posterior, diagnostics=Diagnostics(mode_passes=passes)), optimum


def _tuned_by_spaces(
    method: Krylov, fit: Fit, on: DiagonalPrior, model: LinearModel, prior: Prior, run: Run
) -> tuple[KrylovPosterior, Optimum]:
    """A space for every setting, at the mode there, whose determinants come from the same noise."""
    assert isinstance(fit, LaplaceAtMode)
    unit = torch.ones(1, dtype=torch.float64)

    def space(there: Fit, at: DiagonalPrior) -> Ritz:
        return space_at(there, at, 1.0, run.noise, run.draws, method.growth, run.report)

    def curvature(there: LaplaceAtMode) -> tuple[Tensor, Tensor]:
        known = statistics_of(space(there, there.prior), there)
        gamma = known.trace_of(lambda k: k / (1 + k)).value
        shared = gamma * there.prior.sizes / there.prior.sizes.sum()  # it is not known which group has it
        return shared, torch.tensor(known.trace_of(torch.log1p).value, dtype=torch.float64)

    fit = replace(fit, curvature=curvature)
    first = space(fit, on)
    sizes = on.sizes
    problem = evidence.problem((statistics_of(first, fit),), frame_of(fit, on))
    problem = replace(problem, sizes=sizes, resolution=SPACE_RESOLUTION)
    problem = fit.problem(problem, run.report)
    optimum = run.optimum(problem, prior, model.likelihood, Precisions(on.precision, unit))
    found = replace(on, precision=optimum.at.prior)
    fit = fit.at(found, unit)
    return KrylovPosterior.of(space(fit, found), fit, found, unit, run), optimum


@final
@dataclass(frozen=True, eq=False)
class SpaceDraws(Draws):
    """Draws from a space that is made for every curvature, always with the same noise."""

    method: Krylov
    run: Run

    def of_posterior(self, fit: Fit, prior: DiagonalPrior) -> Drawn:
        run, frame = self.run, frame_of(fit, prior)
        ritz = space_at(fit, prior, 1.0, run.noise, run.draws, self.method.growth, None)
        noise = prior_noise(frame, run.noise, run.draws)
        known = whiten((statistics_of(ritz, fit),), frame, torch.ones(1, dtype=torch.float64), noise)
        gamma, log_det = (known.trace_of(part).value for part in (lambda k: k / (1 + k), torch.log1p))
        return Drawn(known.deviations(noise).double(), gamma, log_det, KrylovPreconditioner(ritz, known.values))


def _tuned_by_draws(
    method: Krylov, fit: Fit, on: DiagonalPrior, model: LinearModel, prior: Prior, run: Run
) -> tuple[KrylovPosterior, Optimum]:
    """Curvature and mean averaged over draws, and the precision with them where it is free."""
    del model
    assert isinstance(fit, AveragedOverDraws)
    assert fit.search is not None
    turn = fit.search.run(on, None, tune=prior.tuned)
    unit, found = torch.ones(1, dtype=torch.float64), replace(on, precision=turn.precision)
    fit = replace(fit, prior=found, known=turn)
    ritz = space_at(fit, found, 1.0, run.noise, run.draws, method.growth, run.report)
    optimum = Optimum(Precisions(turn.precision, unit), turn.turns, turn.converged, (turn.bound,))
    return KrylovPosterior.of(ritz, fit, found, unit, run), optimum


def _begun(fit: Fit, on: DiagonalPrior, method: Krylov, run: Run) -> Ritz:
    scaled = in_units(fit.gaussian_surrogate.features, on.scale)
    block = block_of(fit.gaussian_surrogate, on, run.noise, run.draws, run.journal)
    space = krylov.grow(scaled, block, min(2, method.steps or 2))
    return Ritz(space, scaled, method.rtol, known_trace(scaled))


def _grown(ritz: Ritz, run: Run, method: Krylov, alpha: float, rtol: float) -> Ritz:
    if ritz.error(alpha, 1.0) <= rtol or ritz.space.limited_by:
        return ritz
    space = krylov.build(ritz.operator, ritz.space, alpha=alpha, rtol=rtol, max_steps=method.steps, report=run.report)
    return replace(ritz, space=space)
