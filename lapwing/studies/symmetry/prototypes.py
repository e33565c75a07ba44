"""p(x̂): prototypes as a linear Gaussian model, z ~ N(0, I), x̂ = μ + W z, and the bound on log p(x) that it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.estimators import Estimates
from lapwing.studies.symmetry.inference import Poser
from lapwing.studies.symmetry.poses import Poses
from lapwing.studies.symmetry.warping import Interpolation, disc, warp

RANKS = (2, 4, 8, 16, 32, 64, 128)
WIDTHS = (0.003, 0.01, 0.03, 0.1)  # of q(η | x), in bounds
ROUNDS = 4  # of the noise, which q(z | x) depends on


@final
@dataclass(frozen=True, eq=False)
class Subspace:
    """Probabilistic principal components (Tipping and Bishop 1999)."""

    mean: Tensor  # (pixels,)
    basis: Tensor  # (pixels, rank)
    variance: Tensor  # (), of what the basis leaves out

    @staticmethod
    def of(pictures: Tensor, held_out: Tensor) -> Subspace:
        """The maximum of the likelihood of flat pictures, with the rank that is best on held-out ones."""
        mean = pictures.mean(0)
        _, singular, vectors = torch.linalg.svd(pictures - mean, full_matrices=False)
        values, d = singular.square() / len(pictures), pictures.shape[1]
        found = []
        for rank in (rank for rank in RANKS if rank < min(d, len(pictures) - 1)):
            variance = ((values.sum() - values[:rank].sum()) / (d - rank)).clamp_min(1e-6)
            basis = vectors[:rank].mT * (values[:rank] - variance).clamp_min(0).sqrt()
            one = Subspace(mean, basis, variance)
            found.append((float(one.log_prob(held_out).mean()), one))
        if not found:
            raise ValueError(f"{len(pictures)} pictures are too few for a model of prototypes: at least 4 are needed")
        return max(found, key=lambda pair: pair[0])[1]

    def log_prob(self, pictures: Tensor) -> Tensor:
        """log N(x; μ, W Wᵀ + variance): (n,)."""
        normal = torch.distributions.LowRankMultivariateNormal(
            self.mean, self.basis, self.variance.expand_as(self.mean), validate_args=False
        )
        return normal.log_prob(pictures)

    def posterior(self, pictures: Tensor, variance: Tensor | float | None = None) -> tuple[Tensor, Tensor]:
        """Mean (n, rank) and Cholesky factor (rank, rank) of z given flat pictures, under this noise or its own."""
        rank, noise = self.basis.shape[1], self.variance if variance is None else variance
        covariance = torch.linalg.inv(self.basis.mT @ self.basis + noise * torch.eye(rank).to(self.basis))
        return (pictures - self.mean) @ self.basis @ covariance, torch.linalg.cholesky(covariance * noise)

    def decode(self, z: Tensor) -> Tensor:
        """μ + W z."""
        return self.mean + z @ self.basis.mT


@final
@dataclass(frozen=True, eq=False)
class Bound:
    """Everything in log p(x) ≥ E_q[log p(x | x̂, η) + log p(η | x̂) + log p(z) − log q(η | x) − log q(z | x)].

    q(η | x) is a Gaussian of std `width` times the bounds around the pose that the network gives.
    """

    poser: Poser
    poses: Poses
    subspace: Subspace
    noise_variance: float
    width: float
    interpolation: Interpolation

    @torch.no_grad()
    def terms(self, images: Tensor, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """log weights (count, n) of draws from q, and their squared residuals, averaged over pixels (count, n)."""
        group, (n, channels, size, _) = self.poser.group, images.shape
        inside = disc(size, images).expand(channels, size, size) if any(group.is_angle) else torch.ones_like(images[0])
        centre, std = self.poser(images), self.width * torch.tensor(group.bounds).to(images)
        prototypes = warp(images, group.inverse(centre), interpolation=self.interpolation)
        mean, root = self.subspace.posterior(prototypes.flatten(1), self.noise_variance)
        weights, residuals = [], []
        for _ in range(count):
            e, f = (
                torch.randn(n, k, generator=generator, dtype=torch.float64).to(images)
                for k in (len(group), mean.shape[1])
            )
            eta, z = centre + std * e, mean + f @ root.mT
            clean = self.subspace.decode(z).reshape(images.shape)
            there = warp(clean, group.matrix(eta), interpolation=self.interpolation)
            squared = ((images - there).square() * inside).flatten(1).sum(1)
            pixels = float(inside.sum())
            log_x = -squared / (2 * self.noise_variance) - pixels / 2 * math.log(2 * math.pi * self.noise_variance)
            log_eta = self.poses(clean, eta) - (log_normal(e) - std.log().sum())
            log_z = log_normal(z) - (log_normal(f) - root.diagonal().log().sum())
            weights.append(log_x + log_eta + log_z)
            residuals.append(squared / pixels)
        return torch.stack(weights), torch.stack(residuals)


def importance_weighted(log_weights: Tensor, importance: int) -> Estimates:
    """Bounds from log weights (draws · importance, n): the mean over draws of log mean weight, with its standard error.

    log p(x) ≥ E[log (w₁ + … + w_k) / k], which grows with k to log p(x) (Burda et al. 2016); k = 1 is the ELBO. The
    error is that of an average of independent estimates, and holds however heavy the tail of the weights is.

    >>> importance_weighted(torch.tensor([[0.0], [2.0], [1.0], [1.0]]), 2)[0]
    1.21689 ± 0.22
    """
    draws = len(log_weights) // max(importance, 1)
    if importance < 1 or draws < 2:
        raise ValueError(f"{draws} draws of {importance} weights: a standard error needs at least two draws of one")
    found = log_weights.reshape(draws, importance, -1).logsumexp(1) - math.log(importance)
    return Estimates(found.mean(0), found.std(0) / math.sqrt(draws))


def log_normal(values: Tensor) -> Tensor:
    """log N(values; 0, I), summed over the last axis."""
    return -values.square().sum(-1) / 2 - values.shape[-1] / 2 * math.log(2 * math.pi)


def bound(poser: Poser, poses: Poses, images: Tensor, held_out: Tensor, interpolation: Interpolation) -> Bound:
    """The bound with the width of q, of a few, that is best on held-out pictures, each with a noise of its own.

    The noise is the mean squared residual of pictures under q, which itself depends on the noise: some rounds towards
    that fixed point, which need not be where the bound is largest.
    """
    with torch.no_grad():
        flat = [
            warp(part, poser.group.inverse(poser(part)), interpolation=interpolation).flatten(1)
            for part in (images, held_out)
        ]
    subspace, found = Subspace.of(*flat), []
    for width in WIDTHS:
        one = Bound(poser, poses, subspace, float(subspace.variance), width, interpolation)
        for _ in range(ROUNDS):  # pictures that are read twice are further from their pictures than prototypes are
            noise = float(one.terms(images[:256], 2, Generator().manual_seed(0))[1].mean().clamp_min(1e-6))
            one = replace(one, noise_variance=noise)
        found.append((float(one.terms(held_out[:128], 4, Generator().manual_seed(1))[0].mean()), one))
    return max(found, key=lambda pair: pair[0])[1]
