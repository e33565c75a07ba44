"""The precisions at the maximum of the evidence, for what a prior and a likelihood leave free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import LOWEST_RATIO, Moments, Optimum, Precisions, Problem, indefinite, largest_value
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from lapwing.bayes.modes.tangent import Tangent
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.statistics import Ritz, Statistics
from lapwing.linalg.progress import Report

EPS = torch.finfo(torch.float64).eps
DISCRETE = (Bernoulli, Categorical, Poisson)  # whose log probabilities are never above zero


def tune(
    statistics: tuple[Statistics, ...], prior: DiagonalPrior, choice: Prior, likelihood: Gaussian,
    loss: Tangent | None = None, by_evidence: bool = True, report: Report | None = None,
) -> Optimum:  # fmt: skip
    """The precisions that maximise the evidence; those that were given are kept."""
    if loss is not None:
        gaussian = evidence.problem(statistics, prior)
        return tuned_at_mode(gaussian, statistics[0].values, prior, choice, loss, by_evidence, report)
    problem = replace(
        evidence.problem(statistics, prior), tune_prior=choice.tuned, tune_noise=likelihood.noise_std is None,
        prior_hyperprior=choice.hyperprior, noise_hyperprior=likelihood.hyperprior,
    )  # fmt: skip
    given = Precisions(prior.precision, torch.ones(len(statistics), dtype=torch.float64))
    points = 37 if len(statistics) == 1 and len(prior.precision) == 1 else 19
    optimum = evidence.maximise(problem, evidence.scan(problem, given, points))
    lowest = 1e-10 if isinstance(statistics[0].basis, Ritz) else LOWEST_RATIO
    return replace(optimum, at=above_floor(problem, optimum.at, lowest))


def tuned_at_mode(
    gaussian: Problem, values: Tensor, prior: DiagonalPrior, choice: Prior, loss: Tangent, by_evidence: bool,
    report: Report | None = None,
) -> Optimum:  # fmt: skip
    """The precisions that maximise the evidence at the mode of the true loss; or a start for held-out tuning."""
    one = torch.ones(1, dtype=torch.float64)
    if not choice.tuned:
        return Optimum(Precisions(prior.precision, one), 0, True)
    if not by_evidence:  # half of what can be determined is
        middle = max(float(values.median()), indefinite.STIFFER * gaussian.positive_from, 1e-300)
        return Optimum(Precisions(torch.full_like(prior.precision, middle), one), 0, True)
    problem = replace(
        gaussian, moments=loss.moments(gaussian.moments, report), counts=torch.zeros(1, dtype=torch.float64),
        one_by_one=True, tune_noise=False, prior_hyperprior=choice.hyperprior,
    )  # fmt: skip
    if problem.positive_from > 0:
        return indefinite.tuned(problem, Precisions(prior.precision, one), by_evidence)
    bound = replace(problem, moments=_fitted(gaussian.moments)) if isinstance(loss.likelihood, DISCRETE) else None
    return evidence.maximise(problem, evidence.scan(problem, Precisions(prior.precision, one), 13, bound))


def _fitted(moments: Callable[[Precisions], Moments]) -> Callable[[Precisions], Moments]:
    """Those of data that are fitted perfectly by weights of zero: no evidence of a discrete likelihood is larger."""

    def found(at: Precisions) -> Moments:
        m = moments(at)
        return replace(m, residual=torch.zeros_like(m.residual), weights=torch.zeros_like(m.weights))

    return found


def gram_error(statistics: tuple[Statistics, ...], at: Precisions) -> float:
    """eps · s_max / ρ: how far round-off in the Gram matrix can reach at these precisions."""
    finite = at.prior[at.prior.isfinite()]
    return float(EPS * largest_value(statistics) * at.noise.max() / finite.min()) if len(finite) else 0.0


def above_floor(problem: Problem, at: Precisions, lowest: float) -> Precisions:
    """Keep a tuned noise from running to zero, where the features fit every target exactly."""
    finite = at.prior[at.prior.isfinite()]
    if not problem.tune_noise or not len(finite) or problem.largest == 0:
        return at
    return Precisions(at.prior, at.noise.clamp_max(float(finite.min()) / (lowest * problem.largest)))
