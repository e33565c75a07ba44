"""How good a posterior is, from the training data themselves: variances solved again, true residuals, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.predictive.axes import placed
from lapwing.bayes.solving.structured import Approximate
from lapwing.bayes.statistics import Ritz, Whitened, scaled_features
from lapwing.linalg import krylov
from lapwing.linalg.operators import Diagonal, LinearOperator, over_parts, row_blocks
from lapwing.linalg.solvers import CG

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior


@final
@dataclass(frozen=True, eq=False)
class Verification:
    """Our predictive variances beside those of an independent solve."""

    ours: Tensor
    reference: Tensor
    rtol: float = 1e-8

    @property
    def relative_error(self) -> float:
        """The largest relative error of our variances."""
        return float(((self.ours - self.reference).abs() / self.reference.clamp_min(1e-300)).max())

    def __repr__(self) -> str:
        return (
            f"largest relative error of {len(self.ours)} predictive variances: {self.relative_error:.1e} "
            f"(against conjugate gradients to {self.rtol:.0e})"
        )


def verify(posterior: Posterior, inputs: Any, count: int) -> Verification:
    """The variances of the first few outputs beside those by conjugate gradients on the data."""
    model, features = posterior.training_model("verify"), posterior.features_of(inputs)
    rows, std = features.rows(0, min(count, features.shape[0])).double(), posterior.belief.std
    scaled = scaled_features(model.features, row_precision(posterior, model).sqrt(), std)
    whitened_rows = (std * rows).mT.to(scaled.like)
    system = Diagonal(torch.ones_like(posterior.mean).to(scaled.like)) + scaled.T @ scaled
    rtol = 1e-8 if scaled.like.dtype == torch.float64 else 1e-5  # as far as products in this precision go
    solution = CG(rtol=rtol, max_steps=20 * len(posterior.mean) + 200).solve(system, whitened_rows).checked()
    belief = posterior.belief
    if isinstance(belief, Whitened) and belief.exact:
        inside, k = belief.spectrum.coordinates(std * rows), belief.values
        ours = inside.square() @ (1 / (1 + k))
        if not belief.spectrum.complete:
            ours = ours + ((std * rows).square().sum(1) - inside.square().sum(1)).clamp_min(0)
    else:
        ours = (rows @ posterior.deviations).square().mean(1)
    return Verification(ours, (whitened_rows * solution).double().sum(0), rtol)


def residuals(posterior: Posterior) -> Tensor:  # (1 + draws,)
    """True relative residuals of the mean and of every draw."""
    if isinstance(posterior.statistics, Approximate):
        raise ValueError("the draws of a structured posterior solve no equation of the data: see `verify`")
    model, std = posterior.training_model("residuals"), posterior.belief.std
    root, kept = row_precision(posterior, model).sqrt_(), std > 0
    scaled = scaled_features(model.features, root, std)
    zero = torch.zeros_like(posterior.mean)[:, None]
    prior_noise = torch.cat([zero, posterior.prior_noise()], dim=1)
    data_noise = Noise(posterior.seed, DATA).table(len(root), posterior.deviations.shape[1])
    mean = posterior.mean if posterior.tangent is None else torch.zeros_like(posterior.mean)
    solved = torch.cat([mean[:, None], posterior.deviations], dim=1)
    solved = torch.where(kept[:, None], solved / torch.where(kept, std, 1)[:, None], prior_noise)
    targets, like = model.targets.reshape(-1), scaled.like

    def sides(start: int, stop: int, part: LinearOperator) -> Tensor:
        seen = (root[start:stop] * targets[start:stop])[:, None]
        columns = torch.cat([seen, data_noise.rows(start, stop)], dim=1).to(like)
        both = torch.cat([columns, columns - part.matmat(solved.to(like))], dim=1)
        return part.rmatmat(both).double()

    right, error = (over_parts(scaled, sides) + torch.cat([prior_noise] * 2, dim=1)).chunk(2, dim=1)
    return (error - solved).norm(dim=0) / right.norm(dim=0).clamp_min(1e-300)


def bounds(posterior: Posterior, features: LinearOperator, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds on the epistemic variance; equal where it has a closed form."""
    known = posterior.statistics
    if not isinstance(known, tuple) or not known:
        raise ValueError("bounds come from a Krylov space: infer with method=Krylov(), or leave bounds out")
    if not isinstance(known[0].basis, Ritz):
        exact = placed(posterior.likelihood, posterior.seen_at(features, centre, None).spread.variance, centre)
        return exact, exact
    ritz, alpha, beta = known[0].basis, float(posterior.prior.precision), float(posterior.noise_precision)
    blocks = [
        krylov.variances(
            ritz.space, rows.double() * posterior.prior.scale, alpha=alpha, beta=beta, operator=ritz.operator
        )
        for rows in row_blocks(features)
    ]
    return (
        placed(posterior.likelihood, torch.cat([block.lower for block in blocks]), centre),
        placed(posterior.likelihood, torch.cat([block.upper for block in blocks]), centre),
    )


def row_precision(posterior: Posterior, model: LinearModel) -> Tensor:  # (n * m,)
    """The precision of every training target, as often as it counts."""
    noise = posterior.noise_precision[model.gaussian.row_groups(model.targets)]
    return noise.mul_(model.gaussian.row_precision(model.targets)).mul_(model.row_counts)
