"""Dense truth by another route: inverses, determinants and plain sums. Imports nothing of lapwing."""

import math

import torch
from torch import Tensor


def precision(features: Tensor, noise: Tensor, prior: Tensor) -> Tensor:
    """H = Φᵀ diag(noise) Φ + diag(prior), from precisions per row and per weight."""
    return features.mT @ torch.diag(noise) @ features + torch.diag(prior)


def posterior(features: Tensor, targets: Tensor, noise: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    covariance = torch.linalg.inv(precision(features, noise, prior))
    return covariance @ features.mT @ (noise * targets), covariance


def log_evidence(features: Tensor, targets: Tensor, noise: Tensor, prior: Tensor, counts: Tensor) -> float:
    """Energies at the mode and determinants of H and A; a datum that counts w times has w normalisers.

    `noise` includes the counts, as it does in `precision`.
    """
    mean = torch.linalg.solve(precision(features, noise, prior), features.mT @ (noise * targets))
    energy = (noise * (targets - features @ mean) ** 2).sum() + (prior * mean**2).sum()
    determinants = prior.log().sum() - torch.linalg.slogdet(precision(features, noise, prior)).logabsdet
    normaliser = (counts * ((noise / counts).log() - math.log(2 * math.pi))).sum()
    return float(0.5 * (determinants + normaliser - energy))


def log_evidence_of_data(features: Tensor, targets: Tensor, noise: Tensor, prior: Tensor) -> float:
    """log N(y; 0, ΦA⁻¹Φᵀ + B⁻¹), by Cholesky."""
    covariance = features @ torch.diag(1 / prior) @ features.mT + torch.diag(1 / noise)
    return float(torch.distributions.MultivariateNormal(torch.zeros_like(targets), covariance).log_prob(targets))


def perturb_and_solve(features: Tensor, noise: Tensor, prior: Tensor, xi: Tensor, theta: Tensor) -> Tensor:
    """H⁻¹ (ΦᵀB^½ ξ + A^½ θ̃): a zero-mean posterior draw for each column of standard normals."""
    right = features.mT @ (noise.sqrt()[:, None] * xi) + prior.sqrt()[:, None] * theta
    return torch.linalg.solve(precision(features, noise, prior), right)
