"""Operators made of others in any way are their matrices: in whole numbers, so that every product is exact to the bit."""

from collections.abc import Callable

import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lapwing.linalg.operators import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Double,
    LinearOperator,
    LowRank,
    Stacked,
    as_operator,
    gram,
    row_gram,
)

Both = tuple[LinearOperator, Tensor]
SIZES = st.integers(1, 6)


def whole_numbers(draw: st.DrawFn, *shape: int) -> Tensor:
    """Small enough for every sum of products of four of them to be exact in 53 bits."""
    seed = draw(st.integers(0, 2**31))
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).double()


def stored(draw: st.DrawFn, n: int, d: int) -> Both:
    matrix = whole_numbers(draw, n, d)
    match draw(st.sampled_from(["dense", "sparse", "low rank", "diagonal", "blocks", "stacked", "sum", "double"])):
        case "sparse":
            return as_operator(scipy.sparse.csc_array(matrix.numpy())), matrix
        case "low rank":
            left, right = whole_numbers(draw, n, 2), whole_numbers(draw, d, 2)
            return LowRank(left, right), left @ right.mT
        case "diagonal" if n == d:
            return Diagonal(matrix[:, 0]), torch.diag(matrix[:, 0])
        case "blocks" if n % 2 == d % 2 == 0:
            blocks = whole_numbers(draw, 2, n // 2, d // 2)
            return BlockDiagonal(blocks), torch.block_diag(*blocks)
        case "stacked":
            cut = draw(st.integers(0, n))
            batches = [part for part in (matrix[:cut], matrix[cut:]) if len(part)]
            return Stacked(Dense, [(part,) for part in batches], tuple(map(len, batches)), d, matrix), matrix
        case "sum":
            other = whole_numbers(draw, n, d)
            return Dense(matrix) + Dense(other), matrix + other
        case "double":
            return Double(Dense(matrix.float())), matrix
    return Dense(matrix), matrix


@st.composite
def operators(draw: st.DrawFn, shape: tuple[int, int] | None = None, depth: int = 2) -> Both:
    """An operator of at most four stored ones, and its matrix by dense algebra."""
    n, d = shape or (draw(SIZES), draw(SIZES))

    def other(*size: int) -> Both:
        return draw(operators(size, depth - 1))

    match draw(st.sampled_from(["stored", "sum", "difference", "product", "multiple", "transpose"])) if depth else "":
        case "sum" | "difference" as which:
            (one, first), (two, second) = other(n, d), other(n, d)
            return (one + two, first + second) if which == "sum" else (one - two, first - second)
        case "product":
            inner = draw(SIZES)
            (one, first), (two, second) = other(n, inner), other(inner, d)
            return one @ two, first @ second
        case "multiple":
            factor, (one, first) = draw(st.sampled_from([-2.0, 0.0, 0.5])), other(n, d)
            return factor * one, factor * first
        case "transpose":
            one, first = other(d, n)
            return one.T, first.mT
    return stored(draw, n, d)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@settings(max_examples=300, deadline=None)
@given(st.data(), operators())
def test_every_product_is_that_of_the_matrix(data: st.DataObject, both: Both) -> None:
    operator, matrix = both
    (n, d), columns = matrix.shape, data.draw(st.integers(0, 3))
    draw: st.DrawFn = data.draw  # type: ignore[assignment]
    x, y = whole_numbers(draw, d, columns), whole_numbers(draw, n, columns)
    start, first = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, d - 1))
    stop, last = data.draw(st.integers(start + 1, n)), data.draw(st.integers(first + 1, d))
    assert operator.shape == (n, d)
    same(operator.matmat(x), matrix @ x)
    same(operator.rmatmat(y), matrix.mT @ y)
    same(operator.T.dense(), matrix.mT)
    same(operator.rows(start, stop), matrix[start:stop])
    same(operator.columns(first, last), matrix[:, first:last])
    same(torch.cat([part.dense() for _, part in operator.parts()]), matrix)
    image, back = operator.normal(x)
    same(image, matrix @ x)
    same(back, matrix.mT @ (matrix @ x))
    weights, rows = whole_numbers(draw, d).abs(), whole_numbers(draw, n).abs()
    same(operator.row_squares(weights), matrix.square() @ weights)
    same(operator.column_squares(rows), rows @ matrix.square())
    same(operator.row_squares(), matrix.square().sum(1))
    same(operator.column_squares(), matrix.square().sum(0))


@settings(max_examples=100, deadline=None)
@given(operators())
def test_gram_matrices_are_those_of_the_matrix(both: Both) -> None:
    operator, matrix = both
    same(gram(operator), matrix.mT @ matrix)
    same(row_gram(operator), matrix @ matrix.mT)


def weighed(factors: Tensor) -> Callable[[Tensor, int], Tensor]:
    return lambda block, start: factors[start : start + len(block), None] * block


@settings(max_examples=100, deadline=None)
@given(st.data(), operators())
def test_a_weight_of_every_row_finds_its_row(data: st.DataObject, both: Both) -> None:
    """Rows that come in parts are counted from the first of all."""
    operator, matrix = both
    draw: st.DrawFn = data.draw  # type: ignore[assignment]
    x, factors = whole_numbers(draw, matrix.shape[1], 2), whole_numbers(draw, matrix.shape[0])
    image, back = operator.normal(x, weighed(factors))
    same(image, matrix @ x)
    same(back, matrix.mT @ (factors[:, None] * (matrix @ x)))
