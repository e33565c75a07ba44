"""The mode of a posterior whose likelihood is not Gaussian, and what is said of a Krylov space at new precisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapwing.bayes.modes.tangent import AtMode, Known, Tangent
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.solving.structured import Approximate, AtWeights, Nearby
from lapwing.bayes.statistics import Ritz, Statistics, Whitened
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.solvers import Preconditioner

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior


def told_of_space(known: Statistics, prior: DiagonalPrior, noise_precision: Tensor, settled: bool) -> dict[str, Any]:
    """What diagnostics say of a Krylov space at these precisions: it may be too small where it cannot grow."""
    alpha = float(prior.precision[0])
    if not isinstance(known.basis, Ritz) or alpha == float("inf"):
        return {}
    error = known.basis.error(alpha, float(noise_precision[0]))
    return {"error_bound": error, "converged": settled and error <= known.basis.rtol}


def at_weights(known: Any) -> bool:
    """Whether the evidence is taken at the network's own weights, so that no mode is looked for."""
    return isinstance(known, Approximate) and isinstance(known.fits, AtWeights)


def with_mode(posterior: Posterior, near: AtMode | None = None) -> Posterior:
    """The same posterior with the mode and the evidence of its own likelihood, where it is not Gaussian."""
    tangent = posterior.tangent
    if tangent is None or posterior.at_mode is not None or at_weights(posterior.statistics):
        return posterior
    log_det = -2 * posterior.evidence_parts.occam
    found = None if tangent.lost else _mode(posterior, tangent, near)
    if found is None:
        unknown = replace(posterior.evidence_parts, fit=float("nan"), penalty=float("nan"))
        lost = torch.full_like(posterior.mean, torch.nan)
        return replace(posterior, mean=lost, evidence_parts=unknown, log_evidence=Estimate(float("nan")))
    parts = tangent.parts(found, log_det)
    error = posterior.log_evidence.standard_error
    return replace(
        posterior, at_mode=found, mean=tangent.weights(found), evidence_parts=parts,
        log_evidence=Estimate(parts.total, error),
        diagnostics={
            **posterior.diagnostics, "mode_gap": found.mode.gap, "mode_steps": found.mode.steps,
            "mode_passes": posterior.diagnostics.get("mode_passes", 0.0) + found.mode.passes,
        },
    )  # fmt: skip


def _mode(posterior: Posterior, tangent: Tangent, near: AtMode | None) -> AtMode | None:
    """The mode, or None where a loss that is not convex has none to be found: predictions do without it."""
    try:
        return tangent.mode(posterior.prior.precision, near, _preconditioner(posterior, tangent))
    except FloatingPointError:
        if tangent.likelihood.curvature == "Hessian":
            raise
        return None


def _preconditioner(posterior: Posterior, tangent: Tangent) -> Preconditioner | None:
    """The Krylov space or the structure of a posterior, which knows the curvature at the outputs of the network."""
    belief = posterior.belief
    if tangent.row_space is not None:  # they know weights, and the loss is one over coordinates of their row space
        return None
    if isinstance(posterior.statistics, Approximate) and isinstance(belief, Whitened):
        return Nearby(replace(belief.spectrum, values=belief.values))
    if isinstance(belief, Whitened) and isinstance(belief.statistics.basis, Ritz):
        return Known(belief.statistics.basis, belief.values)
    return None
