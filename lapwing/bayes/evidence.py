"""The log evidence of a Gaussian linear model, and its maximum over prior and noise precisions.

Three roads to the same maximum: MacKay's fixed point (MacKay 1992), EM, and the gradient. All see the model
through `Moments` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Gamma
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics import Statistics, compressed
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import Dense
from lapwing.linalg.spectral import Spectrum, decompose_whitened

LOG_2PI = float(np.log(2 * np.pi))
LOWEST_RATIO = 1e-13  # of prior to noise precision, over the largest eigenvalue; round-off rules below it
REACHED = 0.05  # in log precision: how near to a refused point a maximum lies at the border


@final
@dataclass(frozen=True, eq=False)
class Precisions:
    """What is tuned: one precision per group of weights and one per group of noise; many settings, as rows, at once."""

    prior: Tensor  # (groups,)
    noise: Tensor  # (noise groups,)


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """What the evidence and its stationary points need to know at one setting of the precisions."""

    residual: Tensor  # (noise groups,), ‖y − Φθ̄‖² at unit noise
    weights: Tensor  # (groups,), ‖θ̄‖² at unit prior precision
    determined: Tensor  # (groups,), γ, the effective number of weights
    leverage: Tensor  # (noise groups,), γ again, shared out over the observations
    log_det: Tensor  # (), log det(I + A⁻¹M)


@final
@dataclass(frozen=True)
class EvidenceParts:
    """The log evidence as a sum: fit and penalty at the mode, Occam factor, constants, hyperpriors."""

    fit: float  # −½ Σ β ‖y − Φθ̄‖²
    penalty: float  # −½ Σ α ‖θ̄‖²
    occam: float  # −½ log det(I + A⁻¹M)
    normaliser: float  # ½ log det B − ½ N log 2π
    hyperprior: float  # not part of the evidence of the data, but of what is maximised

    @property
    def total(self) -> float:
        """The log evidence."""
        return self.fit + self.penalty + self.occam + self.normaliser


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """An evidence to be maximised: moments as a function of the precisions, and which of those are free."""

    moments: Callable[[Precisions], Moments]  # of many settings at once where there is one precision and one noise
    counts: Tensor  # (noise groups,), observations
    sizes: Tensor  # (groups,), weights
    log_weight: float
    largest: float  # eigenvalue of the scaled features' Gram matrix
    lowest_ratio: float = 0.0  # of prior to noise precision at which the moments can be trusted
    positive_from: float = 0.0  # the ratio above which a curvature with negative eigenvalues makes a posterior
    one_by_one: bool = False  # whether moments take one setting at a time
    tune_prior: bool = True
    tune_noise: bool = True
    prior_hyperprior: Gamma | None = None
    noise_hyperprior: Gamma | None = None

    def parts(self, at: Precisions, moments: Moments | None = None) -> EvidenceParts:
        """The log evidence at these precisions, by part."""
        return EvidenceParts(*(float(term) for term in self._terms(at, moments)))

    def objective(self, at: Precisions, moments: Moments | None = None) -> float:
        """What is maximised: the log evidence, plus the hyperpriors where there are any."""
        return float(self.objectives(at, moments))

    @property
    def simple(self) -> bool:
        """Whether there is one precision and one noise, so that many settings can be looked at in one go."""
        return not self.one_by_one and len(self.counts) == len(self.sizes) == 1

    def objectives(self, at: Precisions, moments: Moments | None = None) -> Tensor:  # (settings,) or ()
        """The objective of every setting."""
        return sum(self._terms(at, moments), torch.zeros((), dtype=torch.float64))

    def _terms(self, at: Precisions, moments: Moments | None) -> tuple[Tensor, ...]:
        m = moments or self.moments(at)
        return (
            -0.5 * (at.noise * m.residual).sum(-1),
            -0.5 * torch.where(at.prior.isfinite(), at.prior * m.weights, 0).sum(-1),
            -0.5 * m.log_det,
            0.5 * (self.counts * (at.noise.log() - LOG_2PI)).sum(-1) + self.log_weight,
            self._hyperprior(at),
        )

    def gradient(self, at: Precisions, m: Moments) -> Precisions:
        """The gradient of the objective in the log precisions."""
        prior = torch.where(at.prior.isfinite(), 0.5 * (m.determined - at.prior.nan_to_num(posinf=0) * m.weights), 0)
        noise = 0.5 * (self.counts - m.leverage - at.noise * m.residual)
        if self.prior_hyperprior:
            prior = prior + self.prior_hyperprior.shape - self.prior_hyperprior.rate * at.prior
        if self.noise_hyperprior:
            noise = noise + self.noise_hyperprior.shape - self.noise_hyperprior.rate * at.noise
        return Precisions(prior, noise)

    def _hyperprior(self, at: Precisions) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for gamma, values in ((self.prior_hyperprior, at.prior), (self.noise_hyperprior, at.noise)):
            if gamma:
                density = torch.where(values.isfinite(), gamma.log_density(values), -torch.inf)
                total = total + density.sum(-1)
        return total


@final
@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a search for the maximum of the evidence ended."""

    at: Precisions
    steps: int
    converged: bool
    trace: tuple[float, ...] = field(default=(), repr=False)  # the objective after every step


