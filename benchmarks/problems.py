"""Numbers that several benchmarks set their problems up with."""

from __future__ import annotations

import math

import scipy.optimize
import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import Dense
from lapwing.linalg.stochastic import Objective


def normals(*shape: int, seed: int) -> Tensor:
    """Standard normals in float64."""
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def precision_for(eigenvalues: Tensor, dimension: float) -> float:
    """α at which the effective dimension Σ λ/(λ + α) is as given."""

    def excess(log_alpha: float) -> float:
        return float((eigenvalues / (eigenvalues + math.exp(log_alpha))).sum()) - dimension

    return math.exp(scipy.optimize.brentq(excess, -60, 60, xtol=1e-12))


def drawing(features: Tensor, precision: float, draws: int, seed: int) -> Objective:
    """The objective whose minimisers are posterior draws: standard normal targets, anchors from the prior."""
    n, d = features.shape
    noise, anchors = normals(n, draws, seed=seed), normals(d, draws, seed=seed + 1) / precision**0.5
    return Objective(Dense(features), noise, anchors, precision)


def hessian(features: Tensor, precision: float) -> Tensor:
    """GᵀG + αI, dense."""
    matrix = features.mT @ features
    matrix.diagonal().add_(precision)
    return matrix


def minimiser(objective: Objective) -> Tensor:
    """The exact draws, by Cholesky's factorisation."""
    factor = torch.linalg.cholesky(hessian(objective.features.dense(), objective.precision))
    return torch.cholesky_solve(objective.system()[1], factor)
