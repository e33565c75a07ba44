"""Columns of a linear model in few coordinates: those of the span of its rows, or of rows that stand for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.linalg.spectral import by_rows

LARGEST = 900  # coordinates; beyond, rows are chosen that stand for all
LEFT = 1e-6  # share of the prior variance that chosen rows may leave


@final
@dataclass(frozen=True, eq=False)
class Reduced:
    """F = design · basisᵀ, but for what is left out."""

    design: Tensor  # (rows, q)
    basis: Tensor | None  # (d, q), orthonormal; None where coordinates are weights
    left_out: Tensor | None  # (rows, d), F − design · basisᵀ; None where it is nothing

    def expand(self, coordinates: Tensor) -> Tensor:  # (q, k) -> (d, k)
        """Weights of coordinates."""
        return coordinates if self.basis is None else self.basis @ coordinates


def reduced(columns: Tensor) -> Reduced:  # (rows, d)
    """The columns in the coordinates of their row space where rows are fewer, exactly up to a size."""
    rows, d = columns.shape
    if d <= min(rows, LARGEST):
        return Reduced(columns, None, None)
    if rows <= LARGEST:
        spectrum, design = by_rows(Dense(columns))
        return Reduced(design, spectrum.vectors, None)
    chosen = pivots(columns @ columns.mT, LARGEST, LEFT)
    basis = torch.linalg.qr(columns[chosen].mT).Q
    design = columns @ basis
    return Reduced(design, basis, columns - design @ basis.mT)


def pivots(gram: Tensor, most: int, left: float) -> Tensor:  # (n, n) -> (count,), long
    """Rows whose span holds nearly all of a Gram matrix, the longest remainder first (pivoted Cholesky)."""
    n = len(gram)
    remainder = gram.diagonal().clone()
    enough = left * float(remainder.sum())
    factor = gram.new_zeros(min(most, n), n)
    chosen: list[int] = []
    while len(chosen) < min(most, n) and float(remainder.clamp_min(0).sum()) > enough:
        number, place = len(chosen), int(remainder.argmax())
        row = gram[place] - factor[:number, place] @ factor[:number]
        factor[number] = row / remainder[place].sqrt()
        remainder = remainder - factor[number].square()
        remainder[place] = 0
        chosen.append(place)
    return torch.tensor(chosen, dtype=torch.long)
