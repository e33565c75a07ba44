"""Operators made of others: sums, products, transposes, multiples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import Blockwise, Costs, LinearOperator, OnRows, Weigh, normal_product
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
    def costs(self) -> Costs:
        cheap = all(term.costs.squares_are_cheap for term in self.terms)
        return Costs(squares_are_cheap=cheap, working_bytes=_largest(self.terms))

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
    def costs(self) -> Costs:
        both = (self.left.costs, self.right.costs)
        scaled = isinstance(self.right, Diagonal)
        by_rows = isinstance(self.left, OnRows) and self.right.costs.has_row_vjp
        return Costs(
            squares_are_cheap=(scaled or isinstance(self.left, Diagonal)) and all(c.squares_are_cheap for c in both),
            has_row_vjp=by_rows or (scaled and self.left.costs.has_row_vjp),
            too_many_outputs=any(c.too_many_outputs for c in both),
            working_bytes=_largest((self.left, self.right)),
        )

    def parts(self) -> Iterator[tuple[int, LinearOperator]]:
        if isinstance(self.left, OnRows):
            for start, part in self.right.parts():
                yield start, Product(self.left.on_rows(start, start + part.shape[0]), part)
        else:
            for start, part in self.left.parts():
                yield start, Product(part, self.right)

    def matmat(self, x: Tensor) -> Tensor:
        if isinstance(self.left, Transpose) and self.left.inner is self.right:
            return normal_product(self.right, x)
        return self.left.matmat(self.right.matmat(x))

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        left = self.left
        if isinstance(self.right, Diagonal):
            image, product = left.normal(self.right.matmat(x), weigh)
            return image, self.right.matmat(product)
        if not isinstance(left, OnRows):
            return LinearOperator.normal(self, x, weigh)

        def both(block: Tensor, start: int) -> Tensor:
            part = left.on_rows(start, start + len(block))
            inner = part.matmat(block)
            return part.rmatmat(inner if weigh is None else weigh(inner, start))

        image, product = self.right.normal(x, both)
        return left.matmat(image), product

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.right.rmatmat(self.left.rmatmat(y))

    def rows(self, start: int, stop: int) -> Tensor:
        return _rows_times(self.left, self.right, start, stop)

    def columns(self, start: int, stop: int) -> Tensor:
        return _rows_times(self.right.T, self.left.T, start, stop).mT

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
    def costs(self) -> Costs:
        return replace(self.inner.costs, has_row_vjp=False, too_many_outputs=False)

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
    def costs(self) -> Costs:
        return self.inner.costs

    def parts(self) -> Iterator[tuple[int, LinearOperator]]:
        for start, part in self.inner.parts():
            yield start, Scaled(part, self.factor)

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
    def costs(self) -> Costs:
        return self.inner.costs

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(x.to(self.inner.like)).double()

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.inner.rmatmat(y.to(self.inner.like)).double()

    def rows(self, start: int, stop: int) -> Tensor:
        return self.inner.rows(start, stop).double()

    def columns(self, start: int, stop: int) -> Tensor:
        return self.inner.columns(start, stop).double()


def _rows_times(left: LinearOperator, right: LinearOperator, start: int, stop: int) -> Tensor:
    if isinstance(left, Blockwise):
        return left.rows_times(right, start, stop)
    return right.rmatmat(left.rows(start, stop).mT).mT


def _largest(parts: tuple[LinearOperator, ...]) -> Callable[[int], float]:
    return lambda columns: max(part.costs.working_bytes(columns) for part in parts)


def _times(values: Tensor, weights: Tensor | None) -> Tensor:
    return values if weights is None else values * weights.to(values)