@final
@dataclass(frozen=True)
class EffectiveDimension:
    """γ from posterior draws in three ways, each unbiased; `combined` has the smallest variance."""

    function_space: Estimate  # mean ‖Φz‖²_B, good where the data determine little
    weight_space: Estimate  # d − mean ‖z‖²_A, good where they determine nearly everything
    combined: Estimate


def effective_dimension(fit: Tensor, penalty: Tensor, size: int) -> EffectiveDimension:
    """γ from the energies ‖Φz‖²_B and ‖z‖²_A of zero-mean draws: (draws,) each.

    With s_i the shrinkage of each direction the variances are 2 Σ s² / k, 2 Σ (1 − s)² / k and 2 Σ (s − s̄)² / k.
    """
    by_weights = size - penalty
    share = float((fit.mean() / size).clamp(0, 1))
    both = (1 - share) * fit + share * by_weights
    return EffectiveDimension(*(_mean_of(values) for values in (fit, by_weights, both)))


def _mean_of(values: Tensor) -> Estimate:
    error = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else float("inf")  # one says nothing of itself
    return Estimate(float(values.mean()), error)


def shift_invariant(statistics: Statistics) -> Callable[[Precisions], Moments]:
    """Moments under one prior precision and one noise: a few sums over the spectrum, O(rank) a setting."""
    s, density = statistics.values, statistics.density
    squares, remainder = statistics.targets.square(), statistics.remainder

    def moments(at: Precisions) -> Moments:
        k = s * (at.noise / at.prior)  # 0 where the prior precision is infinite
        shrunk, kept = k / (1 + k), 1 / (1 + k)
        determined = _sum(density * shrunk)
        return Moments(
            residual=remainder + _sum(squares * kept.square()),
            weights=_sum(squares * shrunk * kept) * (at.noise / at.prior),
            determined=determined,
            leverage=determined,
            log_det=(density * k.log1p()).sum(-1),
        )

    return moments


def general(statistics: tuple[Statistics, ...], group_of: Tensor, groups: int) -> Callable[[Precisions], Moments]:
    """Moments under several precisions: the compressed rows are decomposed at every call."""
    rows, targets, _ = compressed(statistics, torch.ones(len(statistics), dtype=torch.float64))
    noise_of = torch.cat([torch.full((len(s.targets),), g) for g, s in enumerate(statistics)])
    remainder = torch.tensor([s.remainder for s in statistics], dtype=torch.float64)

    def moments(at: Precisions) -> Moments:
        noise_root, prior_std = at.noise.sqrt()[noise_of], at.prior.rsqrt()[group_of]
        whitened = Dense(noise_root[:, None] * rows * prior_std)
        spectrum = decompose_whitened(whitened)
        k = spectrum.values
        left = spectrum.left_adjoint(whitened, torch.eye(len(k), dtype=k.dtype))
        y = left.mT @ (noise_root * targets)
        inside = noise_root * targets - left @ y
        residual = (left @ (y / (1 + k)) + inside) / noise_root
        mean = prior_std * (spectrum.vectors @ (k.sqrt() * y / (1 + k)))
        return Moments(
            residual=grouped(residual.square(), noise_of, len(statistics)) + remainder,
            weights=grouped(mean.square(), group_of, groups),
            determined=grouped(spectrum.vectors.square() @ (k / (1 + k)), group_of, groups),
            leverage=grouped(left.square() @ (k / (1 + k)), noise_of, len(statistics)),
            log_det=k.log1p().sum(),
        )

    return moments


