"""How precisions are found that a prior and a likelihood leave free: by evidence, or later on held-out data.

A curvature with negative eigenvalues, a true Hessian, allows only precisions above what makes it positive. Its evidence
has no largest value: it grows without bound towards the precision at which the determinant of the posterior's precision
is zero. What can be meant is the first maximum below a stiff prior.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Protocol, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.evidence.objective import NoMode, Precisions, Problem
from lapwing.bayes.evidence.search import Optimum, at_ratio, at_ratios, mackay, maximise, objectives, scan
from lapwing.bayes.priors import DiagonalPrior


class Tuning(Protocol):
    """A way to find precisions."""

    @property
    def by_evidence(self) -> bool:
        """Whether what it finds is final."""

    @property
    def is_guarded(self) -> bool:
        """Whether a precision that makes training labels unlikely may be raised."""

    def optimum(self, problem: Problem, given: Precisions) -> Optimum:
        """The precisions, those that were given kept."""


@final
@dataclass(frozen=True, eq=False)
class ByEvidence:
    """The maximum of the evidence: a scan for the scale, then steps uphill; or those alone, from a given start."""

    max_steps: int = 500
    tolerance: float = 1e-9
    prior_start: float | None = None
    noise_start: float | None = None
    by_evidence = True
    is_guarded = True

    def optimum(self, problem: Problem, given: Precisions) -> Optimum:
        """The maximum; a noise that runs to zero is kept above round-off."""
        if problem.is_fixed:
            return Optimum(given, 0, True)
        if problem.positive_from > 0:
            return tuned(problem, given, by_evidence=True)
        try:
            return self._maximum(problem, given)
        except NoMode as failure:
            if problem.at_point is None:
                raise
            warnings.warn(f"{failure}. The precision is the best around the network's own weights", stacklevel=2)
            return self._maximum(replace(problem, moments=problem.at_point, bound=None), given)

    def _maximum(self, problem: Problem, given: Precisions) -> Optimum:
        start = self._started(scan(problem, given))
        found = maximise(problem, start, max_steps=self.max_steps, tolerance=self.tolerance)
        return replace(found, at=above_floor(problem, found.at))

    def _started(self, at: Precisions) -> Precisions:
        prior, noise = at.prior, at.noise
        if self.prior_start is not None:
            prior = torch.full_like(prior, self.prior_start)
        if self.noise_start is not None:
            noise = torch.full_like(noise, self.noise_start)
        return Precisions(prior, noise)


@final
@dataclass(frozen=True)
class ByFixedPoint:
    """MacKay's fixed point, from a start that is right in scale."""

    tolerance: float = 1e-10
    by_evidence = True
    is_guarded = False

    def optimum(self, problem: Problem, given: Precisions) -> Optimum:
        """The fixed point; the first below a stiff prior where a curvature has negative eigenvalues."""
        if problem.is_fixed:
            return Optimum(given, 0, True)
        if problem.positive_from > 0:
            given = tuned(problem, given, by_evidence=True).at
        return mackay(problem, scan(problem, given) if problem.positive_from == 0 else given, tolerance=self.tolerance)


@final
@dataclass(frozen=True)
class At:
    """Precisions that are known, whatever the prior and the likelihood leave free."""

    prior: float
    noise: float = 1.0
    by_evidence = True
    is_guarded = False

    def optimum(self, problem: Problem, given: Precisions) -> Optimum:  # noqa: ARG002
        """Those."""
        at = Precisions(torch.full_like(given.prior, self.prior), torch.full_like(given.noise, self.noise))
        return Optimum(at, 0, True)


@final
@dataclass(frozen=True)
class OnHeldOut:
    """A start for held-out data: half of what can be determined is, and no mode is looked for on the way."""

    by_evidence = False
    is_guarded = False

    def optimum(self, problem: Problem, given: Precisions) -> Optimum:
        """The middle of the range, or where a noise is to be found too the maximum of the evidence."""
        if problem.tune_noise and problem.positive_from > 0:
            return tuned(problem, given, by_evidence=False)
        if problem.tune_noise:
            return ByEvidence().optimum(problem, given)
        middle = max(problem.middle, STIFFER * problem.positive_from, 1e-300)
        prior = torch.where(problem.free_prior(given), middle, given.prior)
        return Optimum(Precisions(prior, given.noise), 0, True)


