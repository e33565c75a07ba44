"""What each method finds: an optimum of the precisions and what is known of the data there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import LOWEST_RATIO, Optimum, Precisions, indefinite
from lapwing.bayes.evidence.fixed_point import LARGEST_STEP, at_the_weights, determined, rough_enough, secant
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import Centre, LinearModel
from lapwing.bayes.methods import CG, SGD, Exact, Krylov, LowRank, Method, Structural
from lapwing.bayes.modes.tangent import AtMode, Known, Tangent
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.outputs.links import DEFAULT_LINK, Link
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.solving import iterative
from lapwing.bayes.solving.iterative import Sampler
from lapwing.bayes.solving.journals import kept_mode
from lapwing.bayes.solving.precisions import above_floor, gram_error, tune, tuned_at_mode
from lapwing.bayes.solving.storing import in_double
from lapwing.bayes.solving.structured import (
    Approximate,
    EvidenceAt,
    Fits,
    Shape,
    approximate,
    at_weights,
    least_squares,
)
from lapwing.bayes.statistics import (
    Ritz,
    Statistics,
    from_space,
    known_trace,
    shared_space,
    summarise,
    totals,
    whitened_data,
)
from lapwing.linalg import krylov
from lapwing.linalg.journal import Journal
from lapwing.linalg.memory import available_bytes
from lapwing.linalg.operators import check_adjoint
from lapwing.linalg.progress import Report
from lapwing.linalg.spectral import COARSE, Side, round_off

MODE_ROUNDS = 20
SEARCH_RTOL = 0.1  # of a Krylov space while the precision is looked for
EPS = torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True, eq=False)
class Task:
    """What is to be inferred: a model, its prior on these features and as chosen, and the noise of the draws."""

    model: LinearModel
    prior: DiagonalPrior
    choice: Prior
    noise: Noise
    draws: int
    report: Report
    tangent: Tangent | None = None  # of a likelihood that is not Gaussian; `model` is then its surrogate
    by_evidence: bool = True  # or the precision is left to held-out data
    shape: Shape | None = None  # of a structured curvature
    evidence_at: EvidenceAt = "mode"
    journal: Journal | None = None  # where a long run keeps what it has found


@final
@dataclass(frozen=True, eq=False)
class Solved:
    """What a method found; has the fields that `assemble` reads of a posterior."""

    statistics: tuple[Statistics, ...] | Sampler | Approximate
    optimum: Optimum
    given: Gaussian
    outputs: int | None
    seed: int
    diagnostics: dict[str, Any]
    features_at: Any
    centre: Centre | None
    model: LinearModel
    tangent: Tangent | None
    at_mode: AtMode | None = None
    link: Link = DEFAULT_LINK
    temperature: float = 1.0


def solve(task: Task, method: Method, why: str, *, asked: bool) -> Solved:
    """What the method finds; conjugate gradients where a basis does not fit and nobody asked for it."""
    by_layer = task.shape is not None and not isinstance(method, LowRank) and task.evidence_at == "weights"
    if not (isinstance(method, Exact) or by_layer):  # products are all that is known, so the two must belong together
        check_adjoint(task.model.features, generator=torch.Generator().manual_seed(0))
    match method:
        case Exact():
            return _exact(task, method, why)
        case Krylov():
            if task.tangent is not None and task.choice.tuned and task.by_evidence:
                return _krylov_at_mode(task, task.tangent, method, why)
            solved = _krylov(task, method, why)
            if not asked and solved.diagnostics["limited_by"] == "memory":
                return _iterative(task, CG(), "the basis of a Krylov space would not fit into memory")
            return solved
        case CG() | SGD():
            return _iterative(task, method, why)
        case _:
            return _structured(task, method, why)


def _exact(task: Task, method: Exact, why: str) -> Solved:
    """By eigen-decomposition; from singular values where the Gram matrix turns out too coarse."""
    side: Side = method.side or "primal"
    if task.model.features.rows_are_cheap:  # a network's features in double: evidence sees the last digits of J w̄
        task = replace(task, model=replace(task.model, features=in_double(task.model.features)))
    while True:
        rows, d = task.model.features.shape
        task.report(f"decomposing {rows:,} × {d:,} features ({side})")
        statistics = summarise(task.model, task.prior, side=side, noise=task.noise, draws=task.draws)
        task.report("maximising the evidence")
        optimum = tune(
            statistics, task.prior, task.choice, task.model.gaussian, task.tangent, task.by_evidence, task.report
        )
        error = gram_error(statistics, optimum.at)
        if side == "svd" or error <= COARSE:
            break
        side, why = "svd", "noise so small beside the prior that a Gram matrix would be too coarse"
    found = {
        "method": f"exact, {side}", "why": why, "data_passes": 3, "converged": optimum.converged,
        "round_off": (EPS * error) ** 0.5 if side == "svd" else error, "eps": round_off(task.model.features),
        "noise_at_floor": task.model.gaussian.noise_std is None and error >= 0.99 * EPS / LOWEST_RATIO,
    }  # fmt: skip
    return _solved(task, statistics, optimum, found)


def _krylov(task: Task, method: Krylov, why: str) -> Solved:
    """By one shared Krylov space, large enough for the precisions that it is tuned to."""
    likelihood, count, log_weight = task.model.gaussian, *totals(task.model)
    scaled, targets, normals = whitened_data(task.model, task.prior, task.noise, task.draws)
    prior_noise = replace(task.noise, stream=PRIOR).rows(0, len(task.prior.scale), task.draws)

    def tuned(ritz: Ritz) -> tuple[Statistics, Optimum]:
        statistics = from_space(ritz.space, ritz, count=count, log_weight=log_weight)
        return statistics, tune((statistics,), task.prior, task.choice, likelihood, task.tangent, task.by_evidence)

    def settings(ritz: Ritz) -> list[tuple[float, float]]:
        at = tuned(ritz)[1].at
        return [(float(at.prior), float(at.noise))]

    block = krylov.Block(prior_noise, normals, targets[:, None], task.journal)
    ritz = shared_space(scaled, block, settings, method, task.report)
    statistics, optimum = tuned(ritz)
    found = _told(ritz, method, optimum.at, why)
    found["converged"] = optimum.converged and found["converged"]
    return _solved(task, (statistics,), optimum, found)


def _krylov_at_mode(task: Task, loss: Tangent, method: Krylov, why: str) -> Solved:
    """The same for labels, by evidence at the mode: space, mode and precision take turns.

    MacKay's fixed point α = γ(α) / ‖θ⋆(α)‖² is found by secants in log α; the space is coarse until it has settled.
    """
    scaled, targets, normals = whitened_data(task.model, task.prior, task.noise, task.draws)
    prior_noise = replace(task.noise, stream=PRIOR).rows(0, len(task.prior.scale), task.draws)
    block = krylov.Block(prior_noise, normals, targets[:, None], task.journal)
    space = krylov.grow(scaled, block, min(2, method.steps or 2))
    ritz, passes, near = Ritz(space, scaled, method.rtol, known_trace(scaled)), 0.0, None
    seen: list[tuple[float, float]] = []
    statistics, settled = from_space(space, ritz, count=0.0, log_weight=0.0), False
    log_alpha = at_the_weights(statistics, loss.start) + LARGEST_STEP  # from above, where space and mode are cheap
    for _ in range(MODE_ROUNDS):
        ritz = _grown(ritz, task, method, float(np.exp(log_alpha)), max(method.rtol, SEARCH_RTOL))
        statistics = from_space(ritz.space, ritz, count=0.0, log_weight=0.0)
        alpha = torch.tensor([np.exp(log_alpha)], dtype=torch.float64)
        known = Known(ritz, ritz.values / alpha) if loss.row_space is None else None
        gamma = determined(statistics, log_alpha)
        rough = rough_enough(gamma, abs(seen[-1][1]) if seen else 1.0)
        near = kept_mode(task.journal, f"mode {len(seen)}", partial(loss.mode, alpha, near, known, rough))
        passes += near.mode.passes
        wanted = float(np.log(gamma / float(loss.energies(near).sum())))
        seen.append((log_alpha, wanted - log_alpha))
        task.report(f"prior precision {float(alpha):.4g}, {passes:.0f} passes for the mode")
        settled = abs(seen[-1][1]) < 1e-2
        if settled:
            break
        log_alpha = secant(seen)
    ritz = _grown(ritz, task, method, float(np.exp(log_alpha)), method.rtol)
    statistics = from_space(ritz.space, ritz, count=0.0, log_weight=0.0)
    at = Precisions(*torch.tensor([[np.exp(log_alpha)], [1.0]], dtype=torch.float64))
    found = {**_told(ritz, method, at, why), "mode_passes": passes, "converged": settled}
    return replace(_solved(task, (statistics,), Optimum(at, len(seen), settled), found), at_mode=near)


def _grown(ritz: Ritz, task: Task, method: Krylov, alpha: float, rtol: float) -> Ritz:
    if ritz.error(alpha, 1.0) <= rtol or ritz.space.limited_by:
        return ritz
    space = krylov.build(
        ritz.operator, ritz.space, alpha=alpha, rtol=rtol, max_steps=method.steps,
        max_memory_bytes=method.memory_bytes, report=task.report,
    )  # fmt: skip
    return replace(ritz, space=space)


def _told(ritz: Ritz, method: Krylov, at: Precisions, why: str) -> dict[str, Any]:
    """What diagnostics say of a space."""
    space, alpha = ritz.space, float(at.prior)
    error = 0.0 if alpha == float("inf") else ritz.error(alpha, float(at.noise))
    return {
        "method": f"shared Krylov space, {space.side}", "why": why, "data_passes": space.chain.passes,
        "column_products": space.chain.columns, "block_steps": space.steps, "directions": len(space.ritz),
        "error_bound": error, "converged": error <= method.rtol, "limited_by": space.limited_by,
    }  # fmt: skip


def _iterative(task: Task, method: CG | SGD, why: str) -> Solved:
    """By solves at one setting of the precisions after another, from where a small Krylov space says to begin."""
    likelihood, groups = task.model.gaussian, len(task.prior.precision)
    sampler = iterative.sampler(task.model, task.prior, method, task.noise, task.draws)
    tune_prior, tune_noise = task.choice.tuned, likelihood.noise_std is None
    start = Precisions(task.prior.precision, torch.ones_like(sampler.counts))
    if tune_prior or tune_noise:
        begin, sampler = _tied(task, sampler) if _fits(sampler) else (iterative.scale_aware_start(sampler), sampler)
        prior = torch.full((groups,), float(begin.prior), dtype=torch.float64) if tune_prior else start.prior
        noise = torch.full_like(sampler.counts, float(begin.noise)) if tune_noise else start.noise
        start = Precisions(prior, noise)
    sampler, optimum = iterative.tune(
        sampler, task.prior, start, tune_prior=tune_prior, tune_noise=tune_noise, report=task.report,
        energies=None if task.tangent is None else _mode_energies(task.tangent),
    )  # fmt: skip
    return _solved(task, sampler, optimum, {"method": repr(method), "why": why, "converged": optimum.converged})


def _mode_energies(loss: Tangent) -> Callable[[Tensor], Tensor]:
    """‖θ⋆‖² of every group at some precisions, each mode started from the last."""
    near: AtMode | None = None

    def energies(precision: Tensor) -> Tensor:
        nonlocal near
        near = loss.mode(precision, near)
        return loss.energies(near)

    return energies


def _structured(task: Task, method: Structural, why: str) -> Solved:
    """By a structured curvature, its precisions at the maximum of the evidence."""
    assert task.shape is not None
    fits: Fits | None = None
    model = task.model if task.tangent is None else task.tangent.model
    if task.evidence_at == "weights":
        fits = at_weights(model, task.prior)
    elif task.tangent is None:
        task.report("finding the modes of the linear model")
        if model.centre is not None and not model.features.rows_are_costly:
            model = replace(model, features=in_double(model.features))
        fits = least_squares(model, task.prior, task.shape.curvature, task.noise)
    known = approximate(task.shape, model, fits, task.noise, task.draws)
    task.report("maximising the evidence")
    optimum, bounded = _tuned_structure(known, task)
    found = {
        "method": repr(method), "why": why, "converged": optimum.converged and not bounded,
        "evidence_at": task.evidence_at, "noise_at_floor": bounded,
    }  # fmt: skip
    return _solved(task, known, optimum, {"data_passes": 1, **found, **task.shape.diagnostics})


def _tuned_structure(known: Approximate, task: Task) -> tuple[Optimum, bool]:
    """The optimum, and whether its noise had to be kept from running to zero.

    It runs where the mode fits every target and the structure leaves out what that takes, as few eigenpairs do.
    """
    problem, values = known.problem(task.prior), known.curvature.ratios(1.0)
    values = values[values > 1e-10 * values.max()]
    if task.tangent is not None and not (task.by_evidence and task.evidence_at == "weights"):
        return tuned_at_mode(
            problem, values, task.prior, task.choice, task.tangent, task.by_evidence, task.report
        ), False
    tune_noise = task.tangent is None and task.model.gaussian.noise_std is None
    problem = replace(
        problem, tune_prior=task.choice.tuned, tune_noise=tune_noise, prior_hyperprior=task.choice.hyperprior,
        noise_hyperprior=task.model.gaussian.hyperprior,
    )  # fmt: skip
    start = Precisions(task.prior.precision, torch.ones(1, dtype=torch.float64))
    if problem.positive_from > 0 and (problem.tune_prior or problem.tune_noise):
        return indefinite.tuned(problem, start, task.by_evidence), False
    optimum = evidence.maximise(problem, evidence.scan(problem, start, 19))
    kept = above_floor(problem, optimum.at, LOWEST_RATIO)
    return replace(optimum, at=kept), bool((kept.noise < optimum.at.noise).any())


def _fits(sampler: Sampler) -> bool:
    """Whether three steps of a Krylov space, columns that CG and SGD do without, would fit into memory."""
    rows, d = sampler.features.shape
    return 8.0 * (2 * sampler.draws + 1) * (6 * min(rows, d) + 2 * d) <= available_bytes() / 2


def _tied(task: Task, sampler: Sampler) -> tuple[Precisions, Sampler]:
    """Where to begin: the optimum with all precisions and all noises tied, seen by a few Krylov steps.

    The space also gives the solves their first start and, where it fits, a preconditioner.
    """
    block = krylov.Block(sampler.prior_noise, sampler.normals, sampler.targets[:, None])
    space = krylov.grow(sampler.features, block, 3)
    ritz = Ritz(space, sampler.features, 1.0, known_trace(sampler.features))
    statistics = from_space(space, ritz, count=float(sampler.counts.sum()), log_weight=sampler.log_weight)
    given = task.prior.precision[:1] if not task.choice.tuned else torch.ones(1, dtype=torch.float64)
    tied = DiagonalPrior(task.prior.scale, torch.zeros_like(task.prior.group_of), given, ("all",))
    if task.tangent is None:
        at = tune((statistics,), tied, task.choice, task.model.gaussian).at
    else:
        log_alpha = at_the_weights(statistics, task.tangent.start)
        at = Precisions(*torch.tensor([[np.exp(log_alpha)], [1.0]], dtype=torch.float64))
    at = Precisions(torch.where(at.prior.isfinite(), at.prior, float(space.ritz.max()) * at.noise), at.noise)
    draws, mean = krylov.draws_and_mean(space, alpha=float(at.prior), beta=float(at.noise), operator=sampler.features)
    fits = 8.0 * sampler.features.shape[1] * len(space.ritz) < available_bytes() / 8
    basis = (ritz.expand(torch.eye(len(space.ritz), dtype=torch.float64)), space.ritz) if fits else None
    return at, replace(sampler, warm=torch.cat([mean, draws], dim=1).to(sampler.prior_noise), ritz=basis)


def _solved(
    task: Task, statistics: tuple[Statistics, ...] | Sampler | Approximate, optimum: Optimum, found: dict[str, Any]
) -> Solved:
    model, finite = task.model, optimum.at.prior.isfinite()
    diagnostics = {
        **found, "observations": model.targets.numel(), "weights": model.features.shape[1], "draws": task.draws,
        "seed": task.noise.seed, "tuning_steps": optimum.steps,
        "pruned": [name for name, kept in zip(task.prior.names, finite, strict=True) if not bool(kept)],
    }  # fmt: skip
    outputs = None if model.targets.ndim == 1 else model.outputs
    return Solved(
        statistics,
        optimum,
        model.gaussian,
        outputs,
        task.noise.seed,
        diagnostics,
        model.features_at,
        model.centre,
        model,
        task.tangent,
    )
