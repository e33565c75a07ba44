"""One pass through a network with its layers listening: what went in, and what the outputs' gradients are there.

Gradients of single data have the form that costs least: their squares are summed without a row per datum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vjp, vmap

from lapwing.network.input_tree import Sample
from lapwing.network.jacobian import Network
from lapwing.network.jacobian.products import quiet
from lapwing.network.kfac.layers import KnownLayer, find
from lapwing.network.layers.kinds import Embedding
from lapwing.network.layers.recorder import Recorder, Use

ELEMENTS = 2**25  # numbers that the gradients of the data worked on at once may take
PROBED = 4  # data on which the layers' gradients are compared with autograd's


@final
@dataclass(frozen=True, eq=False)
class Bases:
    """What gradients are turned into, Leftᵀ gradient Right, for so many columns pulled back; None is the identity."""

    left: Tensor | None = None  # (groups, o, o)
    right: Tensor | None = None  # (groups, i, i)
    columns: int = 1

    def early(self, layer: KnownLayer, positions: int) -> bool:
        """Whether to turn the features once, or the gradients of every column."""
        return positions <= max(1, self.columns * layer.index.shape[1])


NO_BASES = Bases()


@final
@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of a network whose gradients the tape knows, and the tensors it must leave to autograd."""

    known: tuple[KnownLayer, ...]
    others: tuple[str, ...]
    activations: int  # numbers that the tape of one datum takes,
    unfolded: int  # and those of its features and gradients at all layers
    places: dict[str, Tensor] = field(repr=False)  # places of the other tensors in the flat vector


@final
@dataclass(frozen=True, eq=False)
class Tape:
    """The outputs of some data with the uses of every layer; `signals` pulls one column back through all of them."""

    outputs: Tensor  # (b, c), with a graph
    calls: tuple[Use, ...]
    weights: dict[str, Tensor]

    def features(self, layer: KnownLayer, bases: Bases = NO_BASES) -> Tensor:  # (groups, b, positions, i)
        """What the layer's weights are multiplied with, over all its uses; in the right basis if that is cheaper."""
        parts = [layer.features(use, len(self.outputs)) for use in self.uses(layer)]
        found = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
        if bases.right is None or layer.kind.is_vector or not bases.early(layer, found.shape[2]):
            return found
        return found @ bases.right.to(found)[:, None]

    def pull(self, column: Tensor) -> dict[int, Tensor]:  # (b, c)
        """The gradient of Σ column · outputs in the output of every call."""
        edges = [call.output for call in self.calls]
        found = torch.autograd.grad(self.outputs, edges, column.to(self.outputs), retain_graph=True, allow_unused=True)
        pairs = zip(self.calls, found, strict=True)
        return {
            id(call): self.outputs.new_zeros(call.shape) if gradient is None else gradient for call, gradient in pairs
        }

    def signals(self, layer: KnownLayer, pulled: dict[int, Tensor]) -> Tensor:  # (groups, b, positions, o)
        """The pulled gradients at the layer's positions, over all its uses."""
        data = len(self.outputs)
        parts = [layer.signals(use, pulled[id(use)], data) for use in self.uses(layer)]
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]

    def gradients(self, layer: KnownLayer, features: Tensor, signals: Tensor, bases: Bases = NO_BASES) -> Gradients:
        """The layer's gradient of every datum, Leftᵀ gradient Right in the bases that `features` were made for."""
        left, right = bases.left, bases.right
        if layer.kind.is_vector:
            parts = [(signals * features).sum(2)] * layer.weight + [signals.sum(2)] * layer.bias
            vector = torch.cat(parts, dim=-1)  # (1, b, i)
            return Full((vector if right is None else vector @ right.to(vector))[:, :, None])
        positions, inputs = signals.shape[2], layer.index.shape[2]
        if positions > 1 and not layer.kind.by_entry:
            if left is not None and positions <= inputs:
                signals, left = signals @ left.to(signals)[:, None], None
            values = signals.mT @ features
            values = values if left is None else left.mT.to(values)[:, None] @ values
            late = right is not None and not bases.early(layer, positions)
            return Full(values @ right.to(values)[:, None] if late and right is not None else values)
        signals = signals if left is None else signals @ left.to(signals)[:, None]
        if layer.kind.by_entry:
            signals = signals * (features != padding_entry(layer))
            return columns(signals[0], features[0, :, :, 0], layer.index.shape[2])
        return Outer(signals[:, :, 0], features[:, :, 0])

    def uses(self, layer: KnownLayer) -> list[Use]:
        """The uses of the layer's weights."""
        return [use for use in self.calls if layer.is_used(use)]


