"""Linear operators: matrices known by their products with blocks of columns."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import numpy as np
import scipy.sparse
import torch
from torch import Generator, Tensor

BLOCK_ELEMENTS = 2**22  # a block of rows worked on at once holds about 32 MB of float64


class LinearOperator(ABC):
    """A matrix of shape (n, d) given by two products; everything else follows from them.

    A new structure is a final frozen dataclass with `shape`, `like`, `matmat` and `rmatmat`. `rows` may be
    overridden where a block of rows is cheaper than products with unit columns.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the products."""

    @abstractmethod
    def matmat(self, x: Tensor) -> Tensor:  # (d, k) -> (n, k)
        """The product A x with a block of columns."""

    @abstractmethod
    def rmatmat(self, y: Tensor) -> Tensor:  # (n, k) -> (d, k)
        """The product Aᵀ y with a block of columns."""

    def rows(self, start: int, stop: int) -> Tensor:  # (stop - start, d)
        """A block of rows as a dense tensor."""
        return self.rmatmat(unit_columns(self.shape[0], start, stop, self.like)).mT

    def columns(self, start: int, stop: int) -> Tensor:  # (n, stop - start)
        """A block of columns as a dense tensor."""
        return self.matmat(unit_columns(self.shape[1], start, stop, self.like))

    def rows_times(self, right: LinearOperator, start: int, stop: int) -> Tensor:
        """A block of rows of the product with another operator; cheaper where this one is diagonal."""
        return right.rmatmat(self.rows(start, stop).mT).mT

    def row_squares(self, weights: Tensor | None = None) -> Tensor:  # (n,)
        """The squared norm of every row, Σ_j w_j a_ij²."""
        blocks = (rows.square() for rows in row_blocks(self))
        return torch.cat([block.sum(1) if weights is None else block @ weights.to(block) for block in blocks])

    def column_squares(self, weights: Tensor | None = None) -> Tensor:  # (d,)
        """The squared norm of every column, Σ_i w_i a_ij²."""
        total, start = torch.zeros(self.shape[1]).to(self.like), 0
        for rows in row_blocks(self):
            part = 1 if weights is None else weights[start : start + len(rows), None].to(rows)
            total, start = total + (part * rows.square()).sum(0), start + len(rows)
        return total

    def dense(self) -> Tensor:
        """The matrix itself: for small operators and for tests."""
        return torch.cat(list(row_blocks(self)))

    @property
    def T(self) -> LinearOperator:
        """The transpose, whose products are the same two in the other order."""
        return Transpose(self)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, LinearOperator):
            return Product(self, other)
        if not isinstance(other, Tensor):
            return NotImplemented
        if other.ndim not in (1, 2) or other.shape[0] != self.shape[1]:
            raise ValueError(
                f"cannot multiply {type(self).__name__} of shape {self.shape} "
                f"with a tensor of shape {tuple(other.shape)}"
            )
        return self.matmat(other) if other.ndim == 2 else self.matmat(other[:, None])[:, 0]

    def __add__(self, other: LinearOperator) -> LinearOperator:
        return Sum((self, other))

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        return Sum((self, -other))

    def __mul__(self, factor: float) -> LinearOperator:
        return Scaled(self, float(factor))

    __rmul__ = __mul__

    def __neg__(self) -> LinearOperator:
        return Scaled(self, -1.0)


@final
@dataclass(frozen=True, eq=False)
class Dense(LinearOperator):
    """A matrix that is stored."""

    matrix: Tensor  # (n, d)

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
class Diagonal(LinearOperator):
    """A diagonal matrix."""

    diagonal: Tensor  # (n,)

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.diagonal), len(self.diagonal))

    @property
    def like(self) -> Tensor:
        return self.diagonal

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
class BlockDiagonal(LinearOperator):
    """Blocks of one shape along the diagonal."""

    blocks: Tensor  # (count, height, width)

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


@final
@dataclass(frozen=True, eq=False)
class BatchSum(LinearOperator):
    """The sum over batches of an operator made from each: what streaming over data computes.

    `batches` must give the same batches, in the same order, every time it is iterated.
    """

    of_batch: Callable[..., LinearOperator]
    batches: Iterable[tuple[Any, ...]]
    size: tuple[int, int]
    example: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.size

    @property
    def like(self) -> Tensor:
        return self.example

    def matmat(self, x: Tensor) -> Tensor:
        return reduce(torch.add, (self.of_batch(*batch).matmat(x) for batch in self.batches))

    def rmatmat(self, y: Tensor) -> Tensor:
        return reduce(torch.add, (self.of_batch(*batch).rmatmat(y) for batch in self.batches))


@final
@dataclass(frozen=True, eq=False)
class Sum(LinearOperator):
    """The sum of operators of one shape."""

    terms: tuple[LinearOperator, ...]

    def __post_init__(self) -> None:
        shapes = [term.shape for term in self.terms]
        if len(set(shapes)) != 1:
            raise ValueError(f"cannot add operators of shapes {shapes}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.terms[0].shape

    @property
    def like(self) -> Tensor:
        return self.terms[0].like

    def matmat(self, x: Tensor) -> Tensor:
        return reduce(torch.add, (term.matmat(x) for term in self.terms))

    def rmatmat(self, y: Tensor) -> Tensor:
        return reduce(torch.add, (term.rmatmat(y) for term in self.terms))

    def rows(self, start: int, stop: int) -> Tensor:
        return reduce(torch.add, (term.rows(start, stop) for term in self.terms))

    def columns(self, start: int, stop: int) -> Tensor:
        return reduce(torch.add, (term.columns(start, stop) for term in self.terms))

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        """Without dense rows where all terms but one are of low rank, as for centred sparse features."""
        low = [term for term in self.terms if isinstance(term, LowRank)]
        rest = [term for term in self.terms if not isinstance(term, LowRank)]
        if len(rest) != 1 or isinstance(rest[0], Dense):  # dense rows are cheap, and lose nothing to cancellation
            return LinearOperator.row_squares(self, weights)
        together = LowRank(
            torch.cat([term.left for term in low], dim=1), torch.cat([term.right for term in low], dim=1)
        )
        right = together.right if weights is None else weights.to(together.right)[:, None] * together.right
        own = (together.left @ (right.mT @ together.right) * together.left).sum(1)
        squares = rest[0].row_squares(weights) + 2 * (rest[0].matmat(right) * together.left).sum(1) + own
        return squares.clamp_min(0)

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        if not all(isinstance(term, (LowRank, Dense, Sparse)) for term in self.terms):
            return LinearOperator.column_squares(self, weights)
        return Sum(tuple(LowRank(t.right, t.left) if isinstance(t, LowRank) else t.T for t in self.terms)).row_squares(
            weights
        )


@final
@dataclass(frozen=True, eq=False)
class Product(LinearOperator):
    """The product left · right, never formed."""

    left: LinearOperator
    right: LinearOperator

    def __post_init__(self) -> None:
        if self.left.shape[1] != self.right.shape[0]:
            raise ValueError(f"cannot multiply operators of shapes {self.left.shape} and {self.right.shape}")

    @property
    def shape(self) -> tuple[int, int]:
        return (self.left.shape[0], self.right.shape[1])

    @property
    def like(self) -> Tensor:
        return self.right.like

    def matmat(self, x: Tensor) -> Tensor:
        return self.left.matmat(self.right.matmat(x))

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.right.rmatmat(self.left.rmatmat(y))

    def rows(self, start: int, stop: int) -> Tensor:
        return self.left.rows_times(self.right, start, stop)

    def columns(self, start: int, stop: int) -> Tensor:
        return self.right.T.rows_times(self.left.T, start, stop).mT

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        if isinstance(self.left, Diagonal):
            return self.left.diagonal.square() * self.right.row_squares(weights)
        if isinstance(self.right, Diagonal):
            return self.left.row_squares(_times(self.right.diagonal.square(), weights))
        return LinearOperator.row_squares(self, weights)

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        if isinstance(self.left, Diagonal):
            return self.right.column_squares(_times(self.left.diagonal.square(), weights))
        if isinstance(self.right, Diagonal):
            return self.right.diagonal.square() * self.left.column_squares(weights)
        return LinearOperator.column_squares(self, weights)


@final
@dataclass(frozen=True, eq=False)
class Transpose(LinearOperator):
    """The transpose of an operator."""

    inner: LinearOperator

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inner.shape[1], self.inner.shape[0])

    @property
    def like(self) -> Tensor:
        return self.inner.like

    @property
    def T(self) -> LinearOperator:
        return self.inner

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.rmatmat(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.inner.matmat(y)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.inner.columns(start, stop).mT

    def columns(self, start: int, stop: int) -> Tensor:
        return self.inner.rows(start, stop).mT

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        return self.inner.column_squares(weights)

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        return self.inner.row_squares(weights)

    def rows_times(self, right: LinearOperator, start: int, stop: int) -> Tensor:
        if isinstance(self.inner, Diagonal):
            return self.inner.rows_times(right, start, stop)
        return right.rmatmat(self.rows(start, stop).mT).mT


@final
@dataclass(frozen=True, eq=False)
class Scaled(LinearOperator):
    """An operator times a number."""

    inner: LinearOperator
    factor: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def matmat(self, x: Tensor) -> Tensor:
        return self.factor * self.inner.matmat(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.factor * self.inner.rmatmat(y)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.factor * self.inner.rows(start, stop)

    def columns(self, start: int, stop: int) -> Tensor:
        return self.factor * self.inner.columns(start, stop)


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


def check_adjoint(operator: LinearOperator, *, generator: Generator, tolerance: float | None = None) -> float:
    """The relative mismatch |⟨Ax, y⟩ − ⟨x, Aᵀy⟩| of an operator's two products; raises where it is too large.

    Run it once on an operator you wrote: a wrong adjoint gives wrong error bars without any other sign.

    >>> check_adjoint(Diagonal(torch.arange(3.0).double()), generator=torch.Generator().manual_seed(0)) < 1e-12
    True
    """
    n, d = operator.shape
    x, y = (torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in (d, n))
    x, y = x.to(operator.like), y.to(operator.like)
    forward, backward = operator @ x, operator.T @ y
    size = (forward.norm(dim=0) * y.norm(dim=0)).max() + (backward.norm(dim=0) * x.norm(dim=0)).max()
    mismatch = float(((forward * y).sum(0) - (backward * x).sum(0)).abs().max() / size.clamp_min(1e-300))
    limit = tolerance or 10 * torch.finfo(operator.like.dtype).eps * max(n, d) ** 0.5
    if not mismatch <= limit:
        raise ValueError(
            f"{type(operator).__name__} of shape {operator.shape} is not adjoint to its transpose: "
            f"⟨Ax, y⟩ and ⟨x, Aᵀy⟩ differ by {mismatch:.1e} of their size, expected at most {limit:.1e}; "
            "check rmatmat against matmat"
        )
    return mismatch


def gram(operator: LinearOperator) -> Tensor:  # (d, d)
    """AᵀA in float64, from blocks of rows."""
    d = operator.shape[1]
    total = torch.zeros(d, d, dtype=torch.float64, device=operator.like.device)
    for rows in row_blocks(operator):
        block = rows.double()
        total.addmm_(block.mT, block)
    return total


def row_blocks(operator: LinearOperator, elements: int = BLOCK_ELEMENTS) -> Iterator[Tensor]:
    """Dense blocks of rows, in order, each of about `elements` numbers."""
    n, d = operator.shape
    height = max(1, min(n, elements // max(1, d)))
    for start in range(0, n, height):
        yield operator.rows(start, min(start + height, n))


def rows_of(operator: LinearOperator, chosen: Tensor) -> Tensor:  # (count, d)
    """The rows that a boolean mask chooses, as a dense tensor, without making the others all at once."""
    blocks, start = [], 0
    for rows in row_blocks(operator):
        blocks.append(rows[chosen[start : start + len(rows)]])
        start += len(rows)
    return torch.cat(blocks)


def unit_columns(size: int, start: int, stop: int, like: Tensor) -> Tensor:  # (size, stop - start)
    """Columns start to stop of the identity."""
    columns = torch.zeros(size, stop - start, dtype=like.dtype, device=like.device)
    columns[start:stop].fill_diagonal_(1)
    return columns


def _times(values: Tensor, weights: Tensor | None) -> Tensor:
    return values if weights is None else values * weights.to(values)


def _blockwise(blocks: Tensor, x: Tensor) -> Tensor:
    count, height, width = blocks.shape
    return (blocks @ x.reshape(count, width, -1)).reshape(count * height, -1)


def _shared(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():  # a read-only array is fine: nothing here writes to it
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _numpy_dtype(dtype: Any) -> Any:
    return dtype if dtype in (np.float32, np.float64, np.float16) else np.float64
