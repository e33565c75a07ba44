"""What a curvature with negative eigenvalues, a true Hessian, allows: precisions above what makes it positive.

Its evidence has no largest value: it grows without bound towards the precision at which the determinant of the
posterior's precision is zero. What can be meant is the first maximum below a stiff prior.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.evidence.objective import Precisions, Problem
from lapwing.bayes.evidence.search import Optimum, at_ratio, at_ratios, objectives
from lapwing.bayes.priors import DiagonalPrior

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
