"""Matrices of networks with several outputs, at hardly more than the cost of one.

The rows of a datum have the same inputs to every layer, so that J is a sum over layers of left ⊗ right with one `right`
for all outputs of a datum. Summed over outputs first, the Gram matrix of rows and the covariances of outputs cost
data × weights², however many outputs there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, final

import torch
from torch import Tensor

from lapwing.tabular.curvature import (
    Conditioned,
    DataCurvature,
    RowCurvature,
    RowPosterior,
    WeightCurvature,
    WeightMatrixPosterior,
    fewer_rows,
    inverse_of,
    product,
)
from lapwing.tabular.networks import LayerJacobian

BLOCK_ELEMENTS = 2**22  # of products of inputs at once


def curvature(rows: LayerJacobian, outputs: int) -> DataCurvature:
    """By the smaller matrix; rows are those of the first datum, then of the next, as many as it has outputs."""
    if fewer_rows(rows.rows, sum(high * wide for high, wide in rows.shapes)):
        return RowCurvature(rows)
    return WeightCurvature(gram(rows, outputs), rows.shapes)


def mixed(jacobian: LayerJacobian, roots: Tensor) -> LayerJacobian:
    """Rows Sᵀ Jᵢ of every datum, for one matrix S each, (b, n, outputs, outputs)."""
    outputs = roots.shape[-1]
    return LayerJacobian(
        tuple((roots.mT @ _by_datum(left, outputs)).flatten(1, 2) for left in jacobian.left), jacobian.right
    )


def gram(rows: LayerJacobian, outputs: int) -> Tensor:  # (b, p, p)
    """RᵀR."""
    sizes = [high * wide for high, wide in rows.shapes]
    total = torch.zeros(len(rows.left[0]), sum(sizes), sum(sizes), dtype=rows.left[0].dtype)
    for member, whole in enumerate(total):
        for pair in _pairs(rows, outputs, member):
            block = _summed(pair)
            whole[pair.first, pair.second] = block
            if not pair.same:
                whole[pair.second, pair.first] = block.mT
    return total.mT  # itself, but stored by columns, as `WeightCurvature` takes it


def covariances(known: Conditioned, jacobian: LayerJacobian, outputs: int) -> Tensor:  # (b, n, outputs, outputs)
    """The blocks of J (RᵀR + 1/v)⁻¹ Jᵀ that belong to one datum each."""
    if isinstance(known, RowPosterior):
        return _by_rows(known, jacobian, outputs)
    assert isinstance(known, WeightMatrixPosterior)
    if jacobian.rows < known.root.shape[1]:
        return _by_solves(known, jacobian, outputs)
    return _by_inverse(known, jacobian, outputs)


def _by_rows(known: RowPosterior, jacobian: LayerJacobian, outputs: int) -> Tensor:
    kernel = known.rows.kernel(jacobian, known.variances)
    shared = _by_datum(torch.linalg.solve_triangular(known.root, kernel, upper=False).mT, outputs)
    prior = torch.zeros((), dtype=kernel.dtype)
    for left, right, variance in zip(jacobian.left, jacobian.right, known.variances, strict=True):
        own = _by_datum(left, outputs)
        squares = (right[:, ::outputs].square() * variance[:, None, :]).sum(2)
        prior = prior + own @ own.mT * squares[:, :, None, None]
    return prior - shared @ shared.mT


def _by_solves(known: WeightMatrixPosterior, jacobian: LayerJacobian, outputs: int) -> Tensor:
    scaled = jacobian.dense() * _prior_std(known)[:, None, :]
    shared = _by_datum(torch.linalg.solve_triangular(known.root, scaled.mT, upper=False).mT, outputs)
    return shared @ shared.mT


def _by_inverse(known: WeightMatrixPosterior, jacobian: LayerJacobian, outputs: int) -> Tensor:
    b, rows = jacobian.left[0].shape[:2]
    total = torch.zeros(b, rows // outputs, outputs, outputs, dtype=jacobian.left[0].dtype)
    for member, (found, std) in enumerate(zip(total, _prior_std(known), strict=True)):
        covariance = inverse_of(known.root[member]).mul_(std[:, None]).mul_(std)
        for pair in _pairs(jacobian, outputs, member):
            part = _spread(pair, covariance[pair.first, pair.second])
            found += part if pair.same else part + part.mT
    return total


class _Pair(NamedTuple):
    """Two layers of one network: their rows and inputs by datum, and where their weights stand."""

    left: tuple[Tensor, Tensor]  # each (n, outputs, high)
    right: tuple[Tensor, Tensor]  # each (n, wide)
    first: slice
    second: slice
    same: bool


def _pairs(jacobian: LayerJacobian, outputs: int, member: int) -> Iterator[_Pair]:
    """Each layer with itself and with those before it."""
    left = [_by_datum(part[member : member + 1], outputs)[0] for part in jacobian.left]
    right = [part[member, ::outputs] for part in jacobian.right]
    ends = list(accumulate((high * wide for high, wide in jacobian.shapes), initial=0))
    for i in range(len(left)):
        for j in range(i + 1):
            places = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
            yield _Pair((left[i], left[j]), (right[i], right[j]), *places, i == j)


def _summed(pair: _Pair) -> Tensor:  # (weights of the first layer, of the second)
    """Σ over data of (Σ over outputs of left leftᵀ) ⊗ (right rightᵀ); of a layer with itself, half of each suffices."""
    high, wide = _sides(pair)
    rows = _Entries.of(*high, same=pair.same)
    columns = _Entries.of(*wide, same=pair.same)
    total = torch.zeros(rows.size, columns.size, dtype=pair.right[0].dtype)
    for block in _blocks(pair, columns.size):
        lefts = rows.summed_products(pair.left[0][block], pair.left[1][block])
        total += product(lefts, columns.products(pair.right[0][block], pair.right[1][block]).mT)
    if pair.same:
        total = total.index_select(1, columns.place).index_select(0, rows.place)
    return total.reshape(*high, *wide).transpose(1, 2).reshape(high[0] * wide[0], -1)


def _spread(pair: _Pair, covariance: Tensor) -> Tensor:  # (n, outputs, outputs)
    """Of one block of the covariance of the weights, what it gives to the outputs of each datum."""
    high, wide = _sides(pair)
    rows = _Entries.of(*high, same=pair.same)
    columns = _Entries.of(*wide, same=pair.same)
    weights = covariance.reshape(high[0], wide[0], high[1], wide[1]).transpose(1, 2).reshape(high[0] * high[1], -1)
    if pair.same:  # both halves of the inputs' products at once
        half = torch.zeros(rows.size, columns.size, dtype=weights.dtype)
        weights = half.index_add(1, columns.place, weights.index_select(0, rows.flat))
    parts = []
    for block in _blocks(pair, columns.size):
        inner = product(weights, columns.products(pair.right[0][block], pair.right[1][block]))
        square = inner.index_select(0, rows.place) if pair.same else inner
        parts.append(pair.left[0][block] @ square.mT.reshape(-1, *high) @ pair.left[1][block].mT)
    return torch.cat(parts)


def _sides(pair: _Pair) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the layers' matrices: both heights, and both widths."""
    return (pair.left[0].shape[2], pair.left[1].shape[2]), (pair.right[0].shape[1], pair.right[1].shape[1])


