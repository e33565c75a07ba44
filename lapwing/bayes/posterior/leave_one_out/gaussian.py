"""Predictions of each training datum from all the others, without refitting, and what each datum does to the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.predictive import Prediction
from lapwing.bayes.statistics import Whitened


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What the posterior without datum i says about datum i, at the same precisions.

    With S = φ_i Σ φ_iᵀ, B its noise precision and g the gradient of its log density in the outputs f = φ_i θ, leaving
    it out moves the outputs to f − S u, u = (I − BS)⁻¹ g, and their covariance to (I − SB)⁻¹ S. That is exact for
    Gaussian noise, with several outputs too, and one Newton step for other likelihoods.
    """

    leverage: Tensor  # (n,), tr(SB): how much of its own prediction each datum makes
    mean: Tensor  # outputs' shape; logits of class labels
    epistemic_variance: Tensor  # outputs' shape
    log_density: Tensor  # (n,), of each datum's targets; jointly under Gaussian noise, summed over labels otherwise
    pull: Tensor  # (n, m), u: the mean of the weights is Σ φ_iᵀ u further from where it is without the datum
    distance: Tensor  # (n,), √(uᵀSu): how far that is, in posterior standard deviations (Cook's distance)
    residual: Tensor | None = None  # targets − mean, of numbers
    prediction: Prediction | None = None  # of class labels: their probabilities without the datum

    def most_influential(self, count: int = 10) -> Tensor:  # (count,), long
        """The data that move the posterior most by being there, the strongest first."""
        return self.distance.argsort(descending=True)[: _positive(count)]

    def label_errors(self, count: int = 50) -> Tensor:  # (count,), long
        """The data whose targets all others find least likely, the most suspicious first."""
        return self.log_density.argsort()[: _positive(count)]


def _positive(count: int) -> int:
    if count < 1:
        raise ValueError(f"count is {count}, expected at least 1")
    return count


def leave_one_out(
    model: LinearModel, whitened: Whitened, precision: Tensor, *, at: Tensor | None = None
) -> LeaveOneOut:
    """Leave-one-out predictions on the data of a posterior; `precision` is that of each target's noise, (n · m,).

    With weights `at`, (d,), they are taken for the mean of the posterior, which then stands where it was trained to.
    """
    n, m = len(model.targets), model.outputs
    noise = precision.reshape(n, m)
    counted = noise * model.row_counts.reshape(n, m)
    starts = range(0, n, batch := max(1, 2**22 // (m * model.features.shape[1])))
    parts = [_of_batch(model, whitened, counted, start, min(start + batch, n), at) for start in starts]
    leverage, residual, covariance, square = (torch.cat(part) for part in zip(*parts, strict=True))
    spread = covariance + torch.diag_embed(1 / noise)
    density = torch.distributions.MultivariateNormal(torch.zeros(m, dtype=torch.float64), spread).log_prob(residual)
    shape, targets = model.targets.shape, model.targets
    if model.centre is not None and model.offset is not None:  # the targets of a network are less f − J w̄
        targets = targets + model.offset.reshape(shape)
    return LeaveOneOut(
        leverage=leverage,
        mean=targets - residual.reshape(shape),
        residual=residual.reshape(shape),
        epistemic_variance=covariance.diagonal(dim1=1, dim2=2).reshape(shape),
        log_density=density,
        pull=counted * residual,
        distance=square.clamp_min(0).sqrt(),
    )


def _of_batch(
    model: LinearModel, whitened: Whitened, counted: Tensor, start: int, stop: int, at: Tensor | None
) -> tuple[Tensor, ...]:
    """Leverage, left-out residual, covariance and squared distance: (batch,), (batch, m), (batch, m, m), (batch,).

    With U the left singular vectors in units of the noise, I − SB is similar to C = U (I + K)⁻¹ Uᵀ + (I − UUᵀ), which
    is formed without cancellation, so leverages close to one do no harm.
    """
    m, v, k = model.outputs, whitened.vectors, whitened.values
    plain_rows = model.features.rows(start * m, stop * m).double()
    rows = plain_rows * whitened.std
    root, targets = counted[start:stop].sqrt(), model.targets[start:stop].reshape(-1, m)
    inside, seen = (rows @ v).reshape(-1, m, len(k)), whitened.statistics.targets[:, None]
    determined = replace(whitened.spectrum, values=k).determined
    u, kept = root[:, :, None] * inside * determined, 1 / (1 + k)
    complement, residual = (u * kept) @ u.mT, ((u * kept) @ seen)[:, :, 0]
    if int((determined > 0).sum()) < model.features.shape[0]:  # else U spans all data
        complement = complement + torch.eye(m, dtype=torch.float64) - u @ u.mT
        residual = residual + root * targets - (u @ seen)[:, :, 0]
    fitted = None if at is None else (plain_rows @ at.double()).reshape(-1, m)
    residual = residual if fitted is None else root * (targets - fitted)
    inverse = torch.linalg.inv(complement)
    safe = torch.where(root > 0, root, 1)
    covariance = (inverse - torch.eye(m, dtype=torch.float64)) / safe[:, :, None] / safe[:, None, :]
    scaled = inverse @ residual[:, :, None]
    square = (scaled * (scaled - complement @ scaled)).sum((1, 2))
    residual = scaled[:, :, 0] / safe
    if not bool((root > 0).all()):  # a datum of weight zero was never in: its prediction is the posterior's own
        blocks = rows.reshape(-1, m, rows.shape[1])
        own = (inside * kept) @ inside.mT + blocks @ blocks.mT - inside @ inside.mT
        mean = (inside @ (k.sqrt()[:, None] * seen / (1 + k)[:, None]))[:, :, 0] if fitted is None else fitted
        plain = targets - mean
        residual = torch.where(root > 0, residual, plain)
        covariance = torch.where(root[:, :, None] > 0, covariance, own)
    leverage = m - complement.diagonal(dim1=1, dim2=2).sum(1)
    return leverage, residual, (covariance + covariance.mT) / 2, square
