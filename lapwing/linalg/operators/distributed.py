"""One operator worked on by several processes, each with a share of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import Costs, LinearOperator, OverData, Weigh
from lapwing.runtime.ranks import Ranks

Share = Literal["data", "draws"]
BUCKET_BYTES = 2**24  # of a sum that are sent together, while those that come after are computed


@final
@dataclass(frozen=True, eq=False)
class Sharded(OverData):
    """The same operator on every rank, each working on a share.

    By "data", of the rows, cut between data: Ax is gathered and Aᵀy summed, in blocks of columns that are sent while
    the next is made. By "draws", of the columns, where there are as many as ranks: both are gathered. Once the ranks
    are closed, every rank does all of it alone.
    """

    whole: OverData
    ranks: Ranks
    by: Share = "data"

    @staticmethod
    def of(whole: LinearOperator, ranks: Ranks, by: Share = "data") -> LinearOperator:
        """The operator shared out, or itself where there is nothing to share: few data, or stored numbers."""
        if isinstance(whole, Sharded) or not isinstance(whole, OverData):
            return whole
        few = by == "data" and whole.shape[0] // whole.datum_rows < ranks.size
        return whole if few else Sharded(whole, ranks, by)

    @property
    def shape(self) -> tuple[int, int]:
        return self.whole.shape

    @property
    def like(self) -> Tensor:
        return self.whole.like

    @property
    def costs(self) -> Costs:
        own = self.whole.costs

        def working_bytes(columns: int) -> float:
            needed = own.working_bytes(columns)
            return self.ranks.most("working memory", needed) if self.ranks.open else needed

        return replace(own, working_bytes=working_bytes)

    @property
    def datum_rows(self) -> int:
        return self.whole.datum_rows

    def between(self, start: int, stop: int) -> OverData:
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
        height = self.datum_rows
        first, last = start // height, -(-stop // height)
        if not self.ranks.open or last - first < self.ranks.size:  # few data, or one
            return self.whole.rows(start, stop)
        cuts = [self.ranks.cut(last - first, rank) for rank in range(self.ranks.size)]
        bounds = [(max(start, (first + one) * height), min(stop, (first + other) * height)) for one, other in cuts]
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
        start, stop = self.ranks.cut(self.shape[0] // self.datum_rows)
        return start * self.datum_rows, stop * self.datum_rows

    @cached_property
    def _own(self) -> OverData:
        return self.whole.between(*self._rows)

    @property
    def _heights(self) -> list[int]:
        cuts = [self.ranks.cut(self.shape[0] // self.datum_rows, rank) for rank in range(self.ranks.size)]
        return [(stop - start) * self.datum_rows for start, stop in cuts]

    @property
    def _by_rows(self) -> bool:
        return self.shape[0] // self.datum_rows >= self.ranks.size

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
