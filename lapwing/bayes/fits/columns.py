"""Columns of a linear model in few coordinates: those of the span of its rows, or of rows that stand for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.fits.designs import Design, PerContrast, StoredDesign
from lapwing.linalg.operators import Dense
from lapwing.linalg.spectral import by_rows

LARGEST = 600  # coordinates; beyond, rows are chosen that stand for all,
LARGEST_GRAM = 6000  # up to so many; of more rows the directions of weight space are taken that hold most of them
LEFT = 1e-5  # share of the prior variance that chosen rows may leave


@final
@dataclass(frozen=True, eq=False)
class Reduced:
    """F = design · basisᵀ, but for what is left out."""

    design: Design  # (n, k, q)
    basis: Tensor | None  # (d, q), orthonormal; None where coordinates are weights
    left_out: Tensor | None  # (n, k, k), what design · designᵀ lacks of F Fᵀ for each datum; None where it is nothing

    def expand(self, coordinates: Tensor) -> Tensor:  # (q, k) -> (d, k)
        """Weights of coordinates."""
        return coordinates if self.basis is None else self.basis @ coordinates

    def coordinates(self, rows: Tensor) -> Tensor:  # (r, d) -> (r, q)
        """Other rows in the same coordinates."""
        return rows if self.basis is None else rows @ self.basis


@final
@dataclass(frozen=True, eq=False)
class Given:
    """Columns of weights whose precisions are given, in units of their prior."""

    design: Design  # (n, k, p)
    groups: Tensor  # (p,), whose precision each coordinate has
    basis: Tensor | None = None  # (weights, p), orthonormal; None where coordinates are weights

    def expand(self, coordinates: Tensor) -> Tensor:  # (p,) -> (weights,)
        """Weights of coordinates."""
        return coordinates if self.basis is None else self.basis @ coordinates

    def columns(self, scale: Tensor) -> Tensor:  # (groups,) -> (n, k, weights)
        """The columns of the weights themselves, times a number for each group."""
        scaled = self.design.dense() * scale[self.groups]
        return scaled if self.basis is None else scaled @ self.basis.mT


def reduced(columns: Tensor, k: int) -> Reduced:  # (n · k, d)
    """The columns in the coordinates of their row space where rows are fewer, exactly up to a size."""
    rows, d = columns.shape
    if d <= min(rows, LARGEST):
        return Reduced(_stored(columns, k), None, None)
    if rows > LARGEST_GRAM:
        basis = torch.linalg.eigh(columns.mT @ columns)[1][:, -LARGEST:]
        return _in(columns, basis, k)
    if rows <= LARGEST:
        spectrum, design = by_rows(Dense(columns))
        return Reduced(_stored(design, k), spectrum.vectors, None)
    gram = columns @ columns.mT
    chosen, design = pivoted(gram, LARGEST, LEFT)
    basis = torch.linalg.solve_triangular(design[chosen].tril(), columns[chosen], upper=False).mT
    own = gram.reshape(rows // k, k, rows // k, k).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    inside = design.reshape(rows // k, k, -1)
    return Reduced(StoredDesign(inside), basis, own - inside @ inside.mT)


def per_contrast(features: Tensor, contrasts: Tensor) -> tuple[Design, Tensor]:  # (n, d), (c, k)
    """Columns of weights (d, c) of features that c outputs share, by the contrasts of these; and the basis of that."""
    basis = torch.kron(torch.eye(features.shape[1], dtype=features.dtype), contrasts)
    return PerContrast(features, contrasts.shape[1]), basis


def _in(columns: Tensor, basis: Tensor, k: int) -> Reduced:  # (n · k, d), (d, q)
    """The columns in an orthonormal basis, and what that leaves of each datum."""
    whole = columns.reshape(-1, k, columns.shape[1])
    inside = whole @ basis
    return Reduced(StoredDesign(inside), basis, whole @ whole.mT - inside @ inside.mT)


def _stored(columns: Tensor, k: int) -> Design:  # (n · k, q)
    return StoredDesign(columns.reshape(-1, k, columns.shape[1]))


def pivoted(gram: Tensor, most: int, left: float) -> tuple[Tensor, Tensor]:  # (n, n) -> (q,), (n, q)
    """Rows whose span holds nearly all of a Gram matrix, the longest remainder first, and its factor by them."""
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
    return torch.tensor(chosen, dtype=torch.long), factor[: len(chosen)].mT.contiguous()
