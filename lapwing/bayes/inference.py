"""infer: from a linear model to a posterior, with what is not given tuned."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes import evidence, iterative
from lapwing.bayes.approximate import (
    Approximate,
    EvidenceAt,
    Fits,
    Shape,
    approximate,
    at_weights,
    least_squares,
    low_rank,
)
from lapwing.bayes.evidence import LOWEST_RATIO, Optimum, Precisions, Problem, largest_value
from lapwing.bayes.iterative import Sampler
from lapwing.bayes.laplace import AtMode, Tangent, check_not_interpolating, surrogate, tangent
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import Centre, LinearModel
from lapwing.bayes.links import Link
from lapwing.bayes.methods import CG, SGD, Exact, Krylov, LowRank, Method, Structural
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.posterior import LINK, Posterior, assemble
from lapwing.bayes.priors import DiagonalPrior, GPrior, Prior, resolve
from lapwing.bayes.statistics import (
    Ritz,
    Statistics,
    from_space,
    known_trace,
    row_weights,
    shared_space,
    summarise,
    totals,
    whitened_data,
)
from lapwing.linalg import krylov, stochastic
from lapwing.linalg.memory import available_bytes, check_memory, readable
from lapwing.linalg.operators import Dense, Double, LinearOperator, check_adjoint, row_blocks
from lapwing.linalg.progress import Report, reporter
from lapwing.linalg.spectral import Side

EXACT_SIZE = 1500  # up to here the smaller side is decomposed in about a second
EXACT_SIZE_OF_NETWORKS = 4000  # products with a Jacobian cost so much that half a minute here is soon repaid
HELD_OUT_ROUNDS = 4
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
    tangent: Tangent | None = None  # of a likelihood that is not Gaussian; `model` is then its surrogate
    by_evidence: bool = True  # or the precision is left to held-out data
    shape: Shape | None = None  # of a structured curvature
    evidence_at: EvidenceAt = "mode"


@final
@dataclass(frozen=True, eq=False)
class _Solved:
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
    link: Link = LINK
    temperature: float = 1.0


def infer(
    model: LinearModel, *, prior: Prior | None = None, method: Method | None = None, validation: Any = None,
    draws: int = 32, seed: int = 0, evidence_at: EvidenceAt = "mode", progress: bool | Report | None = None,
) -> Posterior:  # fmt: skip
    """The posterior of a linear model, its free precisions at the maximum of the evidence.

    `prior=None` is the g-prior, tuned. `method=None` chooses by size and free memory and says why. With `validation`,
    a pair of inputs and targets, the precision (and a noise that was not given) is the one with the best held-out
    density. A structured method (`Diagonal`, `KFAC`, `EKFAC`, `LowRank`) can take the evidence at the network's own
    weights, `evidence_at="weights"`: no mode is found, and the precisions are known to be too small.

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
    choice, report = resolve(prior or GPrior(), model.groups), reporter(progress)
    started = time.perf_counter()
    try:
        _check_evidence_at(evidence_at, method)
        return _inferred(model, choice, method, validation, Noise(seed), draws, report, started, evidence_at)
    finally:  # neither an error nor Ctrl-C leaves a half-written line behind
        report("")


def _inferred(
    model: LinearModel, choice: Prior, method: Method | None, validation: Any, noise: Noise, draws: int,
    report: Report, started: float, evidence_at: EvidenceAt,
) -> Posterior:  # fmt: skip
    if isinstance(model.likelihood, Gaussian):
        task = replace(_gaussian_task(model, choice, noise, draws, report), evidence_at=evidence_at)
        chosen, why = _choose(task, method)
        task = _shaped(task, chosen, model) if isinstance(chosen, Structural) else task
    else:
        task, chosen, why = _label_task(model, choice, noise, draws, report, method, validation is None, evidence_at)
    solved = _solve(task, chosen, why, asked=method is not None)
    at, tuned_by = solved.optimum.at, "evidence" if choice.tuned else "given"
    setting, labels = replace(task.prior, precision=at.prior), task.tangent is not None
    posterior = assemble(solved, setting, at.noise, tuned_by=tuned_by, mode=validation is None or not choice.tuned)
    if validation is not None and (choice.tuned or not labels):
        report("tuning the precision on held-out data")
        posterior = _on_held_out(posterior, validation)
    if task.shape is None:
        posterior.diagnostics["residuals"] = posterior.residuals().tolist()
    posterior.diagnostics["seconds"] = time.perf_counter() - started
    return posterior


