"""MacKay's fixed point on draws: where it begins, and its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import Moments, Optimum, Precisions, Problem, mackay_update
from lapwing.bayes.evidence.fixed_point import at_the_weights
from lapwing.bayes.evidence.tuning import above_floor
from lapwing.bayes.fits import Fit, LaplaceAtMode, LaplaceAtPoint
from lapwing.bayes.likelihoods import GammaHyperprior
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.interface import Run
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.statistics import Ritz, from_space, known_trace
from lapwing.linalg import krylov
from lapwing.linalg.operators import LinearOperator, over_parts
from lapwing.runtime.memory import available_bytes
from lapwing.runtime.progress import Report

if TYPE_CHECKING:
    from lapwing.bayes.methods.sampled import IterativeSampler, SampledMoments


def scale_aware_start(sampler: IterativeSampler) -> Precisions:
    """Precisions with which prior and noise have an equal share in the squares of the targets: one product with G."""
    n, features, theta = len(sampler.targets), sampler.features, sampler.prior_noise
    trace = float(over_parts(features, lambda _a, _b, part: part.matmat(theta).square().sum())) / sampler.draws
    noise = 2 * n / float(sampler.targets.square().sum().clamp_min(1e-300))
    return Precisions(*(torch.tensor([value], dtype=torch.float64) for value in (noise * trace / n or 1.0, noise)))


def tune(
    sampler: IterativeSampler,
    prior: DiagonalPrior,
    start: Precisions,
    problem: Problem,
    report: Report,
    fit: Fit | None = None,
) -> tuple[IterativeSampler, Optimum]:
    """MacKay's fixed point on draws, from a start of the right scale; groups that fade away are pruned.

    `problem` says what is free. The mean of a `fit` that is not the Gaussian model's own is found at every step, and so
    are the rows of one whose curvature moves.
    """
    if problem.is_fixed:
        return sampler, Optimum(start, 0, True)
    at = above_floor(problem, start)
    steps = sampler.method.rounds
    for step in range(steps):
        setting = replace(prior, precision=at.prior)
        if fit is not None:
            fit = fit.at(setting, at.noise)
            sampler = sampler.on(fit, prior)
        solution, right = sampler.solve(setting, at.noise)
        m = sampler.moments(setting, at.noise, solution, right)
        if fit is not None and not fit.is_closed_form:
            m = replace(m, weights=fit.fitted(at)[1])
        sampler = sampler.warmed(setting, solution)
        new = above_floor(problem, _mackay(sampler, problem, at, m))
        change = max(_log_change(new.prior, at.prior), _log_change(new.noise, at.noise))
        report(f"step {step + 1}, {solution.passes:.0f} passes, precisions moved by {change:.1%}")
        at = new
        if change < 1e-3:
            return sampler, Optimum(at, step + 1, True)
    return sampler, Optimum(at, steps, False)


def what_is_free(
    sampler: IterativeSampler, prior: DiagonalPrior, *, tune_prior: Tensor | bool, tune_noise: bool
) -> Problem:
    """An evidence that is known by its moments from draws alone: what is free in it."""

    def moments(at: Precisions) -> Moments:
        raise ValueError(f"moments at {at} take a solve")

    return Problem(
        moments, sampler.counts, prior.sizes, sampler.log_weight, sampler.largest,
        lowest_noise_ratio=sampler.method.lowest_noise_ratio, tune_prior=tune_prior, tune_noise=tune_noise,
    )  # fmt: skip


def _mackay(sampler: IterativeSampler, problem: Problem, at: Precisions, m: SampledMoments) -> Precisions:
    """MacKay's update from the moments of draws, which may say that more is determined than there are data."""
    leverage = m.leverage.minimum((1 - 1e-3) * sampler.counts)
    new = mackay_update(problem, at, Moments(m.residual, m.weights, m.determined, leverage, torch.zeros(())))
    if not sampler.method.prunes:
        return new
    faint = problem.free_prior(at) & (m.determined < 1e-2)
    return Precisions(torch.where(faint, torch.inf, new.prior), new.noise)


