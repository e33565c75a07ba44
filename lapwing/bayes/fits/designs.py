"""Columns of whitened weights, datum by datum: what the few outputs of each datum take of every weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

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
        inverse = _solved(factor, torch.eye(len(factor), dtype=factor.dtype)).mT  # L⁻ᵀ
        d, k = self.features.shape[1], self.rows
        parts = [self._of(part, inverse.reshape(d, -1), free // k) for part in self._blocks(len(factor))]
        whole, shared = zip(*parts, strict=True)
        return torch.cat(whole), torch.cat(shared)

    def _blocks(self, width: int) -> tuple[Tensor, ...]:
        return self.features.split(max(1, BLOCK // (self.rows * width)))

    def _of(self, features: Tensor, inverse: Tensor, free: int) -> tuple[Tensor, Tensor]:
        solved = (features @ inverse).reshape(len(features), self.rows, -1)
        whole = solved @ solved.mT
        if free == features.shape[1]:
            return whole, whole
        others = (features[:, free:] @ inverse[free:]).reshape(len(features), self.rows, -1)
        return whole, whole - solved @ others.mT


def _solved(factor: Tensor, columns: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(factor, columns, upper=False)
