"""The rows of a linear model in units of their noise and of the prior's scale."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import Diagonal, LinearOperator, Product, Rows


def row_weights(model: LinearModel) -> Tensor:  # (n * m,)
    """How often each target counts, times the precision given for it."""
    return model.gaussian.row_precision(model.targets).mul(model.row_counts)


def totals(model: LinearModel) -> tuple[float, float]:
    """The number of observations, weights included, and ½ Σ log of the precisions given per row."""
    given, counts = model.gaussian.row_precision(model.targets).log(), model.row_counts
    return float(counts.sum()), 0.5 * float(given @ counts)


def whitened_data(
    model: LinearModel, prior: DiagonalPrior, noise: Noise, draws: int
) -> tuple[LinearOperator, Tensor, Rows]:
    """Features, targets and data noise with weights and the prior's scale applied: (n·m, d), (n·m,), (n·m, draws).

    The noise is made block by block where it is used.
    """
    root, targets = row_weights(model).sqrt_(), model.targets.reshape(-1)
    normals = replace(noise, stream=DATA).table(model.targets.numel(), draws)
    scaled = scaled_features(model.features, root, prior.scale)
    return scaled, targets if bool((root == 1).all()) else root * targets, normals


def scaled_features(features: LinearOperator, root: Tensor, scale: Tensor) -> LinearOperator:
    """diag(root) Φ diag(scale), leaving out factors that are one."""
    if not bool((scale == 1).all()):
        features = Product(features, Diagonal(scale.to(features.like)))
    if not bool((root == 1).all()):
        features = Product(Diagonal(root.to(features.like)), features)
    return features
