"""What is computed from any operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators.interface import LinearOperator, row_blocks

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
        total.addmm_(block.mT, check_product(operator, block.new_ones(1), block, rows=(start, stop)))
        start = stop
    return total


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
