"""Operators whose numbers are in memory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lapwing.linalg.operators.interface import Blockwise, Costs, LinearOperator, OnRows

STORED = Costs(squares_are_cheap=True)


@final
@dataclass(frozen=True, eq=False)
class Dense(LinearOperator):
    """A matrix that is stored."""

    matrix: Tensor  # (n, d)

    costs = STORED

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return self.matrix

    def matmat(self, x: Tensor) -> Tensor:
        return self.matrix @ x

    def rmatmat(self, y: Tensor) -> Tensor:
        return (y.mT @ self.matrix).mT  # ten times faster than matrix.T @ y for tall matrices and few columns

    def rows(self, start: int, stop: int) -> Tensor:
        return self.matrix[start:stop]

    def columns(self, start: int, stop: int) -> Tensor:
        return self.matrix[:, start:stop]

    def dense(self) -> Tensor:
        return self.matrix


@final
@dataclass(frozen=True, eq=False)
class Sparse(LinearOperator):
    """A compressed sparse row matrix of SciPy; products share its memory and never densify it."""

    matrix: scipy.sparse.csr_array  # (n, d)

    costs = STORED

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return torch.empty(0, dtype=torch.from_numpy(self.matrix.data[:0]).dtype)

    def matmat(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix @ np.ascontiguousarray(x.detach().numpy()))

    def rmatmat(self, y: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix.T @ np.ascontiguousarray(y.detach().numpy()))

    def rows(self, start: int, stop: int) -> Tensor:
        return torch.from_numpy(self.matrix[start:stop].toarray())

    def columns(self, start: int, stop: int) -> Tensor:
        return torch.from_numpy(self.matrix[:, start:stop].toarray())

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        squares = self.matrix.multiply(self.matrix)
        ones = np.ones(self.shape[1]) if weights is None else weights.numpy()
        return torch.from_numpy(squares @ ones).to(self.like)

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        squares = self.matrix.multiply(self.matrix)
        ones = np.ones(self.shape[0]) if weights is None else weights.numpy()
        return torch.from_numpy(squares.T @ ones).to(self.like)


@final
@dataclass(frozen=True, eq=False)
class Diagonal(OnRows):
    """A diagonal matrix."""

    diagonal: Tensor  # (n,)

    costs = STORED

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.diagonal), len(self.diagonal))

    @property
    def like(self) -> Tensor:
        return self.diagonal

    @property
    def T(self) -> LinearOperator:
        return self

    def on_rows(self, start: int, stop: int) -> LinearOperator:
        return Diagonal(self.diagonal[start:stop])

    def matmat(self, x: Tensor) -> Tensor:
        return self.diagonal[:, None] * x

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.diagonal[:, None] * y

    def rows_times(self, right: LinearOperator, start: int, stop: int) -> Tensor:
        return self.diagonal[start:stop, None] * right.rows(start, stop)


@final
@dataclass(frozen=True, eq=False)
class LowRank(LinearOperator):
    """The outer product left · rightᵀ."""

    left: Tensor  # (n, rank)
    right: Tensor  # (d, rank)

    costs = STORED

    @property
    def shape(self) -> tuple[int, int]:
        return (self.left.shape[0], self.right.shape[0])

    @property
    def like(self) -> Tensor:
        return self.left

    def matmat(self, x: Tensor) -> Tensor:
        return self.left @ (x.mT @ self.right).mT

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.right @ (y.mT @ self.left).mT

    def rows(self, start: int, stop: int) -> Tensor:
        return self.left[start:stop] @ self.right.mT


@final
@dataclass(frozen=True, eq=False)
class BlockDiagonal(Blockwise):
    """Blocks of one shape along the diagonal."""

    blocks: Tensor  # (count, height, width)

    costs = STORED

    @property
    def shape(self) -> tuple[int, int]:
        count, height, width = self.blocks.shape
        return (count * height, count * width)

    @property
    def like(self) -> Tensor:
        return self.blocks

    def matmat(self, x: Tensor) -> Tensor:
        return _blockwise(self.blocks, x)

    def rmatmat(self, y: Tensor) -> Tensor:
        return _blockwise(self.blocks.mT, y)

    def rows_times(self, right: LinearOperator, start: int, stop: int) -> Tensor:
        height, width = self.blocks.shape[1:]
        first, last = start // height, -(-stop // height)
        block = _blockwise(self.blocks[first:last], right.rows(first * width, last * width))
        return block[start - first * height : stop - first * height]


def as_operator(matrix: Any) -> LinearOperator:
    """The operator of a NumPy array, a SciPy sparse matrix, a torch tensor (dense or sparse) or an operator.

    Integers and booleans become float64; half precision is refused.

    >>> as_operator(np.eye(3)[:2]).shape
    (2, 3)
    """
    if isinstance(matrix, LinearOperator):
        return matrix
    if scipy.sparse.issparse(matrix):
        return Sparse(scipy.sparse.csr_array(matrix).astype(_numpy_dtype(matrix.dtype), copy=False))
    if isinstance(matrix, Tensor) and matrix.layout != torch.strided:
        entries = matrix.detach().cpu().to_sparse_coo().coalesce()
        parts = (entries.values().numpy(), tuple(entries.indices().numpy()))
        return as_operator(scipy.sparse.coo_array(parts, shape=tuple(entries.shape)))
    tensor = as_tensor(matrix)
    if tensor.ndim != 2:
        raise ValueError(
            f"expected a matrix with one row per observation, got an array of shape {tuple(tensor.shape)}: "
            "use reshape(-1, 1) for one feature, reshape(1, -1) for one observation"
        )
    return Dense(tensor)


def as_tensor(array: Any) -> Tensor:
    """A floating-point tensor that shares memory with the array where it can."""
    if isinstance(array, Tensor):
        tensor = array.detach()
    else:
        array = np.asarray(array)
        if array.dtype.kind not in "fiub":
            raise ValueError(
                f"expected numbers, got an array of dtype {array.dtype}: encode text, dates and missing values first"
            )
        array = array.astype(_numpy_dtype(array.dtype), copy=False)
        tensor = _shared(np.ascontiguousarray(array) if any(step < 0 for step in array.strides) else array)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"{tensor.dtype} is too coarse for posterior inference: convert to float32 or float64 first")
    return tensor if tensor.is_floating_point() else tensor.double()


def _blockwise(blocks: Tensor, x: Tensor) -> Tensor:
    count, height, width = blocks.shape
    return (blocks @ x.reshape(count, width, -1)).reshape(count * height, -1)


def _shared(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():  # a read-only array is fine: nothing here writes to it
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _numpy_dtype(dtype: Any) -> Any:
    return dtype if dtype in (np.float32, np.float64, np.float16) else np.float64
