"""The Jacobian of a network's outputs as an operator known by its products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.operators import Costs, OverData
from lapwing.linalg.operators.interface import Weigh
from lapwing.network.batches import Inputs
from lapwing.network.factors import COLUMNS, Unfactored, factor
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian.memory import WIDE_OFTEN, activation_bytes, held_numbers
from lapwing.network.jacobian.network import Network
from lapwing.network.jacobian.products import UNPROBED, WIDE, Direct, FactoredProducts, ProductPlan, rows_of_datum


@final
@dataclass(frozen=True, eq=False)
class Jacobian(OverData):
    """The Jacobian of a network's outputs over batches of inputs, (n · c, p), known by its products.

    Nothing is stored between products. One with few columns goes through the network by forward and reverse mode; one
    with many is worked out from the factors of every layer, which are found once per batch.
    """

    network: Network
    inputs: Inputs
    outputs: int  # per datum, c
    plan: ProductPlan = UNPROBED

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inputs.count * self.outputs, self.network.layout.size)

    @property
    def like(self) -> Tensor:
        return self.network.fixed[self.network.layout.names[0]]

    @property
    def costs(self) -> Costs:
        return Costs(has_row_vjp=True, too_many_outputs=self.outputs > WIDE, working_bytes=self._working_bytes)

    @cached_property
    def product_with_weights(self) -> Tensor:  # (n · c,)
        """J w̄ for the network's own weights, kept: a fit asks for it several times."""
        return self @ self.network.weights

    def matmat(self, x: Tensor) -> Tensor:
        columns = x.to(self.like)  # a solver may keep more digits than the network has
        return torch.cat([piece.times(columns) for piece in self._pieces(x.shape[1] / 2)]).to(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        (product,) = self.rmatmat_parts(y, y.shape[1])
        return product

    def rmatmat_parts(self, y: Tensor, columns: int) -> Iterator[Tensor]:
        given, y = y, y.to(self.like)

        def pulled() -> Iterator[tuple[FactoredProducts | Direct, Tensor]]:
            start = 0
            for piece in self._pieces(y.shape[1] / 2):
                height = piece.height if isinstance(piece, FactoredProducts) else len(piece.inputs) * self.outputs
                yield piece, y[start : start + height]
                start += height

        for part in self._summed(pulled(), y, columns):
            yield part.to(given)

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        """J x and Jᵀ B J x batch by batch, with one pass through the network for both."""
        image, product = self.normal_parts(x, weigh, x.shape[1])
        return image, product

    def normal_parts(self, x: Tensor, weigh: Weigh | None, columns: int) -> Iterator[Tensor]:
        given, x = x, x.to(self.like)
        images: list[Tensor] = []

        def pulled() -> Iterator[tuple[FactoredProducts | Direct, Tensor]]:
            start = 0
            for piece in self._pieces(x.shape[1]):
                images.append(image := piece.times(x))
                yield piece, image if weigh is None else weigh(image, start).to(image)
                start += len(image)

        for number, part in enumerate(self._summed(pulled(), x, columns)):
            if number == 0:
                yield torch.cat(images).to(given)
            yield part.to(given)

    def _summed(
        self, pulled: Iterator[tuple[FactoredProducts | Direct, Tensor]], like: Tensor, columns: int
    ) -> Iterator[Tensor]:
        """Σ Jᵢᵀ yᵢ over batches, in blocks of columns: the last batch finishes one after the other."""
        total = like.new_zeros(self.shape[1], like.shape[1])
        last, own = next(pulled)
        for piece, block in pulled:
            total += last.transposed(own)
            last, own = piece, block
        for start in range(0, max(1, like.shape[1]), max(1, columns)):
            at = slice(start, start + columns)
            total[:, at] += last.transposed(own[:, at])
            yield total[:, at]

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows by one reverse pass per output."""
        first, last = start // self.outputs, -(-stop // self.outputs)
        if self.outputs > WIDE:
            return self._few_rows(start, stop, first, last)
        pieces = [piece.rows() for piece in self._of(self.inputs.between(first, last), torch.inf)]
        rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return rows[start - first * self.outputs : stop - first * self.outputs]

    def _few_rows(self, start: int, stop: int, first: int, last: int) -> Tensor:
        """Rows of data with many outputs: by forward passes where weights are fewer than they."""
        if self.shape[1] < (stop - start) / (last - first):
            part = self.between(first * self.outputs, last * self.outputs)
            whole = part.matmat(torch.eye(self.shape[1], dtype=self.like.dtype, device=self.like.device))
            return whole[start - first * self.outputs : stop - first * self.outputs]
        data = (datum for batch in self.inputs.between(first, last) for datum in batch.split(1))
        parts = []
        for number, datum in enumerate(data, start=first):
            before = number * self.outputs
            parts.append(rows_of_datum(self.network, datum, max(start - before, 0), min(stop - before, self.outputs)))
        return torch.cat(parts)

    @property
    def datum_rows(self) -> int:
        return self.outputs

    def between(self, start: int, stop: int) -> Jacobian:
        """The rows of some whole data."""
        first, last = start // self.outputs, stop // self.outputs
        if (first * self.outputs, last * self.outputs) != (start, stop):
            raise ValueError(f"rows {start} to {stop} are not whole data of {self.outputs} rows each")
        inputs = self.inputs
        return replace(self, inputs=Inputs(last - first, lambda a, b: inputs.between(first + a, first + b)))

    def inputs_between(self, first: int, last: int) -> Inputs:
        return self.between(first * self.outputs, last * self.outputs).inputs

    def _working_bytes(self, columns: int) -> float:
        """Measured on the first data: what a forward pass keeps, and the factors where they are used."""
        batch = next(iter(self.inputs))
        few, network = batch[:2], self.network
        each = activation_bytes(network, few)
        item, sizes = self.like.element_size(), network.layout.sizes
        if columns < self.plan.factored_from:  # tangents of a chunk go along, with the patches of their convolutions
            data, often = min(len(batch), self.plan.pieces or len(batch)), WIDE_OFTEN if self.plan.pieces else 1
            return data * each * often * (1 + self.plan.chunk) + 3 * item * sum(sizes) * self.plan.chunk
        found = factor(lambda weights: network(weights, few), network.chosen(), columns)
        data = min(len(batch), self.plan.data)
        summed = 2 * item * sum(sizes) * columns + 4 * item * max(sizes) * min(columns, COLUMNS)
        return data * (each + item * held_numbers(found) / len(few)) + summed

    def _pieces(self, columns: float) -> Iterator[FactoredProducts | Direct]:
        return self._of(iter(self.inputs), columns)

    def _of(self, batches: Iterator[Sample], columns: float) -> Iterator[FactoredProducts | Direct]:
        factored = columns >= self.plan.factored_from
        for batch in batches:
            size = self.plan.data if factored else self.plan.pieces or len(batch)
            for part in batch.split(size):
                yield self._factored(part, columns) if factored else Direct(self.network, part, self.plan)

    def _factored(self, batch: Sample, columns: float) -> FactoredProducts | Direct:
        try:
            found = factor(lambda weights: self.network(weights, batch), self.network.chosen(), columns)
        except Unfactored:  # a path through the network that the probe did not take
            return Direct(self.network, batch, self.plan)
        return FactoredProducts(self.network.layout, found.terms, found.outputs.numel())
