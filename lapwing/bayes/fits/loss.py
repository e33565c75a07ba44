"""The true loss of a linear model whose likelihood is not Gaussian, with its derivatives.

Weights are whitened throughout: features carry the prior's standard deviations, so the prior is standard normal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood, PerDatum
from lapwing.linalg.operators import Diagonal, LinearOperator, gram, row_blocks

BLOCK = 2**24  # numbers that are held at once


@final
@dataclass(frozen=True, eq=False)
class PerOutput(LinearOperator):
    """X ⊗ I: features shared by c outputs, each with weights of its own.

    Row i·c + a is output a of datum i, column j·c + a the weight of feature j in output a, unless columns have another
    order. Nothing is formed.
    """

    inner: LinearOperator  # (n, q)
    outputs: int
    order: Tensor | None = None  # (q · c,), the column of weight j·c + a, where columns have another order

    @property
    def shape(self) -> tuple[int, int]:
        n, q = self.inner.shape
        return (n * self.outputs, q * self.outputs)

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def by_feature(self, weights: Tensor) -> Tensor:  # (q · c, ...)
        """Weights in the order of the features: those of one feature in all outputs stand together."""
        return weights if self.order is None else weights[self.order]

    def by_column(self, weights: Tensor) -> Tensor:  # (q · c, ...)
        """Back in the order of the columns."""
        return weights if self.order is None else weights[self.order.argsort()]

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(self.by_feature(x).reshape(self.inner.shape[1], -1)).reshape(-1, x.shape[1])

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.by_column(self.inner.rmatmat(y.reshape(self.inner.shape[0], -1)).reshape(-1, y.shape[1]))

    def rows(self, start: int, stop: int) -> Tensor:
        first, last = start // self.outputs, -(-stop // self.outputs)
        inner = self.inner.rows(first, last)
        block = torch.kron(inner, torch.eye(self.outputs, dtype=inner.dtype, device=inner.device))
        return self.by_column(block[start - first * self.outputs : stop - first * self.outputs].mT).mT

    def covariances(self, weights: Tensor) -> Tensor:  # (q · c, q · c) -> (n, c, c)
        """Φ S Φᵀ of each datum, S a covariance of the weights: c times fewer operations than by its rows."""
        c, q = self.outputs, self.inner.shape[1]
        pairs = self.by_feature(self.by_feature(weights).mT).reshape(q, -1)
        parts = []
        for x in row_blocks(self.inner, BLOCK // (c * c)):
            x = x.to(weights)
            parts.append(torch.einsum("nalb,nl->nab", (x @ pairs).reshape(-1, c, q, c), x))
        return torch.cat(parts)

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        return self._squares(self.inner.row_squares, None if weights is None else self.by_feature(weights))

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        return self.by_column(self._squares(self.inner.column_squares, weights))

    def _squares(self, of_inner: Callable[[Tensor | None], Tensor], weights: Tensor | None) -> Tensor:
        if weights is None:
            return of_inner(None).repeat_interleave(self.outputs)
        return torch.stack([of_inner(part) for part in weights.reshape(-1, self.outputs).mT], dim=1).reshape(-1)


def stored_numbers(features: LinearOperator) -> int:
    """How many numbers a matrix of the features takes, where those that outputs share are kept once."""
    rows, d = features.inner.shape if isinstance(features, PerOutput) else features.shape
    return rows * d


@final
@dataclass(frozen=True, eq=False)
class Loss:
    """−log p(y | Φz + offset) + ½‖z‖² over whitened weights z: by the prior it has a minimum on any data.

    It is convex where the likelihood's curvature is its Hessian. Where that is the Fisher information, steps by it
    still lead downhill, and end at a minimum near the start.
    """

    features: LinearOperator  # Φ: (n · c, p), float64, the prior's standard deviations in its columns
    likelihood: Likelihood
    targets: Tensor  # (n, ...)
    weights: Tensor  # (n,)
    offset: Tensor | None = None  # (n · c,)

    def outputs(self, z: Tensor) -> Tensor:
        """Φz + offset as the likelihood takes it."""
        product = self.features @ z
        return self.likelihood.reshape_outputs(product if self.offset is None else product + self.offset, self.targets)

    def change(self, direction: Tensor) -> Tensor:
        """How the outputs change along a direction."""
        return self.likelihood.reshape_outputs(self.features @ direction, self.targets)

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

    def _data_hessian(self, outputs: Tensor) -> Tensor:  # (p, p)
        """ΦᵀBΦ, by pairs of outputs where these share their features and the likelihood knows how."""
        features = self.features
        if isinstance(features, PerOutput):
            shared = self.likelihood.shared_hessian(features.inner, outputs, self.weights)
            if shared is not None:
                return features.by_column(features.by_column(shared).mT)
        return gram(self.root(outputs))

    def factor(self, outputs: Tensor) -> Tensor:  # (p, p)
        """The Cholesky factor of the Hessian; a FloatingPointError where round-off has made it indefinite."""
        matrix = self._data_hessian(outputs)
        matrix.diagonal().add_(1)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            raise FloatingPointError(
                f"the Hessian of {len(matrix):,} directions is numerically singular at this prior precision: some "
                "features depend on each other. Pass a fixed prior, e.g. prior=lw.GPrior(1.0), or a larger precision"
            )
        return factor
