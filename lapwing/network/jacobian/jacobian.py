"""The Jacobian of a network's outputs as an operator known by its products; a short probe says how to work them out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg.operators.interface import Costs, OverData, Weigh
from lapwing.network.batches import Inputs
from lapwing.network.factors import COLUMNS, Unfactored, factor
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian.kept import kept_or_made
from lapwing.network.jacobian.network import WIDE_OFTEN, Network, activation_bytes, held_numbers
from lapwing.network.jacobian.products import (
    UNPROBED,
    WIDE,
    Direct,
    FactoredProducts,
    Forward,
    ProductPlan,
    rows_of_datum,
)


@final
@dataclass(frozen=True, eq=False)
class Jacobian(OverData):
    """The Jacobian of a network's outputs over batches of inputs, (n · c, p), known by its products.

    One with few columns goes through the network by forward and reverse mode; one with many is worked out from the
    factors of every layer, which are found once per batch. Nothing is stored between products, but by a fit, which
    keeps those factors while it lasts.
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
                yield piece, y[start : start + piece.height]
                start += piece.height

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
        made = self._of(iter(self.inputs), columns)
        return made if columns < self.plan.factored_from else kept_or_made(self, self.shape[0], made)

    def _of(self, batches: Iterator[Sample], columns: float) -> Iterator[FactoredProducts | Direct]:
        factored = columns >= self.plan.factored_from
        for batch in batches:
            size = self.plan.data if factored else self.plan.pieces or len(batch)
            for part in batch.split(size):
                yield self._factored(part, columns) if factored else self.direct(part)

    def _factored(self, batch: Sample, columns: float) -> FactoredProducts | Direct:
        try:
            found = factor(lambda weights: self.network(weights, batch), self.network.chosen(), columns)
        except Unfactored:  # a path through the network that the probe did not take
            return self.direct(batch)
        return FactoredProducts(self.network.layout, found.terms, found.outputs.numel())

    def direct(self, batch: Sample) -> Direct:
        """Products with the rows of a batch by passes through the network."""
        return Direct(self.network, batch, self.plan, len(batch) * self.outputs)


FACTOR_ELEMENTS = 2**25  # numbers that the factors of the data worked on at once may hold
CHUNK = 4  # columns at once in forward mode where nothing else is known
PROBED = 16  # data that a probe works on
WIDE_BYTES = 2**28  # that the layers of data with more than WIDE outputs may take at once


def prepared(jacobian: Jacobian) -> Jacobian:
    """The same Jacobian with a plan found by a short probe on its first data."""
    batch = next(iter(jacobian.inputs))[:PROBED]
    probe = replace(jacobian, inputs=Inputs.of((batch,)))
    if jacobian.outputs > WIDE:
        return replace(jacobian, plan=_in_pieces(probe, batch))
    plan = _with_factors(replace(probe, plan=ProductPlan(forward_mode(probe), chunk=CHUNK)), batch[:3])
    if plan.factored_from > 2 * CHUNK:  # otherwise few columns are left to forward mode
        plan = replace(plan, chunk=_chunk(replace(probe, plan=plan), batch))
    return replace(jacobian, plan=plan)


def _in_pieces(jacobian: Jacobian, batch: Sample) -> ProductPlan:
    """A plan for a network with many outputs: so few data and columns at once that their layers take little memory."""
    plan = ProductPlan(forward_mode(jacobian), chunk=CHUNK)
    most = WIDE_BYTES / max(1.0, WIDE_OFTEN * activation_bytes(jacobian.network, batch[:1]))
    plan = replace(plan, chunk=_chunk(replace(jacobian, plan=plan), batch[:1], largest=max(1, int(most))))
    return replace(plan, pieces=max(1, int(most / (1 + plan.chunk))))


def forward_mode(jacobian: Jacobian) -> Forward:
    """How the network can be differentiated forwards, tried on one datum.

    Fused layers, which torch uses where no weight tracks gradients, have no forward mode; tracked weights avoid them.
    """
    datum = next(iter(jacobian.inputs))[:1]
    modes: tuple[Forward, ...] = ("plain", "tracked")
    for mode in modes:
        try:
            direct = replace(jacobian, plan=ProductPlan(mode)).direct(datum)
            direct.times(torch.zeros(jacobian.shape[1], 1).to(jacobian.like))
        except NotImplementedError:
            continue
        return mode
    return None


def _chunk(jacobian: Jacobian, batch: Sample, largest: int = 16) -> int:
    """Columns at once: more of them while a column gets cheaper."""
    best, least = 1, torch.inf
    if jacobian.plan.forward is None:
        return best
    for chunk in (size for size in (1, 4, 8, 16) if size <= largest):
        columns = torch.ones(jacobian.shape[1], chunk).to(jacobian.like)
        direct = replace(jacobian, plan=replace(jacobian.plan, chunk=chunk)).direct(batch)
        try:
            started = time.perf_counter()
            direct.times(columns)
        except RuntimeError:  # some operation cannot be batched
            return best
        spent = (time.perf_counter() - started) / chunk
        if spent > 0.95 * least:
            return best
        best, least = chunk, spent
    return best


def _with_factors(jacobian: Jacobian, batch: Sample) -> ProductPlan:
    """The plan with factors, where the network has them, they fit and their products agree with the direct ones.

    They cost two passes per output, a column by direct products about four.
    """
    plan, like = jacobian.plan, jacobian.like
    try:
        found = factor(lambda w: jacobian.network(w, batch), jacobian.network.chosen(), torch.inf)
    except Unfactored:
        return plan
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(jacobian.shape[1], 2, generator=noise, dtype=torch.float64).to(like)
    y = torch.randn(found.outputs.numel(), 2, generator=noise, dtype=torch.float64).to(like)
    direct, factored = (
        jacobian.direct(batch),
        FactoredProducts(jacobian.network.layout, found.terms, found.outputs.numel()),
    )
    tolerance = 1e3 * torch.finfo(like.dtype).eps
    for one, other in ((direct.times(x), factored.times(x)), (direct.transposed(y), factored.transposed(y))):
        if not bool((one - other).norm() <= tolerance * one.norm()):
            return plan
    data = int(FACTOR_ELEMENTS * len(batch) // max(1, held_numbers(found)))
    return replace(plan, factored_from=jacobian.outputs / 2, data=data) if data else plan


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
