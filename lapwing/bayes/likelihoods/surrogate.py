"""The Gaussian linear model that has the curvature of another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators import LinearOperator, OnRows


@final
@dataclass(frozen=True, eq=False)
class GaussianSurrogate:
    """A linear model at unit noise whose curvature is that of a likelihood at some outputs: rows SᵀΦ, S Sᵀ = B."""

    features: LinearOperator  # SᵀΦ: (rows, d), sample weights included
    targets: Tensor  # (rows,), Sᵀy under Gaussian noise, else zero
    noise_of: Tensor  # (rows,), the noise group of each row
    counts: Tensor  # (noise groups,), observations, weights included; 0 where the fit is a log probability
    log_weight: float  # ½ Σ log of the precisions given per row; 0 where none are

    @staticmethod
    def without_targets(features: LinearOperator) -> GaussianSurrogate:
        """A curvature alone, whose mean is found elsewhere."""
        rows = features.shape[0]
        zeros, group = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.long)
        return GaussianSurrogate(features, zeros, group, torch.zeros(1, dtype=torch.float64), 0.0)


@final
@dataclass(frozen=True, eq=False)
class PerDatum(OnRows):
    """A block for every datum, given by what it does to columns at the outputs: a Hessian, or a root of one."""

    outputs: Tensor  # (n,) or (n, c)
    weights: Tensor  # (n,)
    targets: Tensor  # (n, ...)
    forward: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.outputs.numel(), self.outputs.numel())

    @property
    def like(self) -> Tensor:
        return self.outputs

    def matmat(self, x: Tensor) -> Tensor:
        return self._applied(self.forward, x, 0, len(self.outputs))

    def rmatmat(self, y: Tensor) -> Tensor:
        return self._applied(self.backward, y, 0, len(self.outputs))

    def on_rows(self, start: int, stop: int) -> LinearOperator:
        width = self.outputs[:1].numel()
        data = slice(start // width, stop // width)  # blocks of rows hold whole data
        return PerDatum(self.outputs[data], self.weights[data], self.targets[data], self.forward, self.backward)

    def rows_times(self, right: LinearOperator, start: int, stop: int) -> Tensor:
        width = self.outputs[:1].numel()
        first, last = start // width, -(-stop // width)
        block = self._applied(self.forward, right.rows(first * width, last * width), first, last)
        return block[start - first * width : stop - first * width]

    def _applied(self, action: Callable[..., Tensor], x: Tensor, first: int, last: int) -> Tensor:
        outputs = self.outputs[first:last]
        columns = x.reshape(*outputs.shape, -1)
        return action(outputs, columns, self.weights[first:last], self.targets[first:last]).reshape(x.shape)
