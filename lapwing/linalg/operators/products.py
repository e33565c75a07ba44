"""What is computed from any operator."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators.interface import LinearOperator, row_blocks

ROW_ELEMENTS = 2**27  # half a gigabyte of float32


def check_adjoint(operator: LinearOperator, *, generator: Generator, tolerance: float | None = None) -> float:
    """The relative mismatch |⟨Ax, y⟩ − ⟨x, Aᵀy⟩| of an operator's two products; raises where it is too large.

    Run it once on an operator you wrote: a wrong adjoint gives wrong error bars without any other sign.

    >>> from lapwing.linalg.operators import Diagonal
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


def row_gram(operator: LinearOperator, elements: int = ROW_ELEMENTS) -> Tensor:  # (n, n)
    """AAᵀ in float64: from blocks of columns, or where rows are what is cheap from pairs of blocks of rows.

    A block holds about `elements` numbers; with one block every row is made once.
    """
    if not operator.rows_are_cheap:
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
