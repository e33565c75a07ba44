"""What the estimators share: a fit that is all or nothing, row weights, centred features."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from lapwing.linalg.operators import LinearOperator, LowRank

Estimator = TypeVar("Estimator", bound=Any)


def fitted_whole(estimator: Estimator, X: Any, y: Any, *known: Any) -> Estimator:
    """Fit a copy and take it over when it is done: an error or an interrupt leaves the estimator as it was."""
    estimator._validate_params()
    fresh = copy(estimator)
    for name in [name for name in vars(fresh) if name.endswith("_") and not name.startswith("_")]:
        delattr(fresh, name)
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
