"""Class probabilities of every training example from all the others, in closed form.

Labels are regressed on features with a ridge penalty and a free intercept. With leverages h_i the prediction without
example i is y_i − (y_i − f_i) / (1 − h_i): exactly what a fit without it would give, at no further cost (Rifkin, Yeo &
Poggio 2003). The penalty is the one with the least squared error of those predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

PENALTIES = torch.logspace(-6, 2, 33, dtype=torch.float64)  # times the mean square of the features
SHARPNESS = torch.logspace(-0.5, 3, 141, dtype=torch.float64)
NEGLIGIBLE = 1e-12  # of the largest eigenvalue: round-off


@final
@dataclass(frozen=True, eq=False)
class LeftOutScores:
    """Scores of every class for each example, by a ridge regression without it."""

    scores: Tensor  # (n, c), float64
    leverage: Tensor  # (n,)
    penalty: float
    squared_error: float  # of the scores, against indicators of the labels


def left_out_scores(features: Tensor, labels: Tensor, classes: int) -> LeftOutScores:
    """Leave-one-out predictions of indicators of the classes from features (n, k), at the best penalty."""
    n = len(features)
    targets = functional.one_hot(labels, classes).double()
    centred = targets - targets.mean(0)
    left, eigenvalues = _spectrum(features.double() - features.double().mean(0))
    squares = left.square()
    coefficients = left.mT @ centred

    def at(penalty: Tensor) -> LeftOutScores:
        shrinkage = eigenvalues / (eigenvalues + penalty)
        leverage = squares @ shrinkage + 1 / n
        fitted = left @ (shrinkage[:, None] * coefficients)
        residual = (centred - fitted) / (1 - leverage)[:, None]
        return LeftOutScores(targets - residual, leverage, float(penalty), float(residual.square().sum()))

    found = (at(penalty) for penalty in PENALTIES * eigenvalues.sum().clamp_min(1e-300) / n)
    return min(found, key=lambda one: one.squared_error)


def calibrated(scores: Tensor, labels: Tensor) -> Tensor:  # (n, c)
    """softmax(β · scores) with the β under which the labels are most likely."""
    losses = [float(functional.cross_entropy(beta * scores, labels)) for beta in SHARPNESS]
    best = SHARPNESS[min(range(len(losses)), key=losses.__getitem__)]
    return (best * scores).softmax(1)


def _spectrum(centred: Tensor) -> tuple[Tensor, Tensor]:  # (n, r), (r,)
    """Left singular vectors and squared singular values of centred features, round-off left out."""
    n, k = centred.shape
    if n <= k:
        eigenvalues, left = torch.linalg.eigh(centred @ centred.mT)
        keep = eigenvalues > NEGLIGIBLE * eigenvalues[-1].clamp_min(1e-300)
        return left[:, keep], eigenvalues[keep]
    eigenvalues, right = torch.linalg.eigh(centred.mT @ centred)
    keep = eigenvalues > NEGLIGIBLE * eigenvalues[-1].clamp_min(1e-300)
    return centred @ (right[:, keep] / eigenvalues[keep].sqrt()), eigenvalues[keep]
