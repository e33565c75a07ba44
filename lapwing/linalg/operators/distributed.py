"""One operator worked on by several processes, each with a share of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import LinearOperator, Weigh
from lapwing.runtime.ranks import Ranks

Share = Literal["data", "draws"]
BUCKET_BYTES = 2**24  # of a sum that are sent together, while those that come after are computed


@final
@dataclass(frozen=True, eq=False)
class Sharded(LinearOperator):
    """The same operator on every rank, each working on a share.

    By "data", of the rows, cut between data: Ax is gathered and Aᵀy summed, in blocks of columns that are sent while
    the next is made. By "draws", of the columns, where there are as many as ranks: both are gathered. Once the ranks
    are closed, every rank does all of it alone.
    """

    whole: LinearOperator
    ranks: Ranks
    by: Share = "data"

    @staticmethod
    def of(whole: LinearOperator, ranks: Ranks, by: Share = "data") -> LinearOperator:
        """The operator shared out, or itself where there is nothing to share: few data, or stored numbers."""
        outputs = whole.datum_rows
        if outputs is None or isinstance(whole, Sharded):
            return whole
        return whole if by == "data" and whole.shape[0] // outputs < ranks.size else Sharded(whole, ranks, by)

    @property
    def outputs(self) -> int:
        """Rows of a datum."""
        return self.whole.datum_rows or 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.whole.shape

    @property
    def like(self) -> Tensor:
        return self.whole.like

    @property
    def has_row_vjp(self) -> bool:
        return self.whole.has_row_vjp

    @property
    def too_many_outputs(self) -> bool:
        return self.whole.too_many_outputs

    @property
    def squares_are_cheap(self) -> bool:
        return self.whole.squares_are_cheap

    @property
    def keeps_precision(self) -> bool:
        return self.whole.keeps_precision

    def working_bytes(self, columns: int) -> float:
        own = self.whole.working_bytes(columns)
        return self.ranks.most("working memory", own) if self.ranks.open else own

    @property
    def datum_rows(self) -> int | None:
        return self.whole.datum_rows

    def between(self, start: int, stop: int) -> LinearOperator:
        """Rows of the whole: a part is not shared out again."""
        return self.whole.between(start, stop)

    def inputs_between(self, first: int, last: int) -> Any:
        return self.whole.inputs_between(first, last)

    def matmat(self, x: Tensor) -> Tensor:
        if not self.ranks.open:
            return self.whole.matmat(x)
        if self._by_columns(x):
            return self._columns("product", x, self.whole.matmat)
        return self._stacked("product", lambda own: own.matmat(x)) if self._by_rows else self.whole.matmat(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        if not self.ranks.open:
            return self.whole.rmatmat(y)
        if self._by_columns(y):
            return self._columns("product with the transpose", y, self.whole.rmatmat)
        if not self._by_rows:
            return self.whole.rmatmat(y)
        what, (start, stop) = "product with the transpose", self._rows
        self.ranks.computed(what, lambda: y)
        return self._summed(what, y, self._own.rmatmat_parts(y[start:stop], self._bucket))

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        if not self.ranks.open or not (self._by_columns(x) or self._by_rows):
            return self.whole.normal(x, weigh)
        if self._by_columns(x):
            both = self._columns("product", x, lambda own: torch.cat(self.whole.normal(own, weigh)))
            return both[: self.shape[0]], both[self.shape[0] :]
        first = self._rows[0]
        shifted = None if weigh is None else lambda block, start: weigh(block, first + start)
        parts = self._own.normal_parts(x, shifted, self._bucket)
        image = self.ranks.stacking("product", self._heights, lambda: next(parts))
        product = self._summed("product with the transpose", x, parts)
        return image(), product

    def rows(self, start: int, stop: int) -> Tensor:
        """A block of rows, its data shared out anew: every rank can read all of them."""
        first, last = start // self.outputs, -(-stop // self.outputs)
        if not self.ranks.open or last - first < self.ranks.size:  # few data, or one
            return self.whole.rows(start, stop)
        cuts = [self.ranks.cut(last - first, rank) for rank in range(self.ranks.size)]
        bounds = [
            (max(start, (first + one) * self.outputs), min(stop, (first + other) * self.outputs)) for one, other in cuts
        ]
        heights = [other - one for one, other in bounds]
        return self.ranks.stacked("rows", heights, lambda: self.whole.rows(*bounds[self.ranks.rank]))

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        if not self.ranks.open or not self._by_rows:
            return self.whole.row_squares(weights)
        return self._stacked("squares of rows", lambda own: own.row_squares(weights))

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        if not self.ranks.open or not self._by_rows:
            return self.whole.column_squares(weights)
        part = None if weights is None else weights[slice(*self._rows)]
        return self.ranks.summed("squares of columns", lambda: self._own.column_squares(part))

    @property
    def _rows(self) -> tuple[int, int]:
        start, stop = self.ranks.cut(self.shape[0] // self.outputs)
        return start * self.outputs, stop * self.outputs

    @cached_property
    def _own(self) -> LinearOperator:
        return self.whole.between(*self._rows)

    @property
    def _heights(self) -> list[int]:
        cuts = [self.ranks.cut(self.shape[0] // self.outputs, rank) for rank in range(self.ranks.size)]
        return [(stop - start) * self.outputs for start, stop in cuts]

    @property
    def _by_rows(self) -> bool:
        return self.shape[0] // self.outputs >= self.ranks.size

    @property
    def _bucket(self) -> int:
        """Columns of Aᵀy that are sent at once."""
        return max(1, BUCKET_BYTES // (self.shape[1] * self.like.element_size()))

    def _by_columns(self, block: Tensor) -> bool:
        return self.by == "draws" and block.shape[1] >= self.ranks.size

    def _stacked(self, what: str, compute: Callable[[LinearOperator], Tensor]) -> Tensor:
        return self.ranks.stacked(what, self._heights, lambda: compute(self._own))

    def _summed(self, what: str, block: Tensor, parts: Iterator[Tensor]) -> Tensor:
        widths = [min(self._bucket, block.shape[1] - at) for at in range(0, block.shape[1], self._bucket)]
        return self.ranks.summed_parts(what, [(self.shape[1], width) for width in widths], block, parts)

    def _columns(self, what: str, block: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        cuts = [self.ranks.cut(block.shape[1], rank) for rank in range(self.ranks.size)]
        own = block[:, slice(*cuts[self.ranks.rank])]
        return self.ranks.stacked(what, [stop - start for start, stop in cuts], lambda: product(own).mT).mT