def _on_held_out(posterior: Posterior, validation: Any) -> Posterior:
    """Tuned on held-out data, again where the Krylov space had to grow for the precision that was found."""
    for _ in range(0 if isinstance(posterior.statistics, Approximate) else HELD_OUT_ROUNDS):
        tuned = posterior.tune(validation, mode=False)
        if tuned.statistics is posterior.statistics:
            break
        posterior = tuned
    return posterior.tune(validation)


def _gaussian_task(model: LinearModel, choice: Prior, noise: Noise, draws: int, report: Report) -> _Task:
    if model.gaussian.noise_std is None and not bool((model.targets != 0).any()):
        raise ValueError("every target is zero, so the noise cannot be tuned: give Gaussian(noise_std=…)")
    return _Task(model, choice.on(model.features, row_weights(model), model.blocks), choice, noise, draws, report)


def _label_task(
    model: LinearModel, choice: Prior, noise: Noise, draws: int, report: Report, method: Method | None,
    by_evidence: bool, evidence_at: EvidenceAt,
) -> tuple[_Task, Method, str]:  # fmt: skip
    """The Gaussian model with the curvature of these labels, and the loss that gives its mode and evidence."""
    outputs = _curvature_point(model, choice)
    if by_evidence and choice.tuned and model.centre is not None and evidence_at == "mode":
        check_not_interpolating(model, outputs)
    task = _Task(surrogate(model, outputs), _ones(model.features.shape[1]), choice, noise, draws, report)
    groups = choice.on(task.model.features, torch.ones(len(task.model.row_counts)).double(), model.blocks)
    task = replace(task, prior=groups, by_evidence=by_evidence, evidence_at=evidence_at)
    chosen, why = _choose(task, method)
    task = _shaped(task, chosen, model) if isinstance(chosen, Structural) else task
    if isinstance(chosen, Exact | Structural) and evidence_at == "mode" and not isinstance(model.features, Dense):
        report("making the Jacobian of the training data")
        model = replace(model, features=_stored(model.features))
        task = replace(task, model=surrogate(model, outputs))
    return replace(task, tangent=tangent(model, task.prior)), chosen, why


def _shaped(task: _Task, method: Structural, model: LinearModel) -> _Task:
    """The task with its structured curvature, and the prior's scale as that can hold it."""
    task.report(f"making the curvature by {method!r}")
    if isinstance(method, LowRank):
        known = task.model if model.centre is None else replace(task.model, features=_in_double(task.model.features))
        return replace(task, shape=low_rank(known, task.prior, method.rank, method.rtol, task.noise.seed))
    if model.structure is None:
        raise ValueError(
            f"{method!r} needs a network with layers, and this linear model is of a design matrix: use LowRank(rank) "
            "or Exact(), or linearise a network"
        )
    if int(model.likelihood.row_groups(model.targets).max() if isinstance(model.likelihood, Gaussian) else 0) > 0:
        raise ValueError(
            f"{method!r} serves one noise for all outputs, and one per output is to be tuned: give their noise_std, or "
            "use Exact()"
        )
    curvature, told = model.structure(method, task.prior.scale, task.noise.seed)
    scale = torch.where(curvature.scale > 0, curvature.scale, task.prior.scale)
    moved = float((scale / task.prior.scale).log().abs().max().exp())
    told = {**told, "prior_scale_moved": moved}  # by this factor at most, to fit into Kronecker products
    return replace(task, shape=Shape(curvature, told), prior=replace(task.prior, scale=scale))