def record(network: Network, inputs: Sample) -> Tape:
    """One pass of some data."""
    weights = network.tracked()
    recorder = Recorder.of(weights)
    with torch.enable_grad(), recorder:
        outputs = network(weights, inputs)
    return Tape(outputs, tuple(recorder.uses), weights)


def discover_layers(network: Network, inputs: Sample) -> Layers:
    """The layers of a network, each compared with autograd on a few data.

    A layer whose weights are used in other ways too, as by attention, or whose rows are not those of the data in any
    order known here, is left to autograd; so are tensors that belong to no layer.
    """
    inputs = inputs[:PROBED] if len(inputs) > 1 else inputs[[0, 0]]  # one alone shows no order of data
    tape = record(network, inputs)
    found = find(tape.calls, network.layout, {name: weight.shape for name, weight in tape.weights.items()})
    generator = torch.Generator().manual_seed(0)
    column = torch.randn(tape.outputs.shape, generator=generator, dtype=torch.float64).to(tape.outputs)
    last = torch.zeros_like(column)
    last[-1] = column[-1]
    expected = [_flat_gradient(network, tape, v) for v in (column, last)]
    pulled = [tape.pull(v) for v in (column, last)] if tape.calls else []
    kept, unfolded = [], 0
    for layer in found:
        for axis in (0, 1):
            candidate = replace(layer, axis=axis, index=layer.index.to(column.device))
            if _agrees(tape, candidate, pulled, expected):
                kept.append(candidate)
                unfolded += _unfolded(tape, candidate)
                break
    explained = {name for layer in kept for name in layer.key}
    others = tuple(name for name in network.layout.names if name not in explained)
    places = torch.arange(sum(network.layout.sizes), device=column.device).split(network.layout.sizes)
    where = {name: place for name, place in zip(network.layout.names, places, strict=True) if name in others}
    activations = 4 * sum(call.shape.numel() for call in tape.calls) // len(inputs) + 1
    return Layers(tuple(kept), others, activations, unfolded, where)


