"""Operators made batch by batch: what streaming over data computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import LinearOperator, check_product, over_parts


@final
@dataclass(frozen=True, eq=False)
class Stacked(LinearOperator):
    """The rows of one batch under those of the one before: features streamed over data, never all in memory.

    `of_batch` makes the operator of a batch's rows, `heights` says how many those are. `batches` must give the same
    batches, in the same order, every time it is iterated; a list or another sequence is read only where it is needed.

    >>> from lapwing.linalg.operators import Dense
    >>> inputs = [(torch.ones(2, 3),), (2 * torch.ones(4, 3),)]
    >>> Stacked(Dense, inputs, heights=(2, 4), width=3, example=torch.ones(1)).row_squares()
    tensor([ 3.,  3., 12., 12., 12., 12.])
    """

    of_batch: Callable[..., LinearOperator]
    batches: Iterable[tuple[Any, ...]]
    heights: tuple[int, ...]
    width: int
    example: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(self.heights), self.width)

    @property
    def like(self) -> Tensor:
        return self.example

    def parts(self) -> Iterator[tuple[int, LinearOperator]]:
        return self._between(0, self.shape[0])

    def matmat(self, x: Tensor) -> Tensor:
        return self._filled(x.shape[1], lambda part: part.matmat(x))

    def rmatmat(self, y: Tensor) -> Tensor:
        return over_parts(self, lambda start, stop, part: part.rmatmat(y[start:stop]))

    def rows(self, start: int, stop: int) -> Tensor:
        blocks = [
            part.rows(max(start - first, 0), min(stop - first, part.shape[0]))
            for first, part in self._between(start, stop)
        ]
        return torch.cat(blocks) if len(blocks) > 1 else blocks[0]

    def columns(self, start: int, stop: int) -> Tensor:
        return self._filled(stop - start, lambda part: part.columns(start, stop))

    def _filled(self, columns: int, of_part: Callable[[LinearOperator], Tensor]) -> Tensor:
        """Into one tensor made beforehand: small results kept between large blocks would break up the heap."""
        product = torch.empty(self.shape[0], columns, dtype=self.like.dtype, device=self.like.device)
        for start, part in self.parts():
            product[start : start + part.shape[0]] = of_part(part)
        return product

    def _between(self, start: int, stop: int) -> Iterator[tuple[int, LinearOperator]]:
        """The batches that hold any of these rows."""
        firsts = [0, *accumulate(self.heights)]
        wanted = [i for i, height in enumerate(self.heights) if firsts[i] < stop and firsts[i] + height > start]
        if isinstance(self.batches, Sequence):
            chosen = ((i, self.batches[i]) for i in wanted)
        else:
            chosen = ((i, batch) for i, batch in enumerate(self.batches) if i in wanted)
        for i, batch in chosen:
            inner = self.of_batch(*batch)
            if inner.shape != (self.heights[i], self.width):
                raise ValueError(
                    f"the operator of batch {i + 1} of {len(self.heights)} has shape {inner.shape}, expected "
                    f"{(self.heights[i], self.width)}: heights must say how many rows each batch makes"
                )
            yield firsts[i], _OneOfBatch(inner, type(self).__name__, i, len(self.heights), firsts[i])


@final
@dataclass(frozen=True, eq=False)
class _OneOfBatch(LinearOperator):
    """One batch of a stream: where its products are not finite they say which batch it was."""

    inner: LinearOperator
    owner: str
    number: int
    count: int | None
    first: int | None = None  # row, where the batches are stacked

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def matmat(self, x: Tensor) -> Tensor:
        return self._checked(x, self.inner.matmat(x))

    def rmatmat(self, y: Tensor) -> Tensor:
        return self._checked(y, self.inner.rmatmat(y))

    def rows(self, start: int, stop: int) -> Tensor:
        return self._checked(self.like.new_ones(1), self.inner.rows(start, stop))

    def columns(self, start: int, stop: int) -> Tensor:
        return self._checked(self.like.new_ones(1), self.inner.columns(start, stop))

    def _checked(self, x: Tensor, product: Tensor) -> Tensor:
        rows = None if self.first is None else (self.first, self.first + self.shape[0])
        return check_product(self.owner, x, product, batch=(self.number, self.count), rows=rows)


def _length(batches: Iterable[Any]) -> int | None:
    return len(batches) if isinstance(batches, Sized) else None
