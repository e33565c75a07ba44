"""Gaussian posteriors of linearised networks, from a matrix of the weights or one of the rows, whichever is smaller.

Everything is relative to the noise: with rows R of the Jacobian, each times the root of its observation's weight, and
prior variances v in units of the noise variance, the posterior precision is (RᵀR + 1/v) / noise variance. What is
decomposed is I + √v RᵀR √v or, with the same determinant, I + R v Rᵀ; both stay well-conditioned where v is near zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol, final

import numpy as np
import torch
from scipy.linalg.blas import dsymv, dsyrk
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtri
from torch import Tensor

from lapwing.tabular.networks import LayerJacobian, LayerMatrices

BLOCK_ELEMENTS = 2**23  # of dense rows at once
ROWS_PER_WEIGHT = 0.7  # up to here a matrix of the rows is the cheaper one

Variances = tuple[Tensor, ...]  # a layer each: (b, inputs + 1), of all weights that leave an input


class Conditioned(Protocol):
    """The posterior at given prior variances, in units of the noise variance."""

    @property
    def variances(self) -> Variances:
        """Of the prior."""

    def log_determinant(self) -> Tensor:  # (b,)
        """log det (I + R v Rᵀ)."""

    def solve(self, gradient: LayerMatrices) -> LayerMatrices:
        """(RᵀR + 1/v)⁻¹ g."""

    def determined(self) -> Variances:
        """For every column of every layer's matrix, the number of its weights that the data determine."""

    def output_variances(self, jacobian: LayerJacobian) -> Tensor:  # (b, rows)
        """The diagonal of J (RᵀR + 1/v)⁻¹ Jᵀ."""

    def weight_root(self) -> WeightRoot:
        """S with S Sᵀ = (RᵀR + 1/v)⁻¹."""

    def draws(self, weight_normals: Tensor, row_normals: Tensor) -> Tensor:  # (b, p, draws)
        """Draws of N(0, (RᵀR + 1/v)⁻¹) from standard normals, (b, p, draws) and (b, rows, draws)."""

    def __getitem__(self, chosen: Tensor) -> Conditioned:
        """Of some of the networks."""

    @property
    def rows_needed(self) -> int:
        """How many rows of normals `draws` takes."""


class WeightRoot(Protocol):
    """A root S of the covariance of the weights."""

    def after(self, rows: Tensor) -> Tensor:  # (b, n, p)
        """The rows times S."""


@final
@dataclass(frozen=True, eq=False)
class WeightMatrixRoot:
    """As a matrix."""

    root: Tensor  # (b, p, p)

    def after(self, rows: Tensor) -> Tensor:
        return rows @ self.root


@final
@dataclass(frozen=True, eq=False)
class RowRoot:
    """√v (I − U t Uᵀ), with as many columns of U as there are rows of data."""

    std: Tensor  # (b, p), √v
    vectors: Tensor  # (b, p, r), U
    taken: Tensor  # (b, r), t

    def after(self, rows: Tensor) -> Tensor:
        prior = rows * self.std[:, None, :]
        return prior - ((prior @ self.vectors) * self.taken[:, None, :]) @ self.vectors.mT


class DataCurvature(Protocol):
    """What the data say about the weights, before a prior."""

    def __getitem__(self, chosen: Tensor) -> DataCurvature:
        """Of some of the networks."""

    def at(self, variances: Variances) -> Conditioned:
        """With a prior."""

    def solve(self, variances: Variances, gradient: LayerMatrices) -> LayerMatrices:
        """(RᵀR + 1/v)⁻¹ g, for one use of the matrix."""

    def squared_length(self, step: LayerMatrices) -> Tensor:  # (b,)
        """‖R δ‖²."""


def fewer_rows(rows: int, weights: int) -> bool:
    """Whether a matrix of the rows is cheaper than one of the weights."""
    return rows <= ROWS_PER_WEIGHT * weights