def pieces(
    network: Network, layers: Layers, batches: Iterable[Sample], *, gradients: bool = True
) -> Iterator[tuple[int, Sample, Tape]]:
    """Data a few at a time: the number of the first, the inputs, and their tape; fewer where gradients are formed."""
    height, start = max(1, ELEMENTS // (layers.activations + gradients * layers.unfolded)), 0
    for batch in batches:
        for inputs in batch.split(height):
            yield start, inputs, record(network, inputs)
            start += len(inputs)


def other_rows(network: Network, layers: Layers, datum: Sample, root: Tensor) -> dict[str, Tensor]:
    """Rᵀ J of one datum for the tensors that no layer knows, by autograd: (k, size) each, for a root R (c, k)."""
    weights = {name: network.fixed[name] for name in layers.others}
    found: Any = vjp(lambda chosen: network(chosen, datum[None])[0], weights)
    with quiet():
        (gradients,) = vmap(found[1])(root.mT.to(found[0]))
    return {name: gradient.detach().reshape(root.shape[1], -1) for name, gradient in gradients.items()}


def padding_entry(layer: KnownLayer) -> int:
    """The entry of an embedding that gets no gradient, −1 for none."""
    assert isinstance(layer.kind, Embedding)
    return layer.kind.padding_entry


def _flat_gradient(network: Network, tape: Tape, column: Tensor) -> Tensor:
    weights = [tape.weights[name] for name in network.layout.names]
    found = torch.autograd.grad(tape.outputs, weights, column, retain_graph=True, allow_unused=True)
    pairs = zip(weights, found, strict=True)
    return torch.cat([(torch.zeros_like(w) if g is None else g).reshape(-1) for w, g in pairs])


def _agrees(tape: Tape, layer: KnownLayer, pulled: Sequence[dict[int, Tensor]], expected: Sequence[Tensor]) -> bool:
    """Whether the layer's gradients are autograd's, those of all data and that of the last datum alone."""
    if not tape.uses(layer):
        return False
    tolerance = 10 * torch.finfo(tape.outputs.dtype).eps ** 0.5
    try:
        features = tape.features(layer)
        found = [tape.gradients(layer, features, tape.signals(layer, part)) for part in pulled]
    except (ValueError, RuntimeError):  # rows that cannot be those of the data
        return False
    for gradients, flat in zip(found, expected, strict=True):
        if bool((gradients.total() - flat[layer.index]).norm() > tolerance * flat[layer.index].norm()):
            return False
    whole, alone = found[1].sums(2), expected[1][layer.index].square()  # the squares of one datum's gradient only
    return not bool((whole - alone).norm() > tolerance * alone.norm())


def _unfolded(tape: Tape, layer: KnownLayer) -> int:
    features = tape.features(layer)
    matrix = (
        2 * layer.index.numel() if features.shape[2] > 1 and not (layer.kind.by_entry or layer.kind.is_vector) else 0
    )
    return features.numel() // len(tape.outputs) + matrix


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """One position per datum: the gradient is left rightᵀ, and so are its powers."""

    left: Tensor  # (groups, data, o)
    right: Tensor  # (groups, data, i)

    def sums(self, power: int) -> Tensor:  # (groups, o, i)
        """Powers of the gradients' entries, summed over data."""
        return self.left.pow(power).mT @ self.right.pow(power)

    def against(self, weights: Tensor) -> Tensor:  # (groups, o, i) -> (data,)
        """Squares of the gradients' entries, summed with weights for each datum."""
        return ((self.left.square() @ weights.to(self.left)) * self.right.square()).sum((0, 2))

    def total(self) -> Tensor:  # (groups, o, i)
        """The gradients summed over data."""
        return self.left.mT @ self.right


@final
@dataclass(frozen=True, eq=False)
class Full:
    """A matrix per datum, for weights used at several positions."""

    values: Tensor  # (groups, data, o, i)

    def sums(self, power: int) -> Tensor:  # (groups, o, i)
        """Powers of the gradients' entries, summed over data."""
        return self.values.pow(power).sum(1)

    def against(self, weights: Tensor) -> Tensor:  # (groups, o, i) -> (data,)
        """Squares of the gradients' entries, summed with weights for each datum."""
        return self.values.square().transpose(0, 1).flatten(1) @ weights.to(self.values).flatten()

    def total(self) -> Tensor:  # (groups, o, i)
        """The gradients summed over data."""
        return self.values.sum(1)


@final
@dataclass(frozen=True, eq=False)
class ColumnGradients:
    """A few columns of a wide matrix per datum, as an embedding has: one for every entry of it that a datum uses."""

    values: Tensor  # (m, o)
    datum: Tensor  # (m,)
    column: Tensor  # (m,)
    data: int
    columns: int

    def sums(self, power: int) -> Tensor:  # (1, o, i)
        """Powers of the gradients' entries, summed over data."""
        total = self.values.new_zeros(self.columns, self.values.shape[1])
        return total.index_add(0, self.column, self.values.pow(power)).mT[None]

    def against(self, weights: Tensor) -> Tensor:  # (1, o, i) -> (data,)
        """Squares of the gradients' entries, summed with weights for each datum."""
        terms = (self.values.square() * weights[0].to(self.values).mT[self.column]).sum(1)
        return terms.new_zeros(self.data).index_add(0, self.datum, terms)

    def total(self) -> Tensor:  # (1, o, i)
        """The gradients summed over data."""
        return self.sums(1)


Gradients = Outer | Full | ColumnGradients


def columns(left: Tensor, entries: Tensor, total: int) -> ColumnGradients:  # (data, positions, o), (data, positions)
    """Σ_t left_t e_tᵀ of every datum, e_t the unit vector of the entry used at position t."""
    data, positions = entries.shape
    place = torch.arange(data, device=entries.device)[:, None] * total + entries
    used, owner = place.reshape(-1).unique(return_inverse=True)
    values = left.new_zeros(len(used), left.shape[-1]).index_add(0, owner, left.reshape(data * positions, -1))
    return ColumnGradients(values, used // total, used % total, data, total)
