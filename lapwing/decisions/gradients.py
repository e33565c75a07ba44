"""The gradient of a network's outputs at every input, in few coordinates.

Inner products of gradients are the neural tangent kernel. One random combination of the outputs stands for all of
them, and a count sketch (Charikar, Chen & Farach-Colton 2002) for the weights: each weight is added with a random sign
to one of a few coordinates, so that inner products are right on average. Park et al. (TRAK, 2023) project gradients
for the same reason. Signs of a matrix are products of those of its rows and columns, coordinates are their sums. So
the sketch of an outer product g aᵀ, which the gradient in a layer is, is the circular convolution of those of g and a
(Pham & Pagh 2013), and no gradient is formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor, nn
from torch.func import grad, vmap

from lapwing.network.factors import Unfactored, pulled, traced
from lapwing.network.input_tree import Output, Sample, View, chosen
from lapwing.network.jacobian import Network
from lapwing.network.jacobian.network import Weights
from lapwing.network.jacobian.products import quiet, rows_of_datum
from lapwing.network.layers.recorder import Use
from lapwing.network.parameters import Select

COORDINATES = 512
BLOCK_ELEMENTS = 2**24  # of gradients held at once


@final
@dataclass(frozen=True, eq=False)
class Hash:
    """Coordinates and signs of the weights of one tensor, as a matrix with its first axis as rows."""

    row_places: Tensor  # (rows,)
    row_signs: Tensor
    column_places: Tensor  # (columns,)
    column_signs: Tensor
    coordinates: int

    @staticmethod
    def of(shape: torch.Size, coordinates: int, like: Tensor, generator: Generator) -> Hash:
        """At random; a vector is a matrix of one row."""
        rows, columns = (shape[0], shape[1:].numel()) if len(shape) > 1 else (1, shape.numel())
        parts = [(torch.randint(0, coordinates, (size,), generator=generator).to(like.device),
                  _signs(size, generator).to(like)) for size in (rows, columns)]  # fmt: skip
        return Hash(*parts[0], *parts[1], coordinates)

    @property
    def places(self) -> Tensor:  # (rows · columns,)
        """The coordinate of each weight."""
        return ((self.row_places[:, None] + self.column_places) % self.coordinates).flatten()

    @property
    def signs(self) -> Tensor:  # (rows · columns,)
        """The sign of each weight."""
        return (self.row_signs[:, None] * self.column_signs).flatten()

    def flat(self, values: Tensor) -> Tensor:  # (b, rows · columns) -> (b, coordinates)
        """The sketch of gradients in the whole tensor."""
        return _binned(values * self.signs, self.places, self.coordinates)

    def outer(self, signals: Tensor, features: Tensor, start: int) -> Tensor:  # (b, coordinates)
        """The sketch of Σ_t g_t a_tᵀ in some rows, from `start` on, by g (b, t, o) and a (b, t, i)."""
        rows = slice(start, start + signals.shape[2])
        places, signs = self.row_places[rows], self.row_signs[rows]
        left, right = signals * signs, features * self.column_signs
        if signals.shape[1] > 1:
            every = ((places[:, None] + self.column_places) % self.coordinates).flatten()
            return _binned((left.mT @ right).flatten(1), every, self.coordinates)
        first, second = (
            torch.fft.rfft(_binned(part[:, 0], at, self.coordinates))
            for part, at in ((left, places), (right, self.column_places))
        )
        return torch.fft.irfft(first * second, n=self.coordinates)


@final
@dataclass(frozen=True, eq=False)
class GradientSketch:
    """What maps inputs of a network to the sketched gradients of a combination of its outputs."""

    network: Network  # whose output is that combination
    hashes: dict[str, Hash]  # by name of the tensor

    @staticmethod
    def of(
        model: nn.Module, outputs: int, *, select: Select = None, output: Output = None, seed: int = 0,
        coordinates: int = COORDINATES,
    ) -> GradientSketch:  # fmt: skip
        """Random signs for the outputs and the weights, and a coordinate for each weight."""
        generator = Generator().manual_seed(seed)
        mix = _signs(outputs, generator)

        def combined(returned: Any) -> Tensor:  # (b, 1)
            found = chosen(returned, output)
            return found @ mix.to(found)[:, None]

        network = Network.of(model, select, View(combined))
        layout = network.layout
        like = network.fixed[layout.names[0]]
        shapes = zip(layout.names, layout.shapes, strict=True)
        return GradientSketch(network, {name: Hash.of(shape, coordinates, like, generator) for name, shape in shapes})

    @property
    def at_once(self) -> int:
        """How many inputs' gradients are held at once."""
        return max(1, BLOCK_ELEMENTS // self.network.layout.size)

    def __call__(self, inputs: Sample) -> Tensor:  # (n, coordinates)
        """The sketched gradients at some inputs."""
        return torch.cat([self._sketched(part) for part in inputs.split(self.at_once)]).cpu()

    def _sketched(self, inputs: Sample) -> Tensor:  # (b, coordinates)
        if self.network.layout.mask is None:
            try:
                return self._by_layers(inputs)
            except Unfactored:  # some weight enters otherwise than by a product
                pass
        layout = self.network.layout
        places = layout.gather(torch.cat([self.hashes[name].places for name in layout.names]))
        signs = layout.gather(torch.cat([self.hashes[name].signs for name in layout.names]))
        return _binned(self._gradients(inputs) * signs, places, next(iter(self.hashes.values())).coordinates)

    def _by_layers(self, inputs: Sample) -> Tensor:
        """From what every layer saw and what the output feels of it: one reverse pass."""
        outputs, recorder = traced(lambda weights: self.network(weights, inputs), self.network.chosen())
        if not outputs.requires_grad:
            raise Unfactored("nothing that is differentiated")
        uses = pulled(outputs, recorder.uses)
        return sum((self._of_use(use, signals[:, :, 0]) for use, signals in uses), outputs.new_zeros(1)).detach()

    def _of_use(self, use: Use, signals: Tensor) -> Tensor:  # (groups, b, positions, o) -> (b, coordinates)
        parts = []
        if use.bias is not None:
            parts.append(self.hashes[use.bias].flat(signals.sum(2).transpose(0, 1).flatten(1)))
        if use.weight is not None:
            if not use.kind.in_order:
                raise Unfactored("a transposed convolution")
            features, hashed = use.kind.features(use.inputs, signals.shape[1]), self.hashes[use.weight]
            if use.kind.is_vector:
                parts.append(hashed.flat((signals * features).sum(2)[0]))
            else:
                both = zip(signals, features, strict=True)
                parts += [hashed.outer(g, a, number * g.shape[2]) for number, (g, a) in enumerate(both)]
        return torch.stack(parts).sum(0)

    def _gradients(self, inputs: Sample) -> Tensor:  # (b, p)
        """All at once where the network allows it, one by one otherwise."""
        if isinstance(inputs, Tensor):
            try:
                return self._all_at_once(inputs)
            except RuntimeError:  # something in the network cannot be done for many inputs apart from one another
                pass
        return torch.cat([rows_of_datum(self.network, inputs[at : at + 1]) for at in range(len(inputs))])

    def _all_at_once(self, inputs: Tensor) -> Tensor:
        def combination(weights: Weights, one: Tensor) -> Tensor:  # ()
            return self.network(weights, one[None]).sum()

        of_all: Any = vmap(grad(combination), in_dims=(None, 0))
        with quiet():
            found = of_all(self.network.chosen(), inputs)
        flat = torch.cat([found[name].reshape(len(inputs), -1) for name in self.network.layout.names], dim=1)
        return self.network.layout.gather(flat.mT).mT.detach()


def _binned(values: Tensor, places: Tensor, coordinates: int) -> Tensor:  # (b, k) -> (b, coordinates)
    return values.new_zeros(len(values), coordinates).index_add_(1, places, values)


def _signs(size: int, generator: Generator) -> Tensor:
    return torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1
