"""Precision and noise over a whole curve: by evidence, or by the density of held-out data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.evidence import Precisions, Problem, at_ratios, objectives
from lapwing.bayes.evidence.tuning import first_peak
from lapwing.bayes.statistics import LOWEST_RATIO

POINTS = 81
LABEL_POINTS = 41  # where every point takes probabilities
MODE_POINTS = 21  # where every point takes a mode
SOLVED_POINTS = 9  # where every point takes a solve
STEP = 4.0  # by which a precision is multiplied on the way to a better one, and in the end its root
STEPS_UP, STEPS_DOWN = 8, 2  # at most; under a wide prior only ratios of outputs count, and these stay what they are

Density = Callable[[float], tuple[float, float]]  # of a ratio of old to new precision: score, noise multiple


@final
@dataclass(frozen=True, eq=False)
class PrecisionCurve:
    """Scores over the prior precision, with the noise precision used at each; both as multiples until `scaled`."""

    precision: Tensor  # (points,)
    noise: Tensor  # (points,), multiple of the noise precision
    log_evidence: Tensor  # (points,), NaN where it was not asked for
    held_out: Tensor | None  # (points,), mean log predictive density of a target
    best_precision: float
    best_noise: float
    start: float = 1.0  # the precision that the curve was begun from

    @property
    def edge(self) -> Literal["stiffest", "widest"] | None:
        """The end of the range that held-out data chose, where they did: what they want lies beyond it."""
        if self.held_out is None:
            return None
        best = int(self.held_out.argmax())
        if best == 0:
            return "widest"
        return "stiffest" if best == len(self.held_out) - 1 else None

    @property
    def at_own(self) -> float:
        """The held-out density at the precision that the curve is in multiples of, before it was scaled."""
        assert self.held_out is not None
        return float(self.held_out[int((self.precision / self.start).log().abs().argmin())])

    def scaled(self, precision: float) -> PrecisionCurve:
        """The curve in units of the prior precision itself."""
        return replace(
            self, precision=self.precision * precision, best_precision=self.best_precision * precision,
            start=self.start * precision,
        )  # fmt: skip


def by_evidence(problem: Problem, tune_noise: bool) -> PrecisionCurve:
    """Log evidence over multiples of the precision."""
    problem = replace(problem, tune_noise=tune_noise)
    points = MODE_POINTS if problem.points < MODE_POINTS else POINTS
    start = _ones()

    def score(log_ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = at_ratios(problem, start, torch.from_numpy(np.exp(log_ratios)))
        return objectives(problem, at).numpy(), at.noise[:, 0].numpy()

    grid = _grid(problem, points)
    scores, noise = score(grid)
    best = int(np.argmax(scores))
    if problem.positive_from > 0:  # the evidence grows without bound at the lower end
        best = points - 1 - (first_peak(scores[::-1]) or 0)
    top, at_top = _refined(lambda x: (score(np.array([x]))[0][0], score(np.array([x]))[1][0]), grid, best)
    return PrecisionCurve(
        torch.from_numpy(np.exp(grid) * noise), torch.from_numpy(noise.copy()), torch.from_numpy(scores.copy()), None,
        best_precision=float(np.exp(top) * at_top), best_noise=float(at_top),
    )  # fmt: skip


def held_out(problem: Problem, density: Density, points: int, *, with_evidence: bool) -> PrecisionCurve:
    """Held-out density over multiples of the precision; the evidence beside it where it costs nothing."""
    grid = _grid(problem, points)

    def score(x: float) -> tuple[float, float]:
        """A point that fails costs itself, not the curve."""
        try:
            return density(float(np.exp(-x)))
        except FloatingPointError:
            return float("-inf"), 1.0

    scores, noise = (np.array(part) for part in zip(*(score(x) for x in grid), strict=True))
    if not np.isfinite(scores).any():
        raise FloatingPointError("no precision of the curve has a posterior: the features may hold nothing but zeros")
    evidences = np.full_like(scores, np.nan)
    if with_evidence:
        ratios = torch.from_numpy(np.exp(grid) * noise)
        at = Precisions(ratios[:, None], torch.from_numpy(noise.copy())[:, None])
        evidences = objectives(problem, at).numpy()
    top, at_top = _refined(score, grid, int(np.argmax(scores)))
    return PrecisionCurve(
        torch.from_numpy(np.exp(grid) * noise), torch.from_numpy(noise), torch.from_numpy(evidences.copy()),
        torch.from_numpy(scores), best_precision=float(np.exp(top) * at_top), best_noise=float(at_top),
    )  # fmt: skip


def by_solving(density: Density) -> PrecisionCurve:
    """Held-out density over multiples of the precision, one posterior solved for each: a coarse grid."""
    multiples = np.logspace(-2, 2, SOLVED_POINTS)
    scores = torch.tensor([density(float(1 / multiple))[0] for multiple in multiples], dtype=torch.float64)
    ones = torch.ones_like(scores)
    best = float(multiples[int(scores.argmax())])
    return PrecisionCurve(torch.from_numpy(multiples), ones, torch.full_like(scores, torch.nan), scores, best, 1.0)


def climbed(density: Density) -> PrecisionCurve:
    """Held-out density uphill from the present precision, where every point is a posterior of its own."""
    scores: dict[float, float] = {}

    def score(multiple: float) -> float:
        """A point that fails costs itself, not the curve."""
        if multiple not in scores:
            try:
                scores[multiple] = density(1 / multiple)[0]
            except FloatingPointError:
                scores[multiple] = float("-inf")
        return scores[multiple]

    best = 1.0
    for factor, most in ((STEP, STEPS_UP), (1 / STEP, STEPS_DOWN)):
        for _ in range(most):
            if score(best * factor) <= score(best):
                break
            best *= factor
    for factor in (STEP**0.5, STEP**-0.5):
        if score(best * factor) > score(best):
            best *= factor
            break
    multiples = sorted(scores)
    found = torch.tensor([scores[multiple] for multiple in multiples], dtype=torch.float64)
    ones, unknown = torch.ones_like(found), torch.full_like(found, torch.nan)
    return PrecisionCurve(torch.tensor(multiples, dtype=torch.float64), ones, unknown, found, best, 1.0)


def _grid(problem: Problem, points: int) -> np.ndarray:
    """Logarithms of the ratios of prior to noise precision that are looked at.

    Below `LOWEST_RATIO` of the largest eigenvalue the spread is that of round-off in the features.
    """
    centre = np.log(max(problem.largest, 1.0))
    lowest = np.log(max(1.001 * problem.positive_from, LOWEST_RATIO * problem.largest, 1e-300))
    return np.linspace(max(min(-12.0, centre - 23), lowest), centre + 7, points)


def _refined(score: Callable[[float], tuple[float, float]], grid: np.ndarray, best: int) -> tuple[float, float]:
    """The best point near the best of a grid, and the noise multiple there."""
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = scipy.optimize.minimize_scalar(lambda x: -score(x)[0], bounds=(low, high), method="bounded")
    return float(found.x), score(float(found.x))[1]


def _ones() -> Precisions:
    return Precisions(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
