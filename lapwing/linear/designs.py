"""The design of a logistic regression: features with a column of ones, shared by its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators import LinearOperator


@final
@dataclass(frozen=True, eq=False)
class WithConstant(LinearOperator):
    """Features and after them a column of ones."""

    inner: LinearOperator  # (n, d)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inner.shape[0], self.inner.shape[1] + 1)

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(x[:-1]) + x[-1]

    def rmatmat(self, y: Tensor) -> Tensor:
        return torch.cat([self.inner.rmatmat(y), y.sum(0, keepdim=True)])

    def rows(self, start: int, stop: int) -> Tensor:
        inner = self.inner.rows(start, stop)
        return torch.cat([inner, torch.ones_like(inner[:, :1])], dim=1)

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return self.inner.row_squares() + 1
        return self.inner.row_squares(weights[:-1]) + weights[-1]

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        total = self.like.new_tensor([self.shape[0]]) if weights is None else weights.sum().reshape(1).to(self.like)
        return torch.cat([self.inner.column_squares(weights), total])
