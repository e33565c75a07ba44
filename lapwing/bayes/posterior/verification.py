"""How good a posterior is, from the training data themselves: variances solved again, true residuals, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.statistics import in_units
from lapwing.linalg.operators import Diagonal, LinearOperator, Product, over_parts
from lapwing.linalg.solvers import ConjugateGradients

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
    posterior.training_model("verify")
    features = posterior.map.features(inputs)
    rows = features.rows(0, min(count, features.shape[0])).double()
    solved, rtol = covariance_times(posterior, rows)
    return Verification(posterior.gaussian.variances(rows), (rows.mT * solved).sum(0), rtol)


def covariance_times(posterior: Posterior, rows: Tensor) -> tuple[Tensor, float]:  # (r, d) -> (d, r)
    """The covariance of the weights times rows, by conjugate gradients on the data, and its relative tolerance."""
    std, scaled = posterior.prior.std, _whitened_rows(posterior)
    whitened = (std * rows).mT.to(scaled.like)
    system = Diagonal(torch.ones_like(std).to(scaled.like)) + scaled.T @ scaled
    rtol = 1e-8 if scaled.like.dtype == torch.float64 else 1e-5  # as far as products in this precision go
    solution = ConjugateGradients(rtol=rtol, max_steps=20 * len(std) + 200).solve(system, whitened).checked()
    return std[:, None] * solution.double(), rtol


def residuals(posterior: Posterior) -> Tensor:  # (1 + draws,)
    """True relative residuals of the mean of the Gaussian model and of every draw."""
    gaussian = posterior.gaussian
    if not gaussian.has_residuals:
        raise ValueError("the draws of a structured posterior solve no equation of the data: see `verify`")
    posterior.training_model("residuals")
    std, deviations = posterior.prior.std, gaussian.deviations
    kept = std > 0
    scaled, targets = _whitened_rows(posterior), _targets(posterior)
    prior_noise = torch.cat([torch.zeros_like(std)[:, None], gaussian.prior_noise], dim=1)
    data_noise = Noise(posterior.seed, DATA).table(len(targets), deviations.shape[1])
    mean = gaussian.surrogate_mean()
    solved = torch.cat([mean[:, None], deviations], dim=1)
    solved = torch.where(kept[:, None], solved / torch.where(kept, std, 1)[:, None], prior_noise)
    like = scaled.like

    def sides(start: int, stop: int, part: LinearOperator) -> Tensor:
        columns = torch.cat([targets[start:stop, None], data_noise.rows(start, stop)], dim=1).to(like)
        both = torch.cat([columns, columns - part.matmat(solved.to(like))], dim=1)
        return part.rmatmat(both).double()

    right, error = (over_parts(scaled, sides) + torch.cat([prior_noise] * 2, dim=1)).chunk(2, dim=1)
    return (error - solved).norm(dim=0) / right.norm(dim=0).clamp_min(1e-300)


def _noise_root(posterior: Posterior) -> Tensor:  # (rows,)
    return posterior.gaussian.noise_precision[posterior.gaussian.fit.gaussian_surrogate.noise_of].sqrt()


def _whitened_rows(posterior: Posterior) -> LinearOperator:
    """The rows of the data in units of prior and noise."""
    scaled = in_units(posterior.gaussian.fit.gaussian_surrogate.features, posterior.prior.std)
    root = _noise_root(posterior)
    return scaled if bool((root == 1).all()) else Product(Diagonal(root.to(scaled.like)), scaled)


def _targets(posterior: Posterior) -> Tensor:  # (rows,)
    return _noise_root(posterior) * posterior.gaussian.fit.gaussian_surrogate.targets
