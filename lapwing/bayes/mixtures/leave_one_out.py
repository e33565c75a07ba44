"""Predictions of each training datum by a mixture of all the others' posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch

from lapwing.bayes.posterior.leave_one_out import LeaveOneOut
from lapwing.bayes.predictive import mixed


def left_out(parts: Sequence[LeaveOneOut]) -> LeaveOneOut:
    """The mixture of what every member says without each datum.

    Densities are means over the members, leverages too; distances are root mean squares. `pull` is (members, n, m): the
    weights that a datum moves are each member's own.
    """
    if len(parts) == 1:
        return parts[0]
    found = mixed([part.prediction for part in parts])
    densities, residuals = torch.stack([part.log_density for part in parts]), [part.residual for part in parts]
    known = [residual for residual in residuals if residual is not None]
    return LeaveOneOut(
        leverage=torch.stack([part.leverage for part in parts]).mean(0),
        mean=torch.stack([part.mean for part in parts]).mean(0),
        epistemic_variance=found.epistemic_variance,
        log_density=densities.logsumexp(0) - log(len(parts)),
        pull=torch.stack([part.pull for part in parts]),
        distance=torch.stack([part.distance for part in parts]).square().mean(0).sqrt(),
        prediction=found,
        residual=torch.stack(known).mean(0) if len(known) == len(parts) else None,
    )
