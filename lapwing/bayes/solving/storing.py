"""Features as a matrix, where it fits."""

from __future__ import annotations

import time

import torch

from lapwing.linalg.memory import available_bytes
from lapwing.linalg.operators import Dense, Double, LinearOperator
from lapwing.linalg.progress import Report

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
    stored = stored_features(Double(features))
    return stored if isinstance(stored, Dense) else features