@final
@dataclass(frozen=True, eq=False)
class _Tied:
    """A prior with one precision for all of its groups."""

    whole: Prior
    group_count = 1

    @property
    def tuned(self) -> bool:
        return self.whole.tuned

    @property
    def hyperprior(self) -> GammaHyperprior | None:
        return self.whole.hyperprior

    def free(self, groups: int) -> Tensor:
        return torch.full((groups,), self.tuned)

    def on(self, features: LinearOperator, row_weights: Tensor, blocks: Tensor | None = None) -> DiagonalPrior:
        return self.whole.on(features, row_weights, blocks)


def begin(
    sampler: IterativeSampler, fit: Fit, on: DiagonalPrior, model: LinearModel, prior: Prior, run: Run
) -> tuple[Precisions, IterativeSampler]:
    """Where the search for precisions begins, and the sampler with what was learnt on the way."""
    start = Precisions(on.precision, torch.ones_like(sampler.counts))
    tune_noise = model.likelihood.tunes_noise
    if not (prior.tuned or tune_noise):
        return start, sampler
    if _space_fits(sampler):
        tied, sampler = _tied(sampler, fit, on, model, prior, run)
    else:
        tied = scale_aware_start(sampler)
    precision = torch.full_like(start.prior, float(tied.prior)) if prior.tuned else start.prior
    noise = torch.full_like(start.noise, float(tied.noise)) if tune_noise else start.noise
    return Precisions(precision, noise), sampler


def _space_fits(sampler: IterativeSampler) -> bool:
    """Whether three steps of a Krylov space, columns that CG and SGD do without, would fit into memory."""
    rows, d = sampler.features.shape
    return 8.0 * (2 * sampler.draws + 1) * (6 * min(rows, d) + 2 * d) <= available_bytes() / 2


def _tied(
    sampler: IterativeSampler, fit: Fit, on: DiagonalPrior, model: LinearModel, prior: Prior, run: Run
) -> tuple[Precisions, IterativeSampler]:
    """The optimum with all precisions and all noises tied, seen by a few Krylov steps.

    The space also gives the solves their first start and, where it fits, a preconditioner.
    """
    block = krylov.StartBlock(sampler.prior_noise, sampler.normals, sampler.targets[:, None])
    space = krylov.grow(sampler.features, block, 3)
    ritz = Ritz(space, sampler.features, 1.0, known_trace(sampler.features))
    known = from_space(space, ritz, count=float(sampler.counts.sum()), log_weight=sampler.log_weight)
    given = torch.ones(1, dtype=torch.float64) if prior.tuned else on.precision[:1]
    unit = torch.ones(1, dtype=torch.float64)
    if isinstance(fit, LaplaceAtPoint | LaplaceAtMode):
        at = Precisions(torch.tensor([exp(at_the_weights(known, fit.search.start))], dtype=torch.float64), unit)
    else:
        tied = DiagonalPrior(on.scale, torch.zeros_like(on.group_of), given, ("all",))
        problem = evidence.problem((known,), tied)
        at = run.optimum(problem, _Tied(prior), model.likelihood, Precisions(given, unit)).at
    at = Precisions(torch.where(at.prior.isfinite(), at.prior, float(space.ritz.max()) * at.noise), at.noise)
    draws, mean = krylov.draws_and_mean(space, alpha=float(at.prior), beta=float(at.noise), operator=sampler.features)
    fits = 8.0 * sampler.features.shape[1] * len(space.ritz) < available_bytes() / 8
    basis = (ritz.expand(torch.eye(len(space.ritz), dtype=torch.float64)), space.ritz) if fits else None
    return at, replace(sampler, warm=torch.cat([mean, draws], dim=1).to(sampler.prior_noise), ritz=basis)


def _log_change(new: Tensor, old: Tensor) -> float:
    finite = new.isfinite() & old.isfinite()
    pruned = bool((new.isfinite() != old.isfinite()).any())
    return 1.0 if pruned else float((new[finite] / old[finite]).log().abs().max()) if bool(finite.any()) else 0.0