def _check_evidence_at(evidence_at: EvidenceAt, method: Method | None) -> None:
    if evidence_at not in ("mode", "weights"):
        raise ValueError(f"evidence_at is {evidence_at!r}, expected 'mode' or 'weights'")
    if evidence_at == "weights" and not isinstance(method, Structural):
        raise ValueError(
            "evidence_at='weights' is for Diagonal(), KFAC(), EKFAC() and LowRank(rank), which with as many pairs as "
            f"weights is exact; the method is {method!r}"
        )


def _ones(d: int) -> DiagonalPrior:
    one = torch.ones(1, dtype=torch.float64)
    return DiagonalPrior(torch.ones(d, dtype=torch.float64), torch.zeros(d, dtype=torch.long), one, ("all",))


def _curvature_point(model: LinearModel, choice: Prior) -> Tensor:  # (n · c,)
    """Where B is taken: at the outputs of the network, or at the mode of a model that is linear itself."""
    if model.centre is not None:
        outputs = (model.features @ model.centre.weights.to(model.features.like)).double()
        return outputs if model.offset is None else outputs + model.offset.double()
    prior = choice.on(model.features, model.row_counts, model.blocks)
    return tangent(model, prior).mode(prior.precision).mode.outputs.reshape(-1)


def _stored(features: LinearOperator) -> LinearOperator:
    """The same features as a matrix, where it takes at most half of the memory there is."""
    rows, d = features.shape
    if rows * d * features.like.element_size() > available_bytes() / 2:
        return features
    matrix = torch.empty(rows, d, dtype=features.like.dtype, device=features.like.device)
    start = 0
    for block in row_blocks(features):
        matrix[start : start + len(block)] = block
        start += len(block)
    return Dense(matrix)


def _in_double(features: LinearOperator) -> LinearOperator:
    """Stored features in double precision where they fit: eigenvalues below the square of single precision count."""
    stored = _stored(Double(features))
    return stored if isinstance(stored, Dense) else features


def _solve(task: _Task, method: Method, why: str, *, asked: bool) -> _Solved:
    """What the method finds; conjugate gradients where a basis does not fit and nobody asked for it."""
    if not isinstance(method, Exact):  # products are all that is known, so the two must belong together
        check_adjoint(task.model.features, generator=torch.Generator().manual_seed(0))
    match method:
        case Exact():
            return _exact(task, method, why)
        case Krylov():
            solved = _krylov(task, method, why)
            if not asked and solved.diagnostics["limited_by"] == "memory":
                return _iterative(task, CG(), "the basis of a Krylov space would not fit into memory")
            return solved
        case CG() | SGD():
            return _iterative(task, method, why)
        case _:
            return _structured(task, method, why)


def _choose(task: _Task, method: Method | None) -> tuple[Method, str]:
    """The method, and in words why."""
    rows, d = task.model.features.shape
    several = len(task.prior.precision) > 1 or int(task.model.gaussian.row_groups(task.model.targets).max()) > 0
    if isinstance(method, Krylov) and several:
        raise ValueError("a Krylov space serves one prior precision and one noise: use Exact() or CG() for several")
    if task.draws == 0 and not (method is None or isinstance(method, Exact | Structural)):
        raise ValueError(
            f"{type(method).__name__} learns the effective dimension from its draws: ask for draws=1 or more"
        )
    if method is not None and method != Exact():
        return method, "as asked"
    sizes = f"{d:,} weights, {rows:,} observed outputs"
    limit = EXACT_SIZE if task.model.features.squares_are_cheap else EXACT_SIZE_OF_NETWORKS
    if method is None and min(rows, d) > limit and task.draws:
        return _matrix_free(task, sizes, several)
    return Exact("primal" if d <= rows else "dual"), sizes