@final
@dataclass(frozen=True, eq=False)
class RowCurvature:
    """Of fewer rows than weights."""

    rows: LayerJacobian

    def __getitem__(self, chosen: Tensor) -> RowCurvature:
        return RowCurvature(self.rows.of(chosen))

    def at(self, variances: Variances) -> RowPosterior:
        """One matrix of the rows."""
        kernel = self.rows.kernel(self.rows, variances)
        kernel.diagonal(dim1=1, dim2=2).add_(1)
        return RowPosterior(self.rows, variances, _cholesky(kernel.mT))  # itself, but stored by columns

    def solve(self, variances: Variances, gradient: LayerMatrices) -> LayerMatrices:
        return self.at(variances).solve(gradient)

    def squared_length(self, step: LayerMatrices) -> Tensor:
        return self.rows.times(step).square().sum(1)


@final
@dataclass(frozen=True, eq=False)
class RowPosterior:
    """From L Lᵀ = I + R v Rᵀ."""

    rows: LayerJacobian
    variances: Variances
    root: Tensor  # (b, rows, rows), L

    def log_determinant(self) -> Tensor:
        return _log_determinant(self.root)

    def solve(self, gradient: LayerMatrices) -> LayerMatrices:
        """v g − v Rᵀ (I + R v Rᵀ)⁻¹ R v g."""
        before = self._times_prior(gradient)
        inner = torch.cholesky_solve(self.rows.times(before)[:, :, None], self.root)[:, :, 0]
        return before - self._times_prior(self.rows.transposed(inner))

    def determined(self) -> Variances:
        """The trace of (I + R v Rᵀ)⁻¹ with a column's share of R v Rᵀ."""
        inverse = torch.stack([inverse_of(one) for one in self.root])
        parts = []
        for left, right, variance in zip(self.rows.left, self.rows.right, self.variances, strict=True):
            shared = (left @ left.mT).mul_(inverse)
            parts.append(variance * ((shared @ right) * right).sum(1))
        return tuple(parts)

    def output_variances(self, jacobian: LayerJacobian) -> Tensor:
        shared = torch.linalg.solve_triangular(self.root, self.rows.kernel(jacobian, self.variances), upper=False)
        prior = jacobian.kernel_diagonal(self.variances)
        return (prior - shared.square().sum(1)).clamp_min(0)

    def weight_root(self) -> RowRoot:
        """√v (I − U (1 − (1 + s)^−½) Uᵀ), U the eigenvectors of √v RᵀR √v and s its eigenvalues."""
        values, vectors = torch.linalg.eigh(self.root @ self.root.mT)
        values = (values - 1).clamp_min(torch.finfo(values.dtype).eps * values[:, -1:])
        std = _by_weight(self.variances, self.rows.shapes).sqrt()
        across = (self.rows.dense() * std[:, None, :]).mT @ (vectors / values.sqrt()[:, None, :])
        return RowRoot(std, across, 1 - (1 + values).rsqrt())

    def draws(self, weight_normals: Tensor, row_normals: Tensor) -> Tensor:
        """Draws of the prior, less what the rows, each with a standard normal error, say about them."""
        dense = self.rows.dense()
        variance = _by_weight(self.variances, self.rows.shapes)[:, :, None]
        prior = variance.sqrt() * weight_normals
        pulled = torch.cholesky_solve(dense @ prior + row_normals, self.root)
        return prior - variance * (dense.mT @ pulled)

    def __getitem__(self, chosen: Tensor) -> RowPosterior:
        return RowPosterior(self.rows.of(chosen), tuple(v[chosen] for v in self.variances), self.root[chosen])

    @property
    def rows_needed(self) -> int:
        return self.rows.rows

    def _times_prior(self, layers: LayerMatrices) -> LayerMatrices:
        return LayerMatrices(tuple(part * v[:, None, :] for part, v in zip(layers.of, self.variances, strict=True)))


