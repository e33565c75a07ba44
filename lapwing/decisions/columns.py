"""Columns of a table as features of a Gaussian process, few enough for closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.utils.validation import check_array
from torch import Generator, Tensor

from lapwing.tabular.columns import Encoding, Table, has_labels, read_frame

LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)  # scales of the kernel, in root mean squared distances from the mean row
FREQUENCIES = 256


def table_inputs(table: Any) -> np.ndarray:  # (n, inputs)
    """Standardised numbers of an array or a data frame: indicators for text and categories, missing values marked."""
    read = _table(table)
    return Encoding.of(read, np.ones(len(read.numbers))).inputs(read)


def normal_scores(inputs: Tensor) -> Tensor:  # (n, columns)
    """Each column by its ranks, as the quantiles of a standard normal: long tails and outliers have no pull."""
    ranks = torch.from_numpy(rankdata(inputs.numpy(), axis=0))
    scores = torch.special.ndtri((ranks - 0.5) / len(inputs))
    return scores / scores.std(0, correction=0).clamp_min(1e-300)  # a constant column is zero


def fourier_features(inputs: Tensor, length: float, seed: int = 0) -> Tensor:  # (n, 2 · FREQUENCIES)
    """Cosines and sines whose inner products are exp(−‖x − x′‖² / 2ℓ²) on average (Rahimi & Recht 2007)."""
    generator = Generator().manual_seed(seed)
    columns = inputs.shape[1]
    frequencies = torch.randn(columns, FREQUENCIES, generator=generator, dtype=torch.float64)
    phases = inputs.double() @ frequencies / (length * columns**0.5)
    return torch.cat([phases.cos(), phases.sin()], dim=1) / FREQUENCIES**0.5


def _table(table: Any) -> Table:
    if isinstance(table, Table):
        return table
    if has_labels(table):
        return read_frame(table)
    return Table.of_numbers(check_array(table, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2))