def problem(statistics: tuple[Statistics, ...], prior: DiagonalPrior) -> Problem:
    """The evidence problem of a model, every precision free."""
    groups = len(prior.precision)
    simple = len(statistics) == 1 and groups == 1
    return Problem(
        moments=shift_invariant(statistics[0]) if simple else general(statistics, prior.group_of, groups),
        counts=torch.tensor([s.count for s in statistics], dtype=torch.float64),
        sizes=prior.sizes,
        log_weight=sum(s.log_weight for s in statistics),
        largest=largest_value(statistics),
        lowest_ratio=_trusted(statistics[0]) if simple else 0.0,
    )


def _trusted(statistics: Statistics) -> float:
    if isinstance(statistics.basis, Spectrum) or statistics.basis.complete:
        return 0.0
    return statistics.basis.lowest_ratio()


def largest_value(statistics: tuple[Statistics, ...]) -> float:
    """The largest eigenvalue of the scaled features' Gram matrix."""
    return max((float(s.values.max()) for s in statistics if len(s.values)), default=0.0)


def scan(problem: Problem, at: Precisions, points: int = 37, bound: Problem | None = None) -> Precisions:
    """The best of a grid over the ratio of prior to noise precision, all groups tied: a start of the right scale.

    For each ratio a free noise takes its best value in closed form. Precisions that are not free are kept. `bound` is a
    cheaper problem that is nowhere below this one: settings that it rules out are not looked at.
    """
    if not (problem.tune_prior or problem.tune_noise):
        return at
    largest = problem.largest or 1.0
    lowest = max(LOWEST_RATIO * largest, problem.lowest_ratio)
    ratios = torch.logspace(float(np.log10(lowest)), float(np.log10(1e5 * largest)), points, dtype=torch.float64)
    found = at_ratios(problem, at, ratios)
    values = objectives(problem, found) if problem.simple else _stiffest_first(problem, found, bound)
    best = int(values.nan_to_num(nan=-torch.inf, posinf=-torch.inf).argmax())
    return Precisions(found.prior[best], found.noise[best])


def _stiffest_first(problem: Problem, at: Precisions, bound: Problem | None) -> Tensor:  # (settings,)
    """The objectives of settings that go from wide to stiff priors, from the last on: each mode is near the one before.

    Minus infinity stands for those that the bound rules out, and for those under so wide a prior that round-off leaves
    no mode, where a stiffer one has one.
    """
    found: list[float] = []
    for prior, noise in zip(at.prior.flip(0), at.noise.flip(0), strict=True):
        setting, highest = Precisions(prior, noise), max(found, default=-torch.inf)
        if bound is not None and bound.objective(setting) <= highest:
            found.append(-torch.inf)
            continue
        try:
            found.append(problem.objective(setting))
        except FloatingPointError:
            if highest == -torch.inf:
                raise
            found.append(-torch.inf)
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


def mackay(problem: Problem, start: Precisions, *, max_steps: int = 10_000, tolerance: float = 1e-10) -> Optimum:
    """MacKay's fixed point, α ← γ / ‖θ̄‖² and β ← (N − γ) / ‖y − Φθ̄‖², damped where the evidence would fall."""

    def update(at: Precisions, m: Moments) -> Precisions:
        a, b = problem.prior_hyperprior or Gamma(0, 0), problem.noise_hyperprior or Gamma(0, 0)
        prior = (m.determined + 2 * a.shape) / (m.weights + 2 * a.rate)
        noise = (problem.counts - m.leverage + 2 * b.shape) / (m.residual + 2 * b.rate)
        return Precisions(torch.where(at.prior.isfinite(), prior, at.prior), noise)

    return _fixed_point(problem, start, update, max_steps, tolerance)


