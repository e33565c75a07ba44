"""The contract of an operator: two products, and everything that follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

Weigh = Callable[[Tensor, int], Tensor]  # a block of rows and the number of its first to the block times B
BLOCK_ELEMENTS = 2**22  # a block of rows worked on at once holds about 32 MB of float64


def _none(columns: int) -> float:  # noqa: ARG001
    return 0.0


@final
@dataclass(frozen=True)
class Costs:
    """What is cheap beside products, and what a product takes: by this a method is chosen."""

    squares_are_cheap: bool = False  # norms of rows and columns cost about a product, as where numbers are stored
    has_row_vjp: bool = False  # a block of rows costs far less than as many products with unit columns
    too_many_outputs: bool = False  # rows are so many a datum that products serve better
    working_bytes: Callable[[int], float] = _none  # of a product with so many columns, inputs and results left out


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

    def parts(self) -> Iterator[tuple[int, LinearOperator]]:
        """Consecutive blocks of rows as operators, each with the number of its first row.

        One whole block unless rows are streamed. What is computed part by part needs no product of all rows at once.
        """
        yield 0, self

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:  # (n, k), (d, k)
        """A x and Aᵀ B A x, where B acts on blocks of rows: cheaper than two products where both share work."""
        image = self.matmat(x)
        return image, self.rmatmat(image if weigh is None else weigh(image, 0))

    def rows(self, start: int, stop: int) -> Tensor:  # (stop - start, d)
        """A block of rows as a dense tensor."""
        return self.rmatmat(unit_columns(self.shape[0], start, stop, self.like)).mT

    def columns(self, start: int, stop: int) -> Tensor:  # (n, stop - start)
        """A block of columns as a dense tensor."""
        return self.matmat(unit_columns(self.shape[1], start, stop, self.like))

    @property
    def costs(self) -> Costs:
        """What is cheap beside products, and what they take."""
        return Costs()

    def row_squares(self, weights: Tensor | None = None) -> Tensor:  # (n,)
        """The squared norm of every row, Σ_j w_j a_ij²."""
        total, start = torch.empty(self.shape[0], dtype=self.like.dtype, device=self.like.device), 0
        for rows in row_blocks(self):  # into one tensor: small ones kept between large blocks break up the heap
            block = rows.square()
            total[start : start + len(rows)] = block.sum(1) if weights is None else block @ weights.to(block)
            start += len(rows)
        return total

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
        from lapwing.linalg.operators import composed

        return composed.Transpose(self)

    def __matmul__(self, other: Any) -> Any:
        from lapwing.linalg.operators import composed

        if isinstance(other, LinearOperator):
            return composed.Product(self, other)
        if not isinstance(other, Tensor):
            return NotImplemented
        if other.ndim not in (1, 2) or other.shape[0] != self.shape[1]:
            raise ValueError(
                f"cannot multiply {type(self).__name__} of shape {self.shape} "
                f"with a tensor of shape {tuple(other.shape)}"
            )
        return self.matmat(other) if other.ndim == 2 else self.matmat(other[:, None])[:, 0]

    def __add__(self, other: LinearOperator) -> LinearOperator:
        from lapwing.linalg.operators import composed

        return composed.Sum((self, other))

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        from lapwing.linalg.operators import composed

        return composed.Sum((self, -1.0 * other))

    def __mul__(self, factor: float) -> LinearOperator:
        from lapwing.linalg.operators import composed

        return composed.Scaled(self, float(factor))

    __rmul__ = __mul__


class Blockwise(LinearOperator):
    """An operator whose rows read few rows of what it multiplies: a block-diagonal one."""

    @abstractmethod
    def rows_times(self, right: LinearOperator, start: int, stop: int) -> Tensor:
        """A block of rows of the product with another operator, from as few rows of it as can be."""


class OnRows(Blockwise):
    """A square operator that acts on blocks of rows by themselves: a diagonal one, or a block for every datum."""

    @abstractmethod
    def on_rows(self, start: int, stop: int) -> LinearOperator:
        """What acts on rows start to stop, which are of whole data."""


class OverData(LinearOperator):
    """An operator with so many rows for every datum, which several processes can share out between data."""

    @property
    @abstractmethod
    def datum_rows(self) -> int:
        """Rows that belong to one datum."""

    @abstractmethod
    def between(self, start: int, stop: int) -> OverData:
        """Rows start to stop, of whole data, as an operator whose products cost their share."""

    @abstractmethod
    def inputs_between(self, first: int, last: int) -> Any:
        """The inputs of some data, counted from 0, in a form that made this operator."""

    def rmatmat_parts(self, y: Tensor, columns: int) -> Iterator[Tensor]:  # (d, columns) each
        """Aᵀ y in blocks of so many columns, each as soon as it is finished: to be sent while the next is made."""
        yield from self.rmatmat(y).split(columns, dim=1)

    def normal_parts(self, x: Tensor, weigh: Weigh | None, columns: int) -> Iterator[Tensor]:
        """A x, then Aᵀ B A x in blocks of so many columns, each as soon as it is finished."""
        image, product = self.normal(x, weigh)
        yield image
        yield from product.split(columns, dim=1)


def row_blocks(operator: LinearOperator, elements: int = BLOCK_ELEMENTS) -> Iterator[Tensor]:
    """Dense blocks of rows, in order, each of about `elements` numbers and within one part."""
    for _, part in operator.parts():
        n, d = part.shape
        height = max(1, min(n, elements // max(1, d)))
        for start in range(0, n, height):
            yield part.rows(start, min(start + height, n))


def unit_columns(size: int, start: int, stop: int, like: Tensor) -> Tensor:  # (size, stop - start)
    """Columns start to stop of the identity."""
    columns = torch.zeros(size, stop - start, dtype=like.dtype, device=like.device)
    columns[start:stop].fill_diagonal_(1)
    return columns
