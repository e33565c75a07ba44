"""Gradients of single data, in the form that costs least: their squares are summed without a row per datum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """One position per datum: the gradient is left rightᵀ, and so are its powers."""

    left: Tensor  # (groups, data, o)
    right: Tensor  # (groups, data, i)

    def sums(self, power: int) -> Tensor:  # (groups, o, i)
        """Powers of the gradients' entries, summed over data."""
        return self.left.pow(power).mT @ self.right.pow(power)

    def against(self, weights: Tensor) -> Tensor:  # (groups, o, i) -> (data,)
        """Squares of the gradients' entries, summed with weights for each datum."""
        return ((self.left.square() @ weights.to(self.left)) * self.right.square()).sum((0, 2))

    def total(self) -> Tensor:  # (groups, o, i)
        """The gradients summed over data."""
        return self.left.mT @ self.right


@final
@dataclass(frozen=True, eq=False)
class Full:
    """A matrix per datum, for weights used at several positions."""

    values: Tensor  # (groups, data, o, i)

    def sums(self, power: int) -> Tensor:  # (groups, o, i)
        """Powers of the gradients' entries, summed over data."""
        return self.values.pow(power).sum(1)

    def against(self, weights: Tensor) -> Tensor:  # (groups, o, i) -> (data,)
        """Squares of the gradients' entries, summed with weights for each datum."""
        return self.values.square().transpose(0, 1).flatten(1) @ weights.to(self.values).flatten()

    def total(self) -> Tensor:  # (groups, o, i)
        """The gradients summed over data."""
        return self.values.sum(1)


@final
@dataclass(frozen=True, eq=False)
class ColumnGradients:
    """A few columns of a wide matrix per datum, as an embedding has: one for every entry of it that a datum uses."""

    values: Tensor  # (m, o)
    datum: Tensor  # (m,)
    column: Tensor  # (m,)
    data: int
    columns: int

    def sums(self, power: int) -> Tensor:  # (1, o, i)
        """Powers of the gradients' entries, summed over data."""
        total = self.values.new_zeros(self.columns, self.values.shape[1])
        return total.index_add(0, self.column, self.values.pow(power)).mT[None]

    def against(self, weights: Tensor) -> Tensor:  # (1, o, i) -> (data,)
        """Squares of the gradients' entries, summed with weights for each datum."""
        terms = (self.values.square() * weights[0].to(self.values).mT[self.column]).sum(1)
        return terms.new_zeros(self.data).index_add(0, self.datum, terms)

    def total(self) -> Tensor:  # (1, o, i)
        """The gradients summed over data."""
        return self.sums(1)


Gradients = Outer | Full | ColumnGradients


def columns(left: Tensor, entries: Tensor, total: int) -> ColumnGradients:  # (data, positions, o), (data, positions)
    """Σ_t left_t e_tᵀ of every datum, e_t the unit vector of the entry used at position t."""
    data, positions = entries.shape
    place = torch.arange(data, device=entries.device)[:, None] * total + entries
    used, owner = place.reshape(-1).unique(return_inverse=True)
    values = left.new_zeros(len(used), left.shape[-1]).index_add(0, owner, left.reshape(data * positions, -1))
    return ColumnGradients(values, used // total, used % total, data, total)