@final
@dataclass(frozen=True, eq=False)
class _Entries:
    """Those of a matrix that are worked with: all, or of a symmetric one those on and below its diagonal."""

    first: Tensor  # (size,), their rows
    second: Tensor  # (size,), their columns
    flat: Tensor  # (size,), where they stand in the whole matrix
    place: Tensor  # (entries of the whole matrix,), which of them stands there
    size: int

    @staticmethod
    def of(high: int, wide: int, *, same: bool) -> _Entries:
        """Of a matrix of this size."""
        whole = torch.arange(high * wide)
        if not same:
            return _Entries(whole // wide, whole % wide, whole, whole, high * wide)
        first, second = torch.tril_indices(high, high)
        place = torch.empty(high, high, dtype=torch.long)
        place[first, second] = torch.arange(len(first))
        place[second, first] = torch.arange(len(first))
        return _Entries(first, second, first * high + second, place.flatten(), len(first))

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # (size, n)
        """Of entries of two vectors a datum, (n, high) and (n, wide); rows are faster to choose than columns."""
        return left.mT.contiguous().index_select(0, self.first).mul_(right.mT.contiguous().index_select(0, self.second))

    def summed_products(self, left: Tensor, right: Tensor) -> Tensor:  # (size, n)
        """The same, summed over outputs: of (n, outputs, high) and (n, outputs, wide)."""
        return (left.mT @ right).flatten(1).index_select(1, self.flat).mT


def _blocks(pair: _Pair, columns: int) -> Iterator[slice]:
    """Of data."""
    size = max(1, BLOCK_ELEMENTS // columns)
    for start in range(0, len(pair.right[0]), size):
        yield slice(start, start + size)


def _prior_std(known: WeightMatrixPosterior) -> Tensor:  # (b, p)
    """Of every weight."""
    layers = zip(known.variances, known.shapes, strict=True)
    return torch.cat([v.sqrt()[:, None, :].expand(-1, *shape).flatten(1) for v, shape in layers], dim=1)


def _by_datum(rows: Tensor, outputs: int) -> Tensor:  # (b, n · outputs, …) to (b, n, outputs, …)
    return rows.reshape(len(rows), -1, outputs, *rows.shape[2:])
