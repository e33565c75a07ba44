"""The contract of an operator: two products, everything that follows from them, and what is computed from any."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Generator, Tensor

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


ROW_ELEMENTS = 2**27  # half a gigabyte of float32


class Rows(Protocol):
    """A tall matrix of which blocks of rows are made when they are needed: any operator, or a table of noise."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""

    def rows(self, start: int, stop: int) -> Tensor:
        """A block of rows."""


def over_parts(operator: LinearOperator, of_part: Callable[[int, int, LinearOperator], Tensor]) -> Tensor:
    """The sum over an operator's parts of what is computed from each: its first row, the row after its last, itself.

    >>> from lapwing.linalg.operators import Dense
    >>> over_parts(Dense(torch.eye(3, 2)), lambda start, stop, part: part.T @ torch.ones(stop - start))
    tensor([1., 1.])
    """
    parts = ((start, start + part.shape[0], part) for start, part in operator.parts())
    total = of_part(*next(parts))
    for part in parts:
        total = total + of_part(*part)
    return total


def normal_product(operator: LinearOperator, x: Tensor) -> Tensor:  # (d, k) -> (d, k)
    """AᵀA x, part by part."""
    return over_parts(operator, lambda _start, _stop, part: part.normal(x)[1])


def check_product(
    operator: LinearOperator | str, x: Tensor, product: Tensor, *,
    batch: tuple[int, int | None] | None = None, rows: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """The product itself; raises where it is not finite though x is, and says where it came from.

    `batch` is the number of the batch, from 0, and how many there are if that is known; `rows` its first row and
    the one after its last. What is not finite on the way in is not the operator's doing and passes through.

    >>> check_product("Jacobian", torch.ones(2, 1), torch.tensor([[torch.nan]]), batch=(2, 12), rows=(20, 30))
    Traceback (most recent call last):
    ValueError: the product of Jacobian ... is not finite in 1 of 1 columns (batch 3 of 12, rows 20–29)...
    """
    finite = torch.isfinite(product.sum(0))
    if bool(finite.all()) or not bool(torch.isfinite(x).all()):
        return product
    name = operator if isinstance(operator, str) else f"{type(operator).__name__} of shape {operator.shape}"
    where = []
    if batch is not None:
        where.append(f"batch {batch[0] + 1}" + ("" if batch[1] is None else f" of {batch[1]}"))
    if rows is not None:
        where.append(f"rows {rows[0]}–{rows[1] - 1}")
    raise ValueError(
        f"the product of {name} with a finite block is not finite in {int((~finite).sum())} of {len(finite)} columns"
        f"{' (' + ', '.join(where) + ')' if where else ''}: look for missing or infinite values there, or overflow"
    )


def check_adjoint(operator: LinearOperator, *, generator: Generator, tolerance: float | None = None) -> float:
    """The relative mismatch |⟨Ax, y⟩ − ⟨x, Aᵀy⟩| of an operator's two products; raises where it is too large.

    Run it once on an operator you wrote: a wrong adjoint gives wrong error bars without any other sign.

    >>> from lapwing.linalg.operators import Diagonal
    >>> check_adjoint(Diagonal(torch.arange(3.0).double()), generator=torch.Generator().manual_seed(0)) < 1e-12
    True
    """
    n, d = operator.shape

    def normal(size: int) -> Tensor:
        return torch.randn(size, 2, generator=generator, dtype=torch.float64).to(operator.like)

    def products(_start: int, _stop: int, part: LinearOperator) -> Tensor:  # ⟨Ax, y⟩, ‖Ax‖², ‖y‖², then Aᵀy
        forward, y = part.matmat(x), normal(part.shape[0])
        sums = torch.stack([(forward * y).sum(0), forward.square().sum(0), y.square().sum(0)])
        return torch.cat([sums, part.rmatmat(y)])

    x = normal(d)
    (inner, forward, y), backward = (both := over_parts(operator, products))[:3], both[3:]
    size = (forward * y).sqrt().max() + (backward.norm(dim=0) * x.norm(dim=0)).max()
    mismatch = float((inner - (backward * x).sum(0)).abs().max() / size.clamp_min(1e-300))
    limit = tolerance or 10 * torch.finfo(operator.like.dtype).eps * max(n, d) ** 0.5
    if not (math.isfinite(mismatch) and bool(both.isfinite().all())):
        raise ValueError(
            f"products of {type(operator).__name__} of shape {operator.shape} with finite vectors are not finite in "
            f"{operator.like.dtype}: look for missing or infinite values in the data, or for weights so large that "
            "products overflow, as after a training that ran away"
        )
    if mismatch > limit:
        raise ValueError(
            f"{type(operator).__name__} of shape {operator.shape} is not adjoint to its transpose: "
            f"⟨Ax, y⟩ and ⟨x, Aᵀy⟩ differ by {mismatch:.1e} of their size, expected at most {limit:.1e}; "
            "check rmatmat against matmat"
        )
    return mismatch


def gram(operator: LinearOperator) -> Tensor:  # (d, d)
    """AᵀA in float64, from blocks of rows."""
    d = operator.shape[1]
    total, start = torch.zeros(d, d, dtype=torch.float64, device=operator.like.device), 0
    for rows in row_blocks(operator):
        block, stop = rows.double(), start + len(rows)
        total += _products(check_product(operator, block.new_ones(1), block, rows=(start, stop)))
        start = stop
    return total


def _products(block: Tensor) -> Tensor:  # (n, d) -> (d, d)
    """BᵀB: NumPy sees that it is symmetric and halves the work, torch does not."""
    if block.device.type != "cpu":
        return block.mT @ block
    values = block.numpy()
    return torch.from_numpy(values.T @ values)


def row_gram(operator: LinearOperator, elements: int = ROW_ELEMENTS) -> Tensor:  # (n, n)
    """AAᵀ in float64: from blocks of columns, or where rows are what is cheap from pairs of blocks of rows.

    A block holds about `elements` numbers; with one block every row is made once.
    """
    if not operator.costs.has_row_vjp:
        return gram(operator.T)
    n, d = operator.shape
    height = max(1, min(n, elements // max(1, d)))
    starts = range(0, n, height)
    total = torch.empty(n, n, dtype=torch.float64, device=operator.like.device)
    for start in starts:
        held = operator.rows(start, min(start + height, n))
        for other in starts[start // height :]:
            again = held if other == start else operator.rows(other, min(other + height, n))
            block = _float64_product(held, again)
            total[start : start + len(held), other : other + len(again)] = block
            total[other : other + len(again), start : start + len(held)] = block.mT
    return total


def _float64_product(left: Tensor, right: Tensor, width: int = 2**14) -> Tensor:
    """left · rightᵀ in float64, without a float64 copy of either."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    for start in range(0, left.shape[1], width):
        part = slice(start, start + width)
        total.addmm_(left[:, part].double(), right[:, part].double().mT)
    return total


def rows_of(operator: LinearOperator, chosen: Tensor) -> Tensor:  # (count, d)
    """The rows that a boolean mask chooses, as a dense tensor, without making the others all at once."""
    blocks, start = [], 0
    for rows in row_blocks(operator):
        blocks.append(rows[chosen[start : start + len(rows)]])
        start += len(rows)
    return torch.cat(blocks)
