"""The Jacobian of a network on another device, seen from main memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import Costs, OverData, Weigh
from lapwing.network.jacobian import Jacobian, Network


@final
@dataclass(frozen=True, eq=False)
class InMainMemory(OverData):
    """A Jacobian, worked out where it is, with columns and products in main memory.

    What is inferred from a network is kept in main memory, whatever device the network is on: a basis of its weights
    is often larger than the device.
    """

    there: Jacobian

    @staticmethod
    def of(jacobian: Jacobian) -> Jacobian | InMainMemory:
        """The Jacobian itself, where it is in main memory already."""
        return jacobian if jacobian.like.device.type == "cpu" else InMainMemory(jacobian)

    @property
    def shape(self) -> tuple[int, int]:
        return self.there.shape

    @cached_property
    def like(self) -> Tensor:
        return torch.empty(0, dtype=self.there.like.dtype)

    @property
    def product_with_weights(self) -> Tensor:
        """The product with a network's own weights."""
        return self.there.product_with_weights.to(self.like)

    @property
    def network(self) -> Network:
        """What the Jacobian is of."""
        return self.there.network

    def matmat(self, x: Tensor) -> Tensor:
        return self.there.matmat(x.to(self.there.like)).to(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.there.rmatmat(y.to(self.there.like)).to(y)

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        image, product = self.there.normal(x.to(self.there.like), self._weigh(weigh, x))
        return image.to(x), product.to(x)

    def normal_parts(self, x: Tensor, weigh: Weigh | None, columns: int) -> Iterator[Tensor]:
        for part in self.there.normal_parts(x.to(self.there.like), self._weigh(weigh, x), columns):
            yield part.to(x)

    def rmatmat_parts(self, y: Tensor, columns: int) -> Iterator[Tensor]:
        for part in self.there.rmatmat_parts(y.to(self.there.like), columns):
            yield part.to(y)

    def _weigh(self, weigh: Weigh | None, x: Tensor) -> Weigh | None:
        if weigh is None:
            return None
        return lambda block, start: weigh(block.to(x), start).to(block)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.there.rows(start, stop).to(self.like)

    def between(self, start: int, stop: int) -> InMainMemory:
        return InMainMemory(self.there.between(start, stop))

    def inputs_between(self, first: int, last: int) -> Any:
        return self.there.inputs_between(first, last)

    @property
    def datum_rows(self) -> int:
        return self.there.datum_rows

    @property
    def costs(self) -> Costs:
        return self.there.costs
