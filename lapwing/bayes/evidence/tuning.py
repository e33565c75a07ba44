"""How precisions are found that a prior and a likelihood leave free: by evidence, or later on held-out data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch

from lapwing.bayes.evidence import indefinite
from lapwing.bayes.evidence.objective import NoMode, Precisions, Problem
from lapwing.bayes.evidence.search import Optimum, mackay, maximise, scan


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
            return indefinite.tuned(problem, given, by_evidence=True)
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
            given = indefinite.tuned(problem, given, by_evidence=True).at
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
            return indefinite.tuned(problem, given, by_evidence=False)
        if problem.tune_noise:
            return ByEvidence().optimum(problem, given)
        middle = max(problem.middle, indefinite.STIFFER * problem.positive_from, 1e-300)
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
