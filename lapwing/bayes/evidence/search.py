"""The maximum of the log evidence over prior and noise precisions.

Three roads to it: MacKay's fixed point (MacKay 1992), EM, and the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.evidence.objective import Moments, Precisions, Problem
from lapwing.bayes.likelihoods import GammaHyperprior
from lapwing.bayes.statistics import LOWEST_RATIO

SMALLEST = 1e-300
SCAN_DECADES = 18  # from the lowest ratio to a prior that nothing gets past
REACHED = 0.05  # in log precision: how near to a refused point a maximum lies at the border


@final
@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a search for the maximum of the evidence ended."""

    at: Precisions
    steps: int
    converged: bool
    trace: tuple[float, ...] = field(default=(), repr=False)  # the objective after every step


def scan(problem: Problem, at: Precisions) -> Precisions:
    """The best of a grid over the ratio of prior to noise precision, all groups tied: a start of the right scale.

    For each ratio a free noise takes its best value in closed form. Precisions that are not free are kept. Settings
    that the bound of the problem rules out are not looked at.
    """
    if problem.is_fixed:
        return at
    largest = problem.largest or 1.0
    lowest = max(LOWEST_RATIO * largest, problem.lowest_ratio)
    ratios = torch.logspace(
        float(np.log10(lowest)), float(np.log10(1e5 * largest)), problem.points, dtype=torch.float64
    )
    if problem.sums is not None and problem.tunes_prior and problem.tune_noise:
        noises, heights = problem.sums.at_ratios(ratios.numpy())
        best = int(np.nan_to_num(heights, nan=-np.inf, posinf=-np.inf).argmax())
        noise = torch.tensor([noises[best]])
        return Precisions(ratios[best] * noise, noise)
    found = at_ratios(problem, at, ratios)
    values = objectives(problem, found) if problem.simple else _stiffest_first(problem, found)
    best = int(values.nan_to_num(nan=-torch.inf, posinf=-torch.inf).argmax())
    return Precisions(found.prior[best], found.noise[best])


def _stiffest_first(problem: Problem, at: Precisions) -> Tensor:  # (settings,)
    """The objectives of settings that go from wide to stiff priors, from the last on: each mode is near the one before.

    Minus infinity stands for those that the bound rules out, and for those under so wide a prior that round-off leaves
    no mode, where a stiffer one has one.
    """
    found: list[float] = []
    failure: FloatingPointError | None = None
    for prior, noise in zip(at.prior.flip(0), at.noise.flip(0), strict=True):
        setting, highest = Precisions(prior, noise), max(found, default=-torch.inf)
        if problem.bound is not None and problem.bound.objective(setting) <= highest:
            found.append(-torch.inf)
            continue
        try:
            found.append(problem.objective(setting))
        except FloatingPointError as error:
            failure = error
            found.append(-torch.inf)
    if failure is not None and max(found) == -torch.inf:
        raise failure
    return torch.tensor(found[::-1], dtype=torch.float64)


def objectives(problem: Problem, at: Precisions) -> Tensor:  # (settings,)
    """The objective of every setting: at once where there is one precision and one noise, else one by one."""
    if problem.simple:
        return problem.objectives(at)
    settings = (Precisions(*pair) for pair in zip(at.prior, at.noise, strict=True))
    return torch.stack([problem.objectives(setting) for setting in settings])


def at_ratios(problem: Problem, at: Precisions, ratios: Tensor) -> Precisions:  # (settings, groups) each
    """`at_ratio` for many ratios."""
    if problem.simple:
        found = at_ratio(problem, at, ratios[:, None])
        return Precisions(*(x.expand(len(ratios), 1) for x in (found.prior, found.noise)))
    each = [at_ratio(problem, at, ratio) for ratio in ratios]
    return Precisions(torch.stack([one.prior for one in each]), torch.stack([one.noise for one in each]))