def _matrix_free(task: _Task, sizes: str, several: bool) -> tuple[Method, str]:
    """Krylov for one precision and one noise, CG for several, SGD where not even the columns of CG fit into memory.

    Half of what is free may be used. Time is not judged: stochastic gradients make twenty passes or more themselves,
    so they save memory, never passes; and they are no choice where a batch of rows costs a product with all of them.
    """
    features, free = task.model.features, available_bytes()
    by_cg, by_sgd = iterative.needed_bytes(features, task.draws)
    fits, advice = by_cg <= free / 2, "ask for fewer draws, or give features in batches (Stacked)"
    if fits or not stochastic.reads_rows(features):
        check_memory(by_cg, f"a posterior by conjugate gradients ({sizes}, {task.draws} draws)", advice)
        return (CG(), f"{sizes}, several precisions") if several else (Krylov(), f"{sizes}: both sides are large")
    check_memory(by_sgd, f"a posterior by stochastic gradients ({sizes}, {task.draws} draws)", advice)
    return SGD(), (
        f"{sizes}: of {readable(free)} free, whole passes would take {readable(by_cg)} with conjugate gradients and "
        f"more with a Krylov space, minibatches take {readable(by_sgd)}"
    )


def _exact(task: _Task, method: Exact, why: str) -> _Solved:
    """By eigen-decomposition; from singular values where the Gram matrix turns out too coarse."""
    side: Side = method.side or "primal"
    while True:
        rows, d = task.model.features.shape
        task.report(f"decomposing {rows:,} × {d:,} features ({side})")
        statistics = summarise(task.model, task.prior, side=side, noise=task.noise, draws=task.draws)
        task.report("maximising the evidence")
        optimum = tune(statistics, task.prior, task.choice, task.model.gaussian, task.tangent, task.by_evidence)
        error = gram_error(statistics, optimum.at)
        if side == "svd" or error <= 1e-8:
            break
        side, why = "svd", "noise so small beside the prior that a Gram matrix would be too coarse"
    found = {
        "method": f"exact, {side}", "why": why, "data_passes": 3, "converged": optimum.converged,
        "round_off": (EPS * error) ** 0.5 if side == "svd" else error,
        "noise_at_floor": task.model.gaussian.noise_std is None and error >= 0.99 * EPS / LOWEST_RATIO,
    }  # fmt: skip
    return _solved(task, statistics, optimum, found)


def _krylov(task: _Task, method: Krylov, why: str) -> _Solved:
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
        sampler, task.prior, start, tune_prior=tune_prior, tune_noise=tune_noise, report=task.report
    )
    return _solved(task, sampler, optimum, {"method": repr(method), "why": why, "converged": optimum.converged})


def _structured(task: _Task, method: Structural, why: str) -> _Solved:
    """By a structured curvature, its precisions at the maximum of the evidence."""
    assert task.shape is not None
    fits: Fits | None = None
    model = task.model if task.tangent is None else task.tangent.model
    if task.evidence_at == "weights":
        fits = at_weights(model, task.prior)
    elif task.tangent is None:
        task.report("finding the modes of the linear model")
        model = replace(model, features=_in_double(model.features)) if model.centre is not None else model
        fits = least_squares(model, task.prior, task.shape.curvature, task.noise)
    known = approximate(task.shape, model, fits, task.noise, task.draws)
    task.report("maximising the evidence")
    optimum, bounded = _tuned_structure(known, task)
    found = {
        "method": repr(method), "why": why, "converged": optimum.converged and not bounded,
        "evidence_at": task.evidence_at, "noise_at_floor": bounded,
    }  # fmt: skip
    return _solved(task, known, optimum, {"data_passes": 1, **found, **task.shape.diagnostics})


def _tuned_structure(known: Approximate, task: _Task) -> tuple[Optimum, bool]:
    """The optimum, and whether its noise had to be kept from running to zero.

    It runs where the mode fits every target and the structure leaves out what that takes, as few eigenpairs do.
    """
    problem, values = known.problem(task.prior), known.curvature.ratios(1.0)
    values = values[values > 1e-10 * values.max()]
    if task.tangent is not None and not (task.by_evidence and task.evidence_at == "weights"):
        return _tuned_at_mode(problem, values, task.prior, task.choice, task.tangent, task.by_evidence), False
    tune_noise = task.tangent is None and task.model.gaussian.noise_std is None
    problem = replace(
        problem, tune_prior=task.choice.tuned, tune_noise=tune_noise, prior_hyperprior=task.choice.hyperprior,
        noise_hyperprior=task.model.gaussian.hyperprior,
    )  # fmt: skip
    start = Precisions(task.prior.precision, torch.ones(1, dtype=torch.float64))
    optimum = evidence.maximise(problem, evidence.scan(problem, start, 19))
    kept = _above_floor(problem, optimum.at, LOWEST_RATIO)
    return replace(optimum, at=kept), bool((kept.noise < optimum.at.noise).any())