@final
@dataclass(frozen=True, eq=False)
class WeightCurvature:
    """Of fewer weights than rows."""

    gram: Tensor  # (b, p, p), RᵀR; only its lower triangle is right
    shapes: tuple[tuple[int, int], ...]  # of the layers' matrices

    @staticmethod
    def of(rows: LayerJacobian) -> WeightCurvature:
        """Of rows that are all at hand."""
        total = GramSum(len(rows.left[0]), rows.shapes, Workspace())
        total.add(rows)
        return total.curvature()

    def __getitem__(self, chosen: Tensor) -> WeightCurvature:
        return WeightCurvature(self.gram.mT[chosen].mT, self.shapes)

    def at(self, variances: Variances) -> WeightMatrixPosterior:
        """One matrix of the weights."""
        spread = _by_weight(variances, self.shapes).sqrt()
        whitened = (self.gram * spread[:, :, None]).mul_(spread[:, None, :])
        whitened.diagonal(dim1=1, dim2=2).add_(1)
        return WeightMatrixPosterior(variances, self.shapes, _cholesky(whitened))

    def solve(self, variances: Variances, gradient: LayerMatrices) -> LayerMatrices:
        """As a `WeightMatrixPosterior` would, network by network in the same memory, which the cache then holds."""
        spread = _by_weight(variances, self.shapes).sqrt()
        solutions = spread * gradient.flat()
        whitened = self.gram.new_empty(self.gram.shape[1:]).mT  # by columns, as LAPACK
        for one, std, solution in zip(self.gram, spread, solutions, strict=True):
            torch.mul(one, std[:, None], out=whitened).mul_(std)
            whitened.diagonal().add_(1)
            _factorise(whitened, clean=0)
            dpotrs(whitened.numpy(), solution.numpy(), lower=1, overwrite_b=1)
        return gradient.like(spread * solutions)

    def squared_length(self, step: LayerMatrices) -> Tensor:
        flat = step.flat()
        products = [dsymv(1.0, one.numpy(), x.numpy(), lower=1) for one, x in zip(self.gram, flat, strict=True)]
        return (flat * torch.from_numpy(np.stack(products))).sum(1)


@final
class Workspace:
    """Memory for matrices that is used again: the system has to clear what is fresh, which costs as much as the work.

    What was taken is overwritten when the same name is taken again.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Numbers of any value, (*shape)."""
        size = prod(shape)
        if name not in self._parts or len(self._parts[name]) < size:
            self._parts[name] = torch.empty(size, dtype=torch.float64)
        return self._parts[name][:size].view(shape)


@final
class GramSum:
    """RᵀR of the rows of several blocks, in memory that is lent."""

    def __init__(self, networks: int, shapes: tuple[tuple[int, int], ...], memory: Workspace) -> None:
        self._shapes = shapes
        self._memory = memory
        self._weights = sum(high * wide for high, wide in shapes)
        self._total = memory.take("gram", networks, self._weights, self._weights).mT  # by columns, as BLAS
        self._total.zero_()

    def add(self, rows: LayerJacobian) -> None:
        """Network by network in the same memory, by BLAS's symmetric product with half the work of a general one."""
        block = self._memory.take("rows", rows.rows, self._weights)
        for member, total in enumerate(self._total):
            rows.write_dense(member, block)
            dsyrk(1.0, block.mT.numpy(), beta=1.0, c=total.numpy(), lower=1, overwrite_c=1)

    def curvature(self) -> WeightCurvature:
        """Until the memory is taken again."""
        return WeightCurvature(self._total, self._shapes)