def above_floor(problem: Problem, at: Precisions) -> Precisions:
    """Keep a tuned noise from running to zero, where the features fit every target exactly."""
    finite = at.prior[at.prior.isfinite()]
    if not problem.tune_noise or not len(finite) or problem.largest == 0:
        return at
    return Precisions(
        at.prior, at.noise.clamp_max(float(finite.min()) / (problem.lowest_noise_ratio * problem.largest))
    )


STIFFER = 10.0  # than a Hessian with negative eigenvalues needs at least: where held-out tuning begins
INSTEAD = "train the network on, or use Exact(), whose Gauss-Newton matrix is never negative"


class Indefinite(ValueError):
    """A curvature that is the inverse of no covariance under a prior."""


def min_stiffening(k: Tensor) -> float:
    """How many times as stiff a prior must be for M + λD to be positive; 0 where any prior is, and M alone."""
    return max(0.0, -float(k.min())) if len(k) else 0.0


def check_positive(k: Tensor, prior: DiagonalPrior) -> None:
    """Refuse a Hessian that is the inverse of no covariance under this prior."""
    times = min_stiffening(k)
    if times < 1 - 1e-9:
        return
    if len(prior.precision) == 1:
        needed = times * float(prior.precision)
        said = f"its smallest eigenvalue is {-needed:.4g} in units of the prior's scale, and the prior adds only "
        said += f"{float(prior.precision):.4g}: give a precision above {needed:.4g}"
    else:
        said = f"its smallest eigenvalue is {-times:.4g} in units of the prior: give precisions more than {times:.4g} "
        said += "times as large"
    raise Indefinite(f"the Hessian is not positive definite: {said}, {INSTEAD}")


def tuned(problem: Problem, start: Precisions, by_evidence: bool) -> Optimum:
    """The maximum from above; where there is none, a start for held-out tuning."""
    found = from_above(problem, start) if len(start.prior) == 1 else None
    if found is not None:
        return found
    if not by_evidence:
        enough = torch.tensor(STIFFER * problem.positive_from, dtype=torch.float64)
        return Optimum(at_ratio(problem, start, enough), 0, True)
    why = "the evidence only grows as the precision falls towards that"
    if len(start.prior) > 1:
        why = "several precisions cannot be found by an evidence that grows without bound towards that"
    times = " times the noise precision" if problem.tune_noise else ""
    lowest = f"{problem.positive_from:.4g}{times}"
    raise ValueError(
        f"the Hessian is not positive definite: its smallest eigenvalue is -{lowest} in units of the prior's "
        f"scale, and {why}. Give a prior with a precision above {lowest}, pass validation=, {INSTEAD}"
    )


def from_above(problem: Problem, at: Precisions, points: int = 73) -> Optimum | None:
    """The first maximum below a stiff prior, all groups tied; None where the evidence only grows."""
    high = np.log(max(1e5 * problem.largest, 1e3 * problem.positive_from))
    logs = np.linspace(high, np.log(1.001 * problem.positive_from), points)

    def settings(x: np.ndarray) -> Precisions:
        return at_ratios(problem, at, torch.from_numpy(np.exp(x)))

    best = first_peak(objectives(problem, settings(logs)).numpy())
    if best is None:
        return None
    found = scipy.optimize.minimize_scalar(
        lambda x: -float(objectives(problem, settings(np.array([x])))), bounds=(logs[best + 1], logs[best - 1]),
        method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    top = settings(np.array([found.x]))
    return Optimum(Precisions(top.prior[0], top.noise[0]), int(found.nfev), bool(found.success))


def first_peak(values: np.ndarray) -> int | None:
    """The place of the first value that is above the one before and not below the one after it, never an end.

    So of values that are equal it is the first, even where they rise again; a NaN counts as below what precedes it.
    """
    higher = np.diff(values) > 0
    peaks = (higher[:-1] & ~higher[1:]).nonzero()[0]
    return int(peaks[0]) + 1 if len(peaks) else None
