"""Operators made of others: sums, products, transposes, multiples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import LinearOperator, Weigh
from lapwing.linalg.operators.products import normal_product
from lapwing.linalg.operators.stored import Dense, Diagonal, LowRank, Sparse


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

    @property
    def squares_are_cheap(self) -> bool:
        return all(term.squares_are_cheap for term in self.terms)

    def working_bytes(self, columns: int) -> float:
        return max(term.working_bytes(columns) for term in self.terms)

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

    @property
    def squares_are_cheap(self) -> bool:
        return any(isinstance(part, Diagonal) for part in (self.left, self.right)) and all(
            part.squares_are_cheap for part in (self.left, self.right)
        )

    def parts(self) -> Iterator[tuple[int, LinearOperator]]:
        if self.left.on_rows(0, self.shape[0]) is not None:
            for start, part in self.right.parts():
                block = self.left.on_rows(start, start + part.shape[0])
                assert block is not None
                yield start, Product(block, part)
        else:
            for start, part in self.left.parts():
                yield start, Product(part, self.right)

    def working_bytes(self, columns: int) -> float:
        return max(part.working_bytes(columns) for part in (self.left, self.right))

    def matmat(self, x: Tensor) -> Tensor:
        if isinstance(self.left, Transpose) and self.left.inner is self.right:
            return normal_product(self.right, x)
        return self.left.matmat(self.right.matmat(x))

    @property
    def has_row_vjp(self) -> bool:
        left, right = self.left, self.right
        if left.on_rows(0, left.shape[0]) is not None:
            return right.has_row_vjp
        return isinstance(right, Diagonal) and left.has_row_vjp

    @property
    def too_many_outputs(self) -> bool:
        return self.left.too_many_outputs or self.right.too_many_outputs

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        if isinstance(self.right, Diagonal):
            image, product = self.left.normal(self.right.matmat(x), weigh)
            return image, self.right.matmat(product)
        if self.left.on_rows(0, self.left.shape[0]) is None:
            return LinearOperator.normal(self, x, weigh)

        def both(block: Tensor, start: int) -> Tensor:
            part = self.left.on_rows(start, start + len(block))
            assert part is not None
            inner = part.matmat(block)
            return part.rmatmat(inner if weigh is None else weigh(inner, start))

        image, product = self.right.normal(x, both)
        return self.left.matmat(image), product

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

    @property
    def squares_are_cheap(self) -> bool:
        return self.inner.squares_are_cheap

    def working_bytes(self, columns: int) -> float:
        return self.inner.working_bytes(columns)

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

    @property
    def squares_are_cheap(self) -> bool:
        return self.inner.squares_are_cheap

    def parts(self) -> Iterator[tuple[int, LinearOperator]]:
        for start, part in self.inner.parts():
            yield start, Scaled(part, self.factor)

    def working_bytes(self, columns: int) -> float:
        return self.inner.working_bytes(columns)

    def matmat(self, x: Tensor) -> Tensor:
        return self.factor * self.inner.matmat(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.factor * self.inner.rmatmat(y)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.factor * self.inner.rows(start, stop)

    def columns(self, start: int, stop: int) -> Tensor:
        return self.factor * self.inner.columns(start, stop)


@final
@dataclass(frozen=True, eq=False)
class Double(LinearOperator):
    """An operator of any precision that takes and gives float64."""

    inner: LinearOperator

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    @property
    def like(self) -> Tensor:
        return self.inner.like.new_empty(0, dtype=torch.float64)

    @property
    def squares_are_cheap(self) -> bool:
        return self.inner.squares_are_cheap

    def working_bytes(self, columns: int) -> float:
        return self.inner.working_bytes(columns)

    @property
    def too_many_outputs(self) -> bool:
        return self.inner.too_many_outputs

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(x.to(self.inner.like)).double()

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.inner.rmatmat(y.to(self.inner.like)).double()

    def rows(self, start: int, stop: int) -> Tensor:
        return self.inner.rows(start, stop).double()

    def columns(self, start: int, stop: int) -> Tensor:
        return self.inner.columns(start, stop).double()


def _times(values: Tensor, weights: Tensor | None) -> Tensor:
    return values if weights is None else values * weights.to(values)
