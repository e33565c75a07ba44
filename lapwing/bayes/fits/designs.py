"""Columns of whitened weights, datum by datum: what the few outputs of each datum take of every weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators import Dense
from lapwing.linalg.spectral import by_rows

BLOCK = 2**24  # numbers that are held at once


class Design(ABC):
    """D with k rows for each of n data and q columns, by the products that a search for the best Gaussian takes."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(n, k, q)."""

    @abstractmethod
    def dense(self) -> Tensor:  # (n, k, q)
        """All of it."""

    @abstractmethod
    def energy(self) -> float:
        """The sum of its squares."""

    @abstractmethod
    def of_data(self, places: Tensor) -> Design:
        """The rows of some data."""

    @abstractmethod
    def without(self, columns: int) -> Design:
        """The same kind with so many columns of zeros."""

    @abstractmethod
    def beside(self, further: Design, scale: float) -> Design:
        """With further columns of the same kind, times a number."""

    @abstractmethod
    def outputs(self, weights: Tensor) -> Tensor:  # (q,) -> (n, k)
        """D z."""

    @abstractmethod
    def adjoint(self, outputs: Tensor) -> Tensor:  # (n, k) -> (q,)
        """Dᵀ g."""

    @abstractmethod
    def gram(self, curvature: Tensor) -> Tensor:  # (n, k, k) -> (q, q)
        """Dᵀ W D, of symmetric blocks W."""

    @abstractmethod
    def variances(self, factor: Tensor, free: int) -> tuple[Tensor, Tensor]:  # (q, q) -> (n, k, k) each
        """D (LLᵀ)⁻¹ Dᵀ of each datum, and the same with the first so many columns alone on the right."""


@final
@dataclass(frozen=True, eq=False)
class StoredDesign(Design):
    """Columns in a tensor."""

    columns: Tensor  # (n, k, q)

    @property
    def shape(self) -> tuple[int, int, int]:
        n, k, q = self.columns.shape
        return n, k, q

    def dense(self) -> Tensor:
        return self.columns

    def energy(self) -> float:
        return float(self.columns.square().sum())

    def of_data(self, places: Tensor) -> Design:
        return StoredDesign(self.columns[places])

    def without(self, columns: int) -> Design:
        n, k, _ = self.shape
        return StoredDesign(self.columns.new_zeros(n, k, columns))

    def beside(self, further: Design, scale: float) -> Design:
        return StoredDesign(torch.cat([self.columns, scale * further.dense()], dim=2))

    def outputs(self, weights: Tensor) -> Tensor:
        return self.columns @ weights

    def adjoint(self, outputs: Tensor) -> Tensor:
        return self._flat.mT @ outputs.reshape(-1)

    def gram(self, curvature: Tensor) -> Tensor:
        return self._flat.mT @ (curvature @ self.columns).reshape(self._flat.shape)

    def variances(self, factor: Tensor, free: int) -> tuple[Tensor, Tensor]:
        n, k, q = self.shape
        solved = _solved(factor, self._flat.mT).reshape(q, n, k)
        whole = torch.einsum("qnk,qnl->nkl", solved, solved)
        if free == q:
            return whole, whole
        given = self.columns.clone()
        given[:, :, :free] = 0
        others = _solved(factor, given.reshape(-1, q).mT).reshape(q, n, k)
        return whole, whole - torch.einsum("qnk,qnl->nkl", solved, others)

    @property
    def _flat(self) -> Tensor:  # (n · k, q)
        return self.columns.reshape(-1, self.columns.shape[2])


@final
@dataclass(frozen=True, eq=False)
class PerContrast(Design):
    """x ⊗ I: the k rows of a datum share its features, and each has weights of its own. Nothing is formed.

    Column j · k + a is the weight of feature j in row a. Products take k times fewer operations than those of the same
    columns in a tensor, or k² times.
    """

    features: Tensor  # (n, d)
    rows: int  # k

    @property
    def shape(self) -> tuple[int, int, int]:
        n, d = self.features.shape
        return n, self.rows, d * self.rows

    def dense(self) -> Tensor:
        unit = torch.eye(self.rows, dtype=self.features.dtype)
        return torch.einsum("nj,ab->najb", self.features, unit).flatten(2)

    def energy(self) -> float:
        return self.rows * float(self.features.square().sum())

    def of_data(self, places: Tensor) -> Design:
        return PerContrast(self.features[places], self.rows)

    def without(self, columns: int) -> Design:
        n, k, _ = self.shape
        return StoredDesign(self.features.new_zeros(n, k, columns))

    def beside(self, further: Design, scale: float) -> Design:
        assert isinstance(further, PerContrast)
        return PerContrast(torch.cat([self.features, scale * further.features], dim=1), self.rows)

    def outputs(self, weights: Tensor) -> Tensor:
        return self.features @ weights.reshape(-1, self.rows)

    def adjoint(self, outputs: Tensor) -> Tensor:
        return (self.features.mT @ outputs).reshape(-1)

    def gram(self, curvature: Tensor) -> Tensor:
        d, k = self.features.shape[1], self.rows
        found = self.features.new_empty(d, k, d, k)
        for a in range(k):
            for b in range(a + 1):
                block = self.features.mT @ (curvature[:, a, b, None] * self.features)
                found[:, a, :, b] = block
                found[:, b, :, a] = block
        return found.reshape(d * k, d * k)

    def variances(self, factor: Tensor, free: int) -> tuple[Tensor, Tensor]:
        inverse = _solved(factor, torch.eye(len(factor), dtype=factor.dtype))
        d, k = self.features.shape[1], self.rows
        by_pair = (inverse.mT @ inverse).reshape(d, k, d, k)
        upper = torch.triu_indices(k, k)
        whole = self.features.new_empty(len(self.features), k, k)
        whole[:, upper[0], upper[1]] = whole[:, upper[1], upper[0]] = self._squared(
            by_pair[:, upper[0], :, upper[1]], d
        )
        if free // k == d:
            return whole, whole
        every = by_pair.permute(1, 3, 0, 2).reshape(k * k, d, d)
        return whole, self._squared(every, free // k).reshape(-1, k, k)

    def _squared(self, matrices: Tensor, columns: int) -> Tensor:  # (pairs, d, d) -> (n, pairs)
        """xᵀ M x of every datum, with the first so many columns alone on the right."""
        pairs, d, _ = matrices.shape
        side_by_side = matrices[:, :, :columns].permute(1, 0, 2).reshape(d, -1)
        blocks = self.features.split(max(1, BLOCK // (8 * pairs * d)))
        return torch.cat(
            [
                ((part @ side_by_side).reshape(len(part), pairs, -1) @ part[:, :columns, None])[:, :, 0]
                for part in blocks
            ]
        )


def _solved(factor: Tensor, columns: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(factor, columns, upper=False)


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

    def coordinates(self, weights: Tensor) -> Tensor:  # (weights,) -> (p,)
        """Coordinates of weights."""
        return weights if self.basis is None else self.basis.mT @ weights

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
