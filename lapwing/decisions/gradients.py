"""The gradient of a network's outputs at every input, in few coordinates.

Inner products of gradients are the neural tangent kernel. One random combination of the outputs stands for all of
them, and a count sketch (Charikar, Chen & Farach-Colton 2002) for the weights: each weight is added with a random sign
to one of a few coordinates, so that inner products are right on average. Park et al. (TRAK, 2023) project gradients
for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor, nn
from torch.func import grad, vmap

from lapwing.network.input_tree import Output, Sample, View, chosen
from lapwing.network.jacobian import Network
from lapwing.network.jacobian.network import Weights
from lapwing.network.jacobian.products import quiet, rows_of_datum
from lapwing.network.parameters import Select

COORDINATES = 512
BLOCK_ELEMENTS = 2**24  # of gradients held at once


@final
@dataclass(frozen=True, eq=False)
class GradientSketch:
    """What maps inputs of a network to the sketched gradients of a combination of its outputs."""

    network: Network  # whose output is that combination
    places: Tensor  # (p,), the coordinate of each weight
    signs: Tensor  # (p,)
    coordinates: int

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
        size = network.layout.size
        like = network.fixed[network.layout.names[0]]
        places = torch.randint(0, coordinates, (size,), generator=generator)
        return GradientSketch(network, places.to(like.device), _signs(size, generator).to(like), coordinates)

    @property
    def at_once(self) -> int:
        """How many inputs' gradients are held at once."""
        return max(1, BLOCK_ELEMENTS // len(self.places))

    def __call__(self, inputs: Sample) -> Tensor:  # (n, coordinates)
        """The sketched gradients at some inputs."""
        return torch.cat([self._sketched(self._gradients(part)) for part in inputs.split(self.at_once)])

    def _sketched(self, gradients: Tensor) -> Tensor:  # (b, p) -> (b, coordinates)
        summed = gradients.new_zeros(len(gradients), self.coordinates)
        return summed.index_add_(1, self.places, gradients * self.signs).cpu()

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


def _signs(size: int, generator: Generator) -> Tensor:
    return torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1
