"""The true loss of a linear model whose likelihood is not Gaussian, with its derivatives.

Weights are whitened throughout: features carry the prior's standard deviations, so the prior is standard normal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Categorical, Curved
from lapwing.linalg.operators import BLOCK_ELEMENTS, Diagonal, LinearOperator, gram, row_blocks


@final
@dataclass(frozen=True, eq=False)
class PerOutput(LinearOperator):
    """X ⊗ I: features shared by c outputs, each with weights of its own.

    Row i·c + a is output a of datum i, column j·c + a the weight of feature j in output a. Nothing is formed.
    """

    inner: LinearOperator  # (n, q)
    outputs: int

    @property
    def shape(self) -> tuple[int, int]:
        n, q = self.inner.shape
        return (n * self.outputs, q * self.outputs)

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(x.reshape(self.inner.shape[1], -1)).reshape(-1, x.shape[1])

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.inner.rmatmat(y.reshape(self.inner.shape[0], -1)).reshape(-1, y.shape[1])

    def rows(self, start: int, stop: int) -> Tensor:
        first, last = start // self.outputs, -(-stop // self.outputs)
        inner = self.inner.rows(first, last)
        block = torch.kron(inner, torch.eye(self.outputs, dtype=inner.dtype, device=inner.device))
        return block[start - first * self.outputs : stop - first * self.outputs]

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        return self._squares(self.inner.row_squares, weights)

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        return self._squares(self.inner.column_squares, weights)

    def _squares(self, of_inner: Callable[[Tensor | None], Tensor], weights: Tensor | None) -> Tensor:
        if weights is None:
            return of_inner(None).repeat_interleave(self.outputs)
        return torch.stack([of_inner(part) for part in weights.reshape(-1, self.outputs).mT], dim=1).reshape(-1)


@final
@dataclass(frozen=True, eq=False)
class PerDatum(LinearOperator):
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

    def on_rows(self, start: int, stop: int) -> LinearOperator | None:
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


@final
@dataclass(frozen=True, eq=False)
class Loss:
    """−log p(y | Φz + offset) + ½‖z‖² over whitened weights z: by the prior it has a minimum on any data.

    It is convex where the likelihood's curvature is its Hessian. Where that is the Fisher information, steps by it
    still lead downhill, and end at a minimum near the start.
    """

    features: LinearOperator  # Φ: (n · c, p), float64, the prior's standard deviations in its columns
    likelihood: Curved
    targets: Tensor  # (n, ...)
    weights: Tensor  # (n,)
    offset: Tensor | None = None  # (n · c,)

    def outputs(self, z: Tensor) -> Tensor:
        """Φz + offset as the likelihood takes it."""
        product = self.features @ z
        return self.likelihood.shaped(product if self.offset is None else product + self.offset, self.targets)

    def change(self, direction: Tensor) -> Tensor:
        """How the outputs change along a direction."""
        return self.likelihood.shaped(self.features @ direction, self.targets)

    def log_prob(self, outputs: Tensor) -> float:
        """log p(y | outputs), summed over the data."""
        return float(self.likelihood.log_prob(outputs, self.targets, self.weights))

    def gradient(self, z: Tensor, outputs: Tensor) -> Tensor:  # (p,)
        """The gradient in z."""
        return z - self.features.T @ self.likelihood.gradient(outputs, self.targets, self.weights).reshape(-1)

    def root(self, outputs: Tensor) -> LinearOperator:  # (n · c, p)
        """G = SᵀΦ: the Hessian of the loss is I + GᵀG."""
        of = self.likelihood
        return PerDatum(outputs, self.weights, self.targets, of.hessian_root_adjoint, of.hessian_root) @ self.features

    def hessian(self, outputs: Tensor) -> LinearOperator:  # (p, p)
        """I + ΦᵀBΦ, known by its products."""
        identity = Diagonal(torch.ones(self.features.shape[1], dtype=torch.float64))
        return identity + self.features.T @ (self.curvature(outputs) @ self.features)

    def curvature(self, outputs: Tensor) -> LinearOperator:  # (n · c, n · c)
        """B, the Hessian of the loss in the outputs."""
        product = self.likelihood.hessian_product
        return PerDatum(outputs, self.weights, self.targets, product, product)

    def diagonal(self, outputs: Tensor) -> Tensor:  # (p,)
        """The diagonal of the Hessian, but for what outputs that share a weight have in common."""
        diagonal = self.likelihood.hessian_diagonal(outputs, self.weights, self.targets)
        return 1 + self.features.column_squares(diagonal.reshape(-1))

    def factor(self, outputs: Tensor) -> Tensor:  # (p, p)
        """The Cholesky factor of the Hessian; a FloatingPointError where round-off has made it indefinite."""
        if isinstance(self.features, PerOutput) and isinstance(self.likelihood, Categorical):
            matrix = _softmax_hessian(self.features.inner, outputs.softmax(1), self.weights)
        else:
            matrix = gram(self.root(outputs))
        matrix.diagonal().add_(1)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            raise FloatingPointError(
                f"round-off has made the posterior precision of {len(matrix):,} weights indefinite: the prior is too "
                "wide for features that depend on each other; use a larger prior precision, leave some of them out, or "
                "tune it on held-out data with validation="
            )
        return factor


def _softmax_hessian(inner: LinearOperator, probabilities: Tensor, weights: Tensor) -> Tensor:  # (q · c, q · c)
    """Σ w (diag(π) − π πᵀ) ⊗ x xᵀ, by pairs of classes: c times fewer operations than by its root.

    1 − π is summed from the other classes, so that confident data lose no digits.
    """
    q, c = inner.shape[1], probabilities.shape[1]
    others = probabilities @ (1 - torch.eye(c, dtype=torch.float64))
    total, start = torch.zeros(c, q, c, q, dtype=torch.float64), 0
    for rows in row_blocks(inner, BLOCK_ELEMENTS // c):
        part, x = slice(start, start := start + len(rows)), rows.double()
        p, w = probabilities[part], weights[part, None]
        scaled = ((w.sqrt() * p)[:, :, None] * x[:, None, :]).reshape(len(x), c * q)
        own = w * p * others[part]
        for k in range(c):
            total[k, :, k] += x.mT @ (own[:, k, None] * x)
            after = scaled[:, : (k + 1) * q][:, -q:].mT @ scaled[:, (k + 1) * q :]
            total[k, :, k + 1 :] -= after.reshape(q, c - k - 1, q)
    for k in range(c):
        total[k + 1 :, :, k] = total[k, :, k + 1 :].permute(1, 2, 0)
    return total.permute(1, 0, 3, 2).reshape(q * c, q * c)
