"""Predictions of each training datum from all the others, without refitting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.statistics import Whitened


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What the posterior without datum i says about datum i, at the same precisions.

    With S = φ_i Σ φ_iᵀ and B its noise precision, the residual is (I − SB)⁻¹ r and the variance (I − SB)⁻¹ S:
    exact for Gaussian noise, with several outputs too.
    """

    leverage: Tensor  # (n,), tr(SB), summing to the effective dimension
    mean: Tensor  # targets' shape
    residual: Tensor  # targets' shape, y − mean
    epistemic_variance: Tensor  # targets' shape
    log_density: Tensor  # (n,), of each datum's targets jointly


def leave_one_out(model: LinearModel, whitened: Whitened, precision: Tensor) -> LeaveOneOut:
    """Leave-one-out predictions on the data of a posterior; `precision` is that of each target's noise, (n · m,)."""
    n, m = len(model.targets), model.outputs
    noise = precision.reshape(n, m)
    counted = noise * model.weights[:, None]
    starts = range(0, n, batch := max(1, 2**22 // (m * model.features.shape[1])))
    parts = [_of_batch(model, whitened, counted, start, min(start + batch, n)) for start in starts]
    leverage, residual, covariance = (torch.cat(part) for part in zip(*parts, strict=True))
    spread = covariance + torch.diag_embed(1 / noise)
    density = torch.distributions.MultivariateNormal(torch.zeros(m, dtype=torch.float64), spread).log_prob(residual)
    shape = model.targets.shape
    return LeaveOneOut(
        leverage=leverage,
        mean=model.targets - residual.reshape(shape),
        residual=residual.reshape(shape),
        epistemic_variance=covariance.diagonal(dim1=1, dim2=2).reshape(shape),
        log_density=density,
    )


def _of_batch(model: LinearModel, whitened: Whitened, counted: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
    """Leverage, left-out residual and covariance of some data: (batch,), (batch, m), (batch, m, m).

    With U the left singular vectors in units of the noise, I − SB is similar to C = U (I + K)⁻¹ Uᵀ + (I − UUᵀ), which
    is formed without cancellation, so leverages close to one do no harm.
    """
    m, v, k = model.outputs, whitened.vectors, whitened.values
    rows = model.features.rows(start * m, stop * m).double() * whitened.std
    root, targets = counted[start:stop].sqrt(), model.targets[start:stop].reshape(-1, m)
    inside, seen = (rows @ v).reshape(-1, m, len(k)), whitened.statistics.targets[:, None]
    determined = replace(whitened.spectrum, values=k).determined
    u, kept = root[:, :, None] * inside * determined, 1 / (1 + k)
    complement, residual = (u * kept) @ u.mT, ((u * kept) @ seen)[:, :, 0]
    if int((determined > 0).sum()) < model.features.shape[0]:  # else U spans all data
        complement = complement + torch.eye(m, dtype=torch.float64) - u @ u.mT
        residual = residual + root * targets - (u @ seen)[:, :, 0]
    inverse = torch.linalg.inv(complement)
    safe = torch.where(root > 0, root, 1)
    covariance = (inverse - torch.eye(m, dtype=torch.float64)) / safe[:, :, None] / safe[:, None, :]
    residual = (inverse @ residual[:, :, None])[:, :, 0] / safe
    if not bool((root > 0).all()):  # a datum of weight zero was never in: its prediction is the posterior's own
        blocks = rows.reshape(-1, m, rows.shape[1])
        own = (inside * kept) @ inside.mT + blocks @ blocks.mT - inside @ inside.mT
        plain = targets - (inside @ (k.sqrt()[:, None] * seen / (1 + k)[:, None]))[:, :, 0]
        residual = torch.where(root > 0, residual, plain)
        covariance = torch.where(root[:, :, None] > 0, covariance, own)
    leverage = m - complement.diagonal(dim1=1, dim2=2).sum(1)
    return leverage, residual, (covariance + covariance.mT) / 2