def maximise(
    problem: Problem, start: Precisions, *, max_steps: int = 500, tolerance: float = 1e-9, lowest: float = 0.0
) -> Optimum:
    """The maximum by quasi-Newton steps in the log precisions; groups that the data do not need are pruned.

    No precision is looked at below `lowest`. A step to priors so wide that round-off leaves no mode is taken back;
    where the maximum lies at the border of those, it is said.
    """
    if not problem.has_gradient:
        return by_values(problem, start)
    trace: list[float] = []
    lower, upper = np.log(np.maximum(_bounds(problem), lowest))
    seen, refused = list[float](), list[tuple[np.ndarray, FloatingPointError]]()

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = _insert(problem, start, x)
        try:
            moments = problem.moments(at)
        except FloatingPointError as error:
            if not seen:
                raise
            refused.append((x.copy(), error))
            return max(seen) + 1 + abs(max(seen)), -np.full(len(x), size)
        seen.append(-problem.objective(at, moments))
        return seen[-1], -_free(problem, problem.gradient(at, moments))

    x = np.clip(np.log(_free(problem, start)), lower, upper)
    trace.append(problem.objective(start))
    if not len(x):
        return Optimum(start, 0, True, tuple(trace))
    size = max(1.0, float(problem.counts.sum()))
    near = _in_closed_form(problem, start, tolerance * size, max_steps)
    if near is not None:
        return near
    result = scipy.optimize.minimize(
        negative, x, jac=True, method="L-BFGS-B", bounds=[(lower, upper)] * len(x),
        callback=lambda intermediate_result: trace.append(-float(intermediate_result.fun)),
        options={"maxiter": max_steps, "ftol": 0, "gtol": tolerance * size, "maxcor": 20},
    )  # fmt: skip
    for x, error in refused:
        if np.abs(x - result.x).max() < REACHED:
            raise error
    found = _prune(problem, _insert(problem, start, result.x))
    # a line search that cannot improve on round-off has converged as far as numbers go
    flat = float(np.abs(result.jac).max()) <= 1e-6 * size or result.success
    return Optimum(found, int(result.nit), bool(flat), tuple(trace))


def _in_closed_form(problem: Problem, start: Precisions, enough: float, most: int) -> Optimum | None:
    """The maximum of one precision and one noise by Newton steps; None where there are more, or they go astray."""
    free = problem.tunes_prior and problem.tune_noise and bool(start.prior.isfinite().all())
    if problem.sums is None or not free:
        return None
    prior, noise = np.log(float(start.prior)), np.log(float(start.noise))
    found = problem.sums.maximum(prior, noise, enough=enough, most=most)
    if found is None:
        return None
    at = Precisions(torch.tensor([found[0]]).double().exp(), torch.tensor([found[1]]).double().exp())
    return Optimum(_prune(problem, at), len(found[2]) - 1, True, tuple(found[2]))


def by_values(problem: Problem, start: Precisions) -> Optimum:
    """The maximum near a start from the scan, by values alone: where the curvature moves with the precisions."""
    x = np.log(_free(problem, start))
    trace = [problem.objective(start)]
    if not len(x):
        return Optimum(start, 0, True, tuple(trace))

    def negative(logs: np.ndarray) -> float:
        try:
            trace.append(problem.objective(_insert(problem, start, np.atleast_1d(logs))))
        except FloatingPointError:  # a prior this wide cannot be worked with
            return float("inf")
        return -trace[-1]

    if len(x) == 1:
        reach = SCAN_DECADES / (problem.points - 1) * np.log(10)
        found = scipy.optimize.minimize_scalar(
            negative, bounds=(x[0] - reach, x[0] + reach), method="bounded", options={"xatol": problem.resolution}
        )
        best = np.atleast_1d(found.x)
    else:
        found = scipy.optimize.minimize(
            negative, x, method="Powell", options={"xtol": problem.resolution, "ftol": 1e-10}
        )
        best = found.x
    at = start if -float(found.fun) < trace[0] else _insert(problem, start, best)
    return Optimum(_prune(problem, at), int(found.nfev), bool(found.success), tuple(trace))


def mackay(problem: Problem, start: Precisions, *, max_steps: int = 10_000, tolerance: float = 1e-10) -> Optimum:
    """MacKay's fixed point, α ← γ / ‖θ̄‖² and β ← (N − γ) / ‖y − Φθ̄‖², damped where the evidence would fall."""
    at = start
    trace: list[float] = []
    for step in range(max_steps):
        moments = problem.moments(at)
        here = problem.objective(at, moments)
        x = np.log(_free(problem, at))
        goal = np.log(_free(problem, mackay_update(problem, at, moments)))
        if not len(x) or np.abs(goal - x).max() <= tolerance:
            return Optimum(_prune(problem, at), step, True, tuple(trace))
        at, there = _uphill(problem, at, x, goal, here)
        trace.append(there)
        at = _prune(problem, at)
    return Optimum(at, max_steps, False, tuple(trace))


