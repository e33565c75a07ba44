"""One operator worked on by several processes, each with a share of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

from torch import Tensor

from lapwing.linalg.operators.interface import LinearOperator, Weigh
from lapwing.linalg.ranks import Ranks


@final
@dataclass(frozen=True, eq=False)
class Sharded(LinearOperator):
    """The same operator on every rank, each working on a share of the rows: Ax is gathered, Aᵀy is summed.

    Rows are cut between data. Once the ranks are closed, every rank works on all rows alone.
    """

    whole: LinearOperator
    ranks: Ranks

    @staticmethod
    def of(whole: LinearOperator, ranks: Ranks) -> LinearOperator:
        """The operator shared out, or itself where there is nothing to share: few data, or stored numbers."""
        outputs = whole.datum_rows
        if outputs is None or isinstance(whole, Sharded) or whole.shape[0] // outputs < ranks.size:
            return whole
        return Sharded(whole, ranks)

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
    def rows_are_cheap(self) -> bool:
        return self.whole.rows_are_cheap

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

    def matmat(self, x: Tensor) -> Tensor:
        if not self.ranks.open:
            return self.whole.matmat(x)
        return self._stacked("product", lambda own: own.matmat(x))

    def rmatmat(self, y: Tensor) -> Tensor:
        if not self.ranks.open:
            return self.whole.rmatmat(y)
        start, stop = self._rows
        return self.ranks.summed("product with the transpose", lambda: self._own.rmatmat(y[start:stop]))

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        if not self.ranks.open:
            return self.whole.normal(x, weigh)
        first, sums = self._rows[0], []

        def of_own(own: LinearOperator) -> Tensor:
            shifted = None if weigh is None else lambda block, start: weigh(block, first + start)
            image, total = own.normal(x, shifted)
            sums.append(total)
            return image

        image = self._stacked("product", of_own)
        return image, self.ranks.summed("product with the transpose", sums.pop)

    def rows(self, start: int, stop: int) -> Tensor:
        """A block of rows, its data shared out anew: every rank can read all of them."""
        first, last = start // self.outputs, -(-stop // self.outputs)
        if not self.ranks.open or last - first < self.ranks.size:
            return self.whole.rows(start, stop)
        cuts = [self.ranks.cut(last - first, rank) for rank in range(self.ranks.size)]
        bounds = [
            (max(start, (first + one) * self.outputs), min(stop, (first + other) * self.outputs)) for one, other in cuts
        ]
        heights = [other - one for one, other in bounds]
        return self.ranks.stacked("rows", heights, lambda: self.whole.rows(*bounds[self.ranks.rank]))

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        if not self.ranks.open:
            return self.whole.row_squares(weights)
        return self._stacked("squares of rows", lambda own: own.row_squares(weights))

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        if not self.ranks.open:
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

    def _stacked(self, what: str, compute: Callable[[LinearOperator], Tensor]) -> Tensor:
        cuts = [self.ranks.cut(self.shape[0] // self.outputs, rank) for rank in range(self.ranks.size)]
        heights = [(stop - start) * self.outputs for start, stop in cuts]
        return self.ranks.stacked(what, heights, lambda: compute(self._own))