def _fits(sampler: Sampler) -> bool:
    """Whether three steps of a Krylov space, columns that CG and SGD do without, would fit into memory."""
    rows, d = sampler.features.shape
    return 8.0 * (2 * sampler.draws + 1) * (6 * min(rows, d) + 2 * d) <= available_bytes() / 2


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
    at = tune((statistics,), tied, task.choice, task.model.gaussian).at
    at = Precisions(torch.where(at.prior.isfinite(), at.prior, float(space.ritz.max()) * at.noise), at.noise)
    draws, mean = krylov.draws_and_mean(space, alpha=float(at.prior), beta=float(at.noise), operator=sampler.features)
    fits = 8.0 * sampler.features.shape[1] * len(space.ritz) < available_bytes() / 8
    basis = (ritz.expand(torch.eye(len(space.ritz), dtype=torch.float64)), space.ritz) if fits else None
    return at, replace(sampler, warm=torch.cat([mean, draws], dim=1).to(sampler.prior_noise), ritz=basis)


def _solved(
    task: _Task, statistics: tuple[Statistics, ...] | Sampler | Approximate, optimum: Optimum, found: dict[str, Any]
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
        model.gaussian,
        outputs,
        task.noise.seed,
        diagnostics,
        model.features_at,
        model.centre,
        model,
        task.tangent,
    )


def tune(
    statistics: tuple[Statistics, ...], prior: DiagonalPrior, choice: Prior, likelihood: Gaussian,
    loss: Tangent | None = None, by_evidence: bool = True,
) -> Optimum:  # fmt: skip
    """The precisions that maximise the evidence; those that were given are kept."""
    if loss is not None:
        gaussian = evidence.problem(statistics, prior)
        return _tuned_at_mode(gaussian, statistics[0].values, prior, choice, loss, by_evidence)
    problem = replace(
        evidence.problem(statistics, prior), tune_prior=choice.tuned, tune_noise=likelihood.noise_std is None,
        prior_hyperprior=choice.hyperprior, noise_hyperprior=likelihood.hyperprior,
    )  # fmt: skip
    given = Precisions(prior.precision, torch.ones(len(statistics), dtype=torch.float64))
    points = 37 if len(statistics) == 1 and len(prior.precision) == 1 else 19
    optimum = evidence.maximise(problem, evidence.scan(problem, given, points))
    lowest = 1e-10 if isinstance(statistics[0].basis, Ritz) else LOWEST_RATIO
    return replace(optimum, at=_above_floor(problem, optimum.at, lowest))


def _tuned_at_mode(
    gaussian: Problem, values: Tensor, prior: DiagonalPrior, choice: Prior, loss: Tangent, by_evidence: bool
) -> Optimum:
    """The precisions that maximise the evidence at the mode of the true loss; or a start for held-out tuning."""
    one = torch.ones(1, dtype=torch.float64)
    if not choice.tuned:
        return Optimum(Precisions(prior.precision, one), 0, True)
    if not by_evidence:  # half of what can be determined is
        middle = torch.full_like(prior.precision, float(values.median().clamp_min(1e-300)))
        return Optimum(Precisions(middle, one), 0, True)
    problem = replace(
        gaussian, moments=loss.moments(gaussian.moments), counts=torch.zeros(1, dtype=torch.float64), one_by_one=True,
        tune_noise=False, prior_hyperprior=choice.hyperprior,
    )  # fmt: skip
    return evidence.maximise(problem, evidence.scan(problem, Precisions(prior.precision, one), 13))


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
