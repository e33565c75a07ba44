"""What the estimators share: a fit that is all or nothing, row weights, centred features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from lapwing.linalg.operators import Diagonal, LinearOperator, LowRank

Estimator = TypeVar("Estimator", bound=Any)


def fitted_whole(estimator: Estimator, X: Any, y: Any, *known: Any) -> Estimator:
    """Fit a copy and take it over when it is done: an error or an interrupt leaves the estimator as it was."""
    estimator._validate_params()
    fresh = object.__new__(type(estimator))  # not by `copy`, which asks for the state that a file would have
    kept = {name: value for name, value in vars(estimator).items() if name.startswith("_") or not name.endswith("_")}
    fresh.__dict__.update(kept)
    fresh._fit(X, y, *known)
    estimator.__dict__ = fresh.__dict__
    return estimator


def row_weights(X: Any, sample_weight: Any) -> np.ndarray:
    """How often each row counts, as float64."""
    if sample_weight is None:
        return np.ones(X.shape[0])
    weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True).astype(float)
    if not weights.any():
        raise ValueError("every sample weight is zero: no data are left")
    return weights


def centre(features: LinearOperator, offset: Tensor) -> LinearOperator:
    """Features minus an offset per column, as an operator: X is neither copied nor made dense."""
    if not bool((offset != 0).any()):
        return features
    ones = torch.ones(features.shape[0], 1).to(features.like)
    return features + LowRank(ones, -offset[:, None].to(features.like))


def weighted_mean(features: LinearOperator, weights: Tensor | None) -> Tensor:  # (d,)
    """The mean of rows, in double precision."""
    ones = features.like.new_ones(features.shape[0]) if weights is None else weights.to(features.like)
    return features.rmatmat(ones[:, None])[:, 0].double() / ones.double().sum()


@final
@dataclass(frozen=True, eq=False)
class Training:
    """Centred data, by reference."""

    features: LinearOperator  # (n, d)
    targets: Tensor  # (n, k)
    weights: Tensor | None  # (n,), or all rows count once

    @property
    def weight_column(self) -> Tensor:  # (n,)
        """How often each row counts."""
        return torch.ones(len(self.targets), dtype=torch.float64) if self.weights is None else self.weights

    @property
    def count(self) -> float:
        """Observations."""
        return float(len(self.targets)) if self.weights is None else float(self.weights.sum())

    @property
    def rows(self) -> LinearOperator:
        """Features times the roots of the weights."""
        if self.weights is None:
            return self.features
        return Diagonal(self.weights.sqrt().to(self.features.like)) @ self.features

    @property
    def scaled_targets(self) -> Tensor:  # (n, k)
        """Targets times the roots of the weights."""
        return self.targets if self.weights is None else self.weights.sqrt()[:, None] * self.targets