def expectation_maximisation(
    problem: Problem, start: Precisions, *, max_steps: int = 10_000, tolerance: float = 1e-10
) -> Optimum:
    """EM, α ← d / (‖θ̄‖² + tr H⁻¹) and β ← N / (‖y − Φθ̄‖² + tr ΦH⁻¹Φᵀ): slower than MacKay, never downhill."""

    def update(at: Precisions, m: Moments) -> Precisions:
        prior = problem.sizes / (m.weights + (problem.sizes - m.determined) / at.prior)
        noise = problem.counts / (m.residual + m.leverage / at.noise)
        return Precisions(torch.where(at.prior.isfinite(), prior, at.prior), noise)

    return _fixed_point(problem, start, update, max_steps, tolerance)


def _fixed_point(
    problem: Problem,
    at: Precisions,
    update: Callable[[Precisions, Moments], Precisions],
    max_steps: int,
    tolerance: float,
) -> Optimum:
    trace: list[float] = []
    for step in range(max_steps):
        moments = problem.moments(at)
        here = problem.objective(at, moments)
        target = update(at, moments)
        x, goal = np.log(_free(problem, at)), np.log(_free(problem, target))
        if not len(x) or np.abs(goal - x).max() <= tolerance:
            return Optimum(_prune(problem, at), step, True, tuple(trace))
        at, there = _uphill(problem, at, x, goal, here)
        trace.append(there)
        at = _prune(problem, at)
    return Optimum(at, max_steps, False, tuple(trace))


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
    if not problem.tune_prior or problem.prior_hyperprior:
        return at
    moments = problem.moments(at)
    for group in (moments.determined < 0.5).nonzero().flatten().tolist():
        if bool(at.prior[group].isfinite()):
            without = replace(at, prior=at.prior.clone())
            without.prior[group] = torch.inf
            if problem.objective(without) >= problem.objective(at) - 1e-10:
                at = without
    return at


def at_ratio(problem: Problem, at: Precisions, ratio: Tensor) -> Precisions:
    """The best precisions with this ratio of prior to noise, all groups tied; those that are not free are kept."""
    unit = torch.ones_like
    if not problem.tune_noise:
        return Precisions(ratio * at.noise.mean() * unit(at.prior), at.noise)
    if not problem.tune_prior:
        return Precisions(at.prior, at.prior[at.prior.isfinite()].mean() / ratio * unit(at.noise))
    tied = Precisions(ratio * unit(at.prior), unit(at.noise))
    m = problem.moments(tied)
    a, b = problem.prior_hyperprior or Gamma(0, 0), problem.noise_hyperprior or Gamma(0, 0)
    energy = _sum(m.residual) + ratio * _sum(m.weights) + 2 * b.rate + 2 * a.rate * ratio
    noise = (problem.counts.sum() + 2 * b.shape + 2 * a.shape) / energy
    return Precisions(ratio * noise * unit(at.prior), noise * unit(at.noise))


def _bounds(problem: Problem) -> tuple[float, float]:
    return 1e-30 * min(1.0, problem.largest or 1.0), 1e30 * max(1.0, problem.largest)


def _free(problem: Problem, at: Precisions) -> np.ndarray:
    prior = at.prior[at.prior.isfinite()] if problem.tune_prior else at.prior[:0]
    return torch.cat([prior, at.noise if problem.tune_noise else at.noise[:0]]).numpy()


def _insert(problem: Problem, at: Precisions, logs: np.ndarray) -> Precisions:
    values, finite = torch.from_numpy(np.exp(logs)), at.prior.isfinite()
    prior, noise = at.prior.clone(), at.noise
    if problem.tune_prior:
        prior[finite] = values[: int(finite.sum())]
    if problem.tune_noise:
        noise = values[len(values) - len(noise) :]
    return Precisions(prior, noise)


def grouped(values: Tensor, group_of: Tensor, groups: int) -> Tensor:
    """Sums over the members of each group."""
    return torch.zeros(groups, dtype=values.dtype).index_add(0, group_of, values)


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True)
