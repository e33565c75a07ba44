"""Features as a matrix, where it fits."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from lapwing.bayes.fits.loss import PerOutput
from lapwing.bayes.linear_model import LinearModel
from lapwing.linalg.operators import Dense, Double, LinearOperator
from lapwing.runtime.memory import available_bytes
from lapwing.runtime.progress import Report

MATRICES = (Dense, PerOutput)  # features that are stored, or as good as
BLOCK_ELEMENTS = 2**25  # of a Jacobian made at once


def stored_features(features: LinearOperator, outputs: int = 1, report: Report | None = None) -> LinearOperator:
    """The same features as a matrix, where it takes at most half of the memory there is; made by whole data."""
    rows, d = features.shape
    if rows * d * features.like.element_size() > available_bytes() / 2:
        return features
    matrix = torch.empty(rows, d, dtype=features.like.dtype, device=features.like.device)
    height, started = outputs * max(1, BLOCK_ELEMENTS // (outputs * d)), time.perf_counter()
    for start in range(0, rows, height):
        stop = min(start + height, rows)
        matrix[start:stop] = features.rows(start, stop)
        if report is not None:
            left = (time.perf_counter() - started) * (rows - stop) / stop
            report(f"making the Jacobian of the training data, {stop / rows:.0%}, {left:.0f} s left")
    return Dense(matrix)


def in_double(features: LinearOperator) -> LinearOperator:
    """Stored features in double precision where they fit: eigenvalues below the square of single precision count."""
    if isinstance(features, PerOutput):
        return replace(features, inner=in_double(features.inner))
    stored = stored_features(Double(features))
    return stored if isinstance(stored, Dense) else features


def stored(model: LinearModel, report: Report | None = None) -> LinearModel:
    """The model with its features as a matrix, where that fits."""
    if isinstance(model.features, MATRICES):
        return model
    return replace(model, features=stored_features(model.features, model.outputs, report))