def mackay_update(problem: Problem, at: Precisions, m: Moments) -> Precisions:
    """One step of MacKay's: precisions at which the evidence would be stationary if nothing else moved."""
    a = problem.prior_hyperprior or GammaHyperprior(0, 0)
    b = problem.noise_hyperprior or GammaHyperprior(0, 0)
    prior = (m.determined + 2 * a.shape) / (m.weights + 2 * a.rate).clamp_min(SMALLEST)
    noise = (problem.counts - m.leverage + 2 * b.shape) / (m.residual + 2 * b.rate).clamp_min(SMALLEST)
    noise = noise if problem.tune_noise else at.noise
    return Precisions(torch.where(problem.free_prior(at), prior, at.prior), noise)


def _uphill(problem: Problem, at: Precisions, x: np.ndarray, goal: np.ndarray, here: float) -> tuple[Precisions, float]:
    """The full step, or the largest halving of it that does not lower the objective beyond round-off."""
    slack = 1e-12 * (1 + abs(here))
    for halving in range(30):
        candidate = _insert(problem, at, x + (goal - x) / 2**halving)
        there = problem.objective(candidate)
        if there >= here - slack:
            return candidate, there
    return at, here


def _prune(problem: Problem, at: Precisions) -> Precisions:
    """Set the precision of a group to infinity where that does not lower the objective."""
    if not problem.tunes_prior or problem.prior_hyperprior:
        return at
    moments = problem.moments(at)
    faint = problem.free_prior(at)
    if problem.has_gradient:  # else the moments may not know groups apart
        faint = faint & (moments.determined < 0.5)
    for group in faint.nonzero().flatten().tolist():
        without = replace(at, prior=at.prior.clone())
        without.prior[group] = torch.inf
        if problem.objective(without) >= problem.objective(at) - 1e-10:
            at = without
    return at


def at_ratio(problem: Problem, at: Precisions, ratio: Tensor) -> Precisions:
    """The best precisions with this ratio of prior to noise, all groups tied; those that are not free are kept."""
    unit = torch.ones_like
    if not problem.tune_noise:
        return Precisions(_where_free(problem, ratio * at.noise.mean() * unit(at.prior), at), at.noise)
    if not problem.tunes_prior:
        return Precisions(at.prior, at.prior[at.prior.isfinite()].mean() / ratio * unit(at.noise))
    tied = Precisions(ratio * unit(at.prior), unit(at.noise))
    m = problem.moments(tied)
    a = problem.prior_hyperprior or GammaHyperprior(0, 0)
    b = problem.noise_hyperprior or GammaHyperprior(0, 0)
    residual, weights = (energies.sum(-1, keepdim=True) for energies in (m.residual, m.weights))
    energy = residual + ratio * weights + 2 * b.rate + 2 * a.rate * ratio
    noise = (problem.counts.sum() + 2 * b.shape + 2 * a.shape) / energy
    return Precisions(_where_free(problem, ratio * noise * unit(at.prior), at), noise * unit(at.noise))


def _where_free(problem: Problem, prior: Tensor, at: Precisions) -> Tensor:
    return torch.where(torch.as_tensor(problem.tune_prior), prior, at.prior)


def _bounds(problem: Problem) -> tuple[float, float]:
    return 1e-30 * min(1.0, problem.largest or 1.0), 1e30 * max(1.0, problem.largest)


def _free(problem: Problem, at: Precisions) -> np.ndarray:
    prior = at.prior[problem.free_prior(at)]
    return torch.cat([prior, at.noise if problem.tune_noise else at.noise[:0]]).numpy()


def _insert(problem: Problem, at: Precisions, logs: np.ndarray) -> Precisions:
    values = torch.from_numpy(np.exp(logs))
    free = problem.free_prior(at)
    prior = at.prior.clone()
    prior[free] = values[: int(free.sum())]
    noise = values[len(values) - len(at.noise) :] if problem.tune_noise else at.noise
    return Precisions(prior, noise)