@final
@dataclass(frozen=True, eq=False)
class WeightMatrixPosterior:
    """From L Lᵀ = I + √v RᵀR √v."""

    variances: Variances
    shapes: tuple[tuple[int, int], ...]
    root: Tensor  # (b, p, p), L

    def log_determinant(self) -> Tensor:
        return _log_determinant(self.root)

    def solve(self, gradient: LayerMatrices) -> LayerMatrices:
        """√v (L Lᵀ)⁻¹ √v g."""
        spread = self._prior_std()
        inner = torch.cholesky_solve((spread * gradient.flat())[:, :, None], self.root)[:, :, 0]
        return gradient.like(spread * inner)

    def determined(self) -> Variances:
        """1 − diag (L Lᵀ)⁻¹, summed over each column."""
        known = 1 - torch.stack([_inverse_diagonal(one) for one in self.root])
        parts = known.split([high * wide for high, wide in self.shapes], dim=1)
        return tuple(part.reshape(-1, *shape).sum(1) for part, shape in zip(parts, self.shapes, strict=True))

    def output_variances(self, jacobian: LayerJacobian) -> Tensor:
        b, p = self.root.shape[:2]
        size = max(1, BLOCK_ELEMENTS // (b * p))
        spread = self._prior_std()
        blocks = []
        for start in range(0, jacobian.rows, size):
            rows = jacobian[start : start + size].dense() * spread[:, None, :]
            blocks.append(torch.linalg.solve_triangular(self.root, rows.mT, upper=False).square().sum(1))
        return torch.cat(blocks, dim=1)

    def weight_root(self) -> WeightMatrixRoot:
        """√v L⁻ᵀ."""
        unit = torch.eye(self.root.shape[1], dtype=self.root.dtype).expand_as(self.root)
        return WeightMatrixRoot(self.draws(unit, unit))

    def draws(self, weight_normals: Tensor, row_normals: Tensor) -> Tensor:
        """√v L⁻ᵀ z."""
        del row_normals
        inner = torch.linalg.solve_triangular(self.root.mT, weight_normals, upper=True)
        return self._prior_std()[:, :, None] * inner

    def __getitem__(self, chosen: Tensor) -> WeightMatrixPosterior:
        return WeightMatrixPosterior(tuple(v[chosen] for v in self.variances), self.shapes, self.root[chosen])

    @property
    def rows_needed(self) -> int:
        return 0

    def _prior_std(self) -> Tensor:
        return _by_weight(self.variances, self.shapes).sqrt()


def _by_weight(variances: Variances, shapes: tuple[tuple[int, int], ...]) -> Tensor:  # (b, p)
    """The prior variance of every weight."""
    parts = [v[:, None, :].expand(-1, *shape).flatten(1) for v, shape in zip(variances, shapes, strict=True)]
    return torch.cat(parts, dim=1)


def _cholesky(matrix: Tensor) -> Tensor:  # (b, k, k)
    """L of L Lᵀ, of whose upper triangle nothing is read; in its place where the matrix is stored by columns.

    LAPACK of scipy takes less time here than torch's.
    """
    roots = matrix if matrix.mT.is_contiguous() else matrix.mT.contiguous().mT
    for root in roots:
        _factorise(root, clean=1)
    return roots


def _factorise(matrix: Tensor, clean: int) -> None:  # (k, k), by columns
    """L in the place of the lower triangle; `clean` writes zeros above it."""
    _, failed = dpotrf(matrix.numpy(), lower=1, clean=clean, overwrite_a=1)
    if failed:
        raise FloatingPointError(f"the leading minor of order {failed} is not positive definite")


def inverse_of(root: Tensor) -> Tensor:  # (k, k)
    """(L Lᵀ)⁻¹."""
    inverse, _ = dpotri(root.numpy(), lower=1)
    lower = torch.from_numpy(inverse).tril()
    return lower + lower.tril(-1).mT


def product(left: Tensor, right: Tensor) -> Tensor:  # of (k, l) and (l, m)
    """By numpy's BLAS, which takes half the time of torch's on processors that are not Intel's."""
    return torch.from_numpy(left.numpy() @ right.numpy())


def _inverse_diagonal(root: Tensor) -> Tensor:  # (k,)
    """Of (L Lᵀ)⁻¹: sums over the columns of L⁻¹."""
    inverse, _ = dtrtri(root.numpy(), lower=1)
    return torch.from_numpy(inverse).square().sum(0)


def _log_determinant(root: Tensor) -> Tensor:
    return 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
