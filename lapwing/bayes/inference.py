"""infer: from a linear model to a posterior, with what is not given tuned."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch

from lapwing.bayes import evidence
from lapwing.bayes.evidence import LOWEST_RATIO, Optimum, Precisions, Problem
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import Noise
from lapwing.bayes.posterior import Posterior, assemble
from lapwing.bayes.priors import DiagonalPrior, GPrior, Prior
from lapwing.bayes.statistics import Statistics, summarise
from lapwing.linalg.progress import Report, reporter
from lapwing.linalg.spectral import Side


@final
@dataclass(frozen=True)
class Exact:
    """Exact inference by an eigen-decomposition, of the weights' side (d × d) or the data's (n·m × n·m)."""

    side: Literal["primal", "dual"] | None = None


@final
@dataclass(frozen=True, eq=False)
class _Summary:
    """What `assemble` needs of a posterior that does not exist yet."""

    statistics: tuple[Statistics, ...]
    given: Any
    outputs: int | None
    seed: int
    diagnostics: dict[str, Any]
    features_at: Any
    model: LinearModel


def infer(
    model: LinearModel, *, prior: Prior | None = None, method: Exact | None = None, validation: Any = None,
    draws: int = 32, seed: int = 0, progress: bool | Report | None = None,
) -> Posterior:  # fmt: skip
    """The posterior of a linear model, its free precisions at the maximum of the evidence.

    `prior=None` is the g-prior, tuned. With `validation`, a pair of inputs and targets, the precision (and a
    noise that was not given) is the one with the best held-out density instead.

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
    report, choice, started = reporter(progress), prior or GPrior(), time.perf_counter()
    if model.likelihood.noise_std is None and not bool((model.targets != 0).any()):
        raise ValueError("every target is zero, so the noise cannot be tuned: give Gaussian(noise_std=…)")
    resolved = choice.on(model.features, model.row_counts * model.likelihood.row_precision(model.targets))
    side, why = _side(model, method)
    statistics, optimum, side = _solve(model, resolved, choice, side, Noise(seed), draws, report)
    report("")
    summary = _Summary(
        statistics, model.likelihood, None if model.targets.ndim == 1 else model.outputs, seed,
        _diagnostics(model, statistics, optimum, side, why, resolved.names, started), model.features_at, model,
    )  # fmt: skip
    tuned_by = "evidence" if choice.tuned else "given"
    posterior = assemble(summary, replace(resolved, precision=optimum.at.prior), optimum.at.noise, tuned_by=tuned_by)
    posterior.diagnostics["residuals"] = posterior.residuals().tolist()
    return posterior.tune(validation) if validation is not None else posterior


def _solve(
    model: LinearModel,
    prior: DiagonalPrior,
    choice: Prior,
    side: Side,
    noise: Noise,
    draws: int,
    report: Report,
) -> tuple[tuple[Statistics, ...], Optimum, Side]:
    """Statistics and best precisions; from singular values where the Gram matrix turns out too coarse."""
    report(f"decomposing {model.features.shape[0]:,} × {model.features.shape[1]:,} features ({side})")
    statistics = summarise(model, prior, side=side, noise=noise, draws=draws)
    report("maximising the evidence")
    optimum = tune(statistics, prior, choice, model)
    if side != "svd" and gram_error(statistics, optimum.at) > 1e-8:
        return _solve(model, prior, choice, "svd", noise, draws, report)
    return statistics, optimum, side


def tune(statistics: tuple[Statistics, ...], prior: DiagonalPrior, choice: Prior, model: LinearModel) -> Optimum:
    """The precisions that maximise the evidence; those that were given are kept."""
    problem = replace(
        evidence.problem(statistics, prior), tune_prior=choice.tuned, tune_noise=model.likelihood.noise_std is None,
        prior_hyperprior=choice.hyperprior, noise_hyperprior=model.likelihood.hyperprior,
    )  # fmt: skip
    given = Precisions(prior.precision, torch.ones(len(statistics), dtype=torch.float64))
    points = 73 if len(statistics) == 1 and len(prior.precision) == 1 else 19
    optimum = evidence.maximise(problem, evidence.scan(problem, given, points))
    return replace(optimum, at=_above_floor(problem, optimum.at))


def gram_error(statistics: tuple[Statistics, ...], at: Precisions) -> float:
    """eps · s_max / ρ: how far round-off in the Gram matrix can reach at these precisions."""
    finite = at.prior[at.prior.isfinite()]
    if not len(finite):
        return 0.0
    largest = max((float(s.spectrum.values.max()) for s in statistics if len(s.targets)), default=0.0)
    return float(torch.finfo(torch.float64).eps * largest * at.noise.max() / finite.min())


def _above_floor(problem: Problem, at: Precisions) -> Precisions:
    """Keep a tuned noise from running to zero, where the features fit every target exactly."""
    finite = at.prior[at.prior.isfinite()]
    if not problem.tune_noise or not len(finite) or problem.largest == 0:
        return at
    return Precisions(at.prior, at.noise.clamp_max(float(finite.min()) / (LOWEST_RATIO * problem.largest)))


def _side(model: LinearModel, method: Exact | None) -> tuple[Side, str]:
    rows, d = model.features.shape
    if method is not None and method.side is not None:
        return method.side, "as asked"
    if d <= rows:
        return "primal", f"{d:,} weights are no more than {rows:,} observed outputs"
    return "dual", f"{rows:,} observed outputs are fewer than {d:,} weights"


def _diagnostics(
    model: LinearModel,
    statistics: tuple[Statistics, ...],
    optimum: Optimum,
    side: Side,
    why: str,
    names: tuple[str, ...],
    started: float,
) -> dict[str, Any]:
    finite, error = optimum.at.prior.isfinite(), gram_error(statistics, optimum.at)
    eps = torch.finfo(torch.float64).eps
    if side == "svd":
        why = "noise so small beside the prior that a Gram matrix would be too coarse"
    return {
        "method": f"exact, {side}", "why": why, "seconds": time.perf_counter() - started,
        "observations": model.targets.numel(), "weights": model.features.shape[1],
        "data_passes": 3, "tuning_steps": optimum.steps, "converged": optimum.converged,
        "round_off": (eps * error) ** 0.5 if side == "svd" else error,
        "noise_at_floor": model.likelihood.noise_std is None and error >= 0.99 * eps / LOWEST_RATIO,
        "pruned": [name for name, kept in zip(names, finite, strict=True) if not bool(kept)],
    }  # fmt: skip
