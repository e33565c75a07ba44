"""infer: from a linear model to a posterior, with what is not given tuned."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from lapwing.bayes import evidence, iterative
from lapwing.bayes.evidence import LOWEST_RATIO, Optimum, Precisions, Problem, largest_value
from lapwing.bayes.iterative import Sampler
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import Centre, LinearModel
from lapwing.bayes.methods import CG, SGD, Exact, Krylov, Method
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.posterior import Posterior, assemble
from lapwing.bayes.priors import DiagonalPrior, GPrior, Prior, resolve
from lapwing.bayes.statistics import Ritz, Statistics, from_space, known_trace, shared_space, summarise, whitened_data
from lapwing.linalg import krylov
from lapwing.linalg.memory import available_bytes
from lapwing.linalg.operators import check_adjoint
from lapwing.linalg.progress import Report, reporter
from lapwing.linalg.spectral import Side

EXACT_SIZE = 1500  # up to here the smaller side is decomposed in about a second
EPS = torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True, eq=False)
class _Task:
    """What is to be inferred: a model, its prior on these features and as chosen, and the noise of the draws."""

    model: LinearModel
    prior: DiagonalPrior
    choice: Prior
    noise: Noise
    draws: int
    report: Report


@final
@dataclass(frozen=True, eq=False)
class _Solved:
    """What a method found; has the fields that `assemble` reads of a posterior."""

    statistics: tuple[Statistics, ...] | Sampler
    optimum: Optimum
    given: Gaussian
    outputs: int | None
    seed: int
    diagnostics: dict[str, Any]
    features_at: Any
    centre: Centre | None
    model: LinearModel


def infer(
    model: LinearModel, *, prior: Prior | None = None, method: Method | None = None, validation: Any = None,
    draws: int = 32, seed: int = 0, progress: bool | Report | None = None,
) -> Posterior:  # fmt: skip
    """The posterior of a linear model, its free precisions at the maximum of the evidence.

    `prior=None` is the g-prior, tuned. `method=None` chooses by size and says why. With `validation`, a pair of
    inputs and targets, the precision (and a noise that was not given) is the one with the best held-out density.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 3)); y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=50)
    >>> from lapwing import LinearModel, Gaussian
    >>> posterior = infer(LinearModel(x, y, Gaussian()))
    >>> posterior.likelihood.noise_std.item()
    0.09...
    """
    if draws < 0:
        raise ValueError(f"draws must not be negative, got {draws}")
    if model.likelihood.noise_std is None and not bool((model.targets != 0).any()):
        raise ValueError("every target is zero, so the noise cannot be tuned: give Gaussian(noise_std=…)")
    choice, started = resolve(prior or GPrior(), model.groups), time.perf_counter()
    weights = model.row_counts * model.likelihood.row_precision(model.targets)
    resolved = choice.on(model.features, weights, model.blocks)
    task = _Task(model, resolved, choice, Noise(seed), draws, reporter(progress))
    chosen, why = _choose(task, method)
    if not isinstance(chosen, Exact):  # products are all that is known, so the two must belong together
        check_adjoint(model.features, generator=torch.Generator().manual_seed(0))
    match chosen:
        case Exact():
            solved = _exact(task, chosen, why)
        case Krylov():
            solved = _krylov(task, chosen, why)
            if method is None and solved.diagnostics["limited_by"] == "memory":
                solved = _iterative(task, CG(), "the basis of a Krylov space would not fit into memory")
        case CG() | SGD():
            solved = _iterative(task, chosen, why)
    task.report("")
    at, tuned_by = solved.optimum.at, "evidence" if choice.tuned else "given"
    posterior = assemble(solved, replace(resolved, precision=at.prior), at.noise, tuned_by=tuned_by)
    posterior.diagnostics["residuals"] = posterior.residuals().tolist()
    posterior.diagnostics["seconds"] = time.perf_counter() - started
    return posterior.tune(validation) if validation is not None else posterior


def _choose(task: _Task, method: Method | None) -> tuple[Method, str]:
    """The method, and in words why."""
    rows, d = task.model.features.shape
    several = len(task.prior.precision) > 1 or int(task.model.likelihood.row_groups(task.model.targets).max()) > 0
    if isinstance(method, Krylov) and several:
        raise ValueError("a Krylov space serves one prior precision and one noise: use Exact() or CG() for several")
    if task.draws == 0 and not (method is None or isinstance(method, Exact)):
        raise ValueError(
            f"{type(method).__name__} learns the effective dimension from its draws: ask for draws=1 or more"
        )
    if method is not None and method != Exact():
        return method, "as asked"
    sizes = f"{d:,} weights, {rows:,} observed outputs"
    if method is None and min(rows, d) > EXACT_SIZE and task.draws:
        return (CG(), f"{sizes}, several precisions") if several else (Krylov(), f"{sizes}: both sides are large")
    return Exact("primal" if d <= rows else "dual"), sizes


def _exact(task: _Task, method: Exact, why: str) -> _Solved:
    """By eigen-decomposition; from singular values where the Gram matrix turns out too coarse."""
    side: Side = method.side or "primal"
    while True:
        rows, d = task.model.features.shape
        task.report(f"decomposing {rows:,} × {d:,} features ({side})")
        statistics = summarise(task.model, task.prior, side=side, noise=task.noise, draws=task.draws)
        task.report("maximising the evidence")
        optimum = tune(statistics, task.prior, task.choice, task.model.likelihood)
        error = gram_error(statistics, optimum.at)
        if side == "svd" or error <= 1e-8:
            break
        side, why = "svd", "noise so small beside the prior that a Gram matrix would be too coarse"
    found = {
        "method": f"exact, {side}", "why": why, "data_passes": 3, "converged": optimum.converged,
        "round_off": (EPS * error) ** 0.5 if side == "svd" else error,
        "noise_at_floor": task.model.likelihood.noise_std is None and error >= 0.99 * EPS / LOWEST_RATIO,
    }  # fmt: skip
    return _solved(task, statistics, optimum, found)


def _krylov(task: _Task, method: Krylov, why: str) -> _Solved:
    """By one shared Krylov space, large enough for the precisions that it is tuned to."""
    likelihood, counts = task.model.likelihood, task.model.row_counts
    scaled, targets, normals = whitened_data(task.model, task.prior, task.noise, task.draws)
    prior_noise = replace(task.noise, stream=PRIOR).rows(0, len(task.prior.scale), task.draws)
    log_weight = float(0.5 * (counts * likelihood.row_precision(task.model.targets).log()).sum())

    def tuned(ritz: Ritz) -> tuple[Statistics, Optimum]:
        statistics = from_space(ritz.space, ritz, count=float(counts.sum()), log_weight=log_weight)
        return statistics, tune((statistics,), task.prior, task.choice, likelihood)

    def settings(ritz: Ritz) -> list[tuple[float, float]]:
        at = tuned(ritz)[1].at
        return [(float(at.prior), float(at.noise))]

    block = krylov.Block(prior_noise, normals, targets[:, None])
    ritz = shared_space(scaled, block, settings, method, task.report)
    (statistics, optimum), space = tuned(ritz), ritz.space
    alpha, beta = float(optimum.at.prior), float(optimum.at.noise)
    error = 0.0 if alpha == float("inf") else ritz.error(alpha, beta)
    found = {
        "method": f"shared Krylov space, {space.side}", "why": why, "data_passes": space.chain.passes,
        "column_products": space.chain.columns, "block_steps": space.steps, "directions": len(space.ritz),
        "error_bound": error, "converged": optimum.converged and error <= method.rtol, "limited_by": space.limited_by,
    }  # fmt: skip
    return _solved(task, (statistics,), optimum, found)


def _iterative(task: _Task, method: CG | SGD, why: str) -> _Solved:
    """By solves at one setting of the precisions after another, from where a small Krylov space says to begin."""
    likelihood, groups = task.model.likelihood, len(task.prior.precision)
    sampler = iterative.sampler(task.model, task.prior, method, task.noise, task.draws)
    tune_prior, tune_noise = task.choice.tuned, likelihood.noise_std is None
    start = Precisions(task.prior.precision, torch.ones_like(sampler.counts))
    if tune_prior or tune_noise:
        begin, sampler = _tied(task, sampler)
        prior = torch.full((groups,), float(begin.prior), dtype=torch.float64) if tune_prior else start.prior
        noise = torch.full_like(sampler.counts, float(begin.noise)) if tune_noise else start.noise
        start = Precisions(prior, noise)
    sampler, optimum = iterative.tune(
        sampler, task.prior, start, tune_prior=tune_prior, tune_noise=tune_noise, report=task.report
    )
    return _solved(task, sampler, optimum, {"method": repr(method), "why": why, "converged": optimum.converged})


def _tied(task: _Task, sampler: Sampler) -> tuple[Precisions, Sampler]:
    """Where to begin: the optimum with all precisions and all noises tied, seen by a few Krylov steps.

    The space also gives the solves their first start and, where it fits, a preconditioner.
    """
    block = krylov.Block(sampler.prior_noise, sampler.normals, sampler.targets[:, None])
    space = krylov.grow(sampler.features, block, 3)
    ritz = Ritz(space, sampler.features, 1.0, known_trace(sampler.features))
    statistics = from_space(space, ritz, count=float(sampler.counts.sum()), log_weight=sampler.log_weight)
    given = task.prior.precision[:1] if not task.choice.tuned else torch.ones(1, dtype=torch.float64)
    tied = DiagonalPrior(task.prior.scale, torch.zeros_like(task.prior.group_of), given, ("all",))
    at = tune((statistics,), tied, task.choice, task.model.likelihood).at
    at = Precisions(torch.where(at.prior.isfinite(), at.prior, float(space.ritz.max()) * at.noise), at.noise)
    draws, mean = krylov.draws_and_mean(space, alpha=float(at.prior), beta=float(at.noise), operator=sampler.features)
    fits = 8.0 * sampler.features.shape[1] * len(space.ritz) < available_bytes() / 8
    basis = (ritz.expand(torch.eye(len(space.ritz), dtype=torch.float64)), space.ritz) if fits else None
    return at, replace(sampler, warm=torch.cat([mean, draws], dim=1).to(sampler.prior_noise), ritz=basis)


def _solved(
    task: _Task, statistics: tuple[Statistics, ...] | Sampler, optimum: Optimum, found: dict[str, Any]
) -> _Solved:
    model, finite = task.model, optimum.at.prior.isfinite()
    diagnostics = {
        **found, "observations": model.targets.numel(), "weights": model.features.shape[1], "draws": task.draws,
        "seed": task.noise.seed, "tuning_steps": optimum.steps,
        "pruned": [name for name, kept in zip(task.prior.names, finite, strict=True) if not bool(kept)],
    }  # fmt: skip
    outputs = None if model.targets.ndim == 1 else model.outputs
    return _Solved(
        statistics,
        optimum,
        model.likelihood,
        outputs,
        task.noise.seed,
        diagnostics,
        model.features_at,
        model.centre,
        model,
    )


def tune(statistics: tuple[Statistics, ...], prior: DiagonalPrior, choice: Prior, likelihood: Gaussian) -> Optimum:
    """The precisions that maximise the evidence; those that were given are kept."""
    problem = replace(
        evidence.problem(statistics, prior), tune_prior=choice.tuned, tune_noise=likelihood.noise_std is None,
        prior_hyperprior=choice.hyperprior, noise_hyperprior=likelihood.hyperprior,
    )  # fmt: skip
    given = Precisions(prior.precision, torch.ones(len(statistics), dtype=torch.float64))
    points = 37 if len(statistics) == 1 and len(prior.precision) == 1 else 19
    optimum = evidence.maximise(problem, evidence.scan(problem, given, points))
    lowest = 1e-10 if isinstance(statistics[0].basis, Ritz) else LOWEST_RATIO
    return replace(optimum, at=_above_floor(problem, optimum.at, lowest))


def gram_error(statistics: tuple[Statistics, ...], at: Precisions) -> float:
    """eps · s_max / ρ: how far round-off in the Gram matrix can reach at these precisions."""
    finite = at.prior[at.prior.isfinite()]
    return float(EPS * largest_value(statistics) * at.noise.max() / finite.min()) if len(finite) else 0.0


def _above_floor(problem: Problem, at: Precisions, lowest: float) -> Precisions:
    """Keep a tuned noise from running to zero, where the features fit every target exactly."""
    finite = at.prior[at.prior.isfinite()]
    if not problem.tune_noise or not len(finite) or problem.largest == 0:
        return at
    return Precisions(at.prior, at.noise.clamp_max(float(finite.min()) / (lowest * problem.largest)))
