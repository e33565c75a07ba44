"""The features of a last layer: its inputs, which all outputs share, found in one pass and kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from lapwing.bayes.fits.loss import PerOutput
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.network.batches import Inputs, untouched_random_state
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian import Jacobian, Network

TRIED = 3  # data on which the features are compared with the network's own Jacobian
SAME = 1e-4  # relative difference that round-off may make


@final
@dataclass(frozen=True, eq=False)
class LastLayer:
    """A linear layer whose weights are the chosen ones, and whose outputs are those of the network."""

    network: Network
    layer: nn.Linear

    @staticmethod
    def of(features: Jacobian) -> LastLayer | None:
        """That of a Jacobian; None where other weights are chosen, or the layer is not the last in what it does.

        A layer may be followed by a softmax, be called twice or share its weights with another one. So what it gives is
        compared with the Jacobian of the network.
        """
        network = features.network
        layer = _layer(network)
        if layer is None or features.outputs != layer.out_features:
            return None
        found, few = LastLayer(network, layer), next(iter(features.inputs))[:TRIED]
        seen = found._inputs_of(few)
        if seen is None or seen.shape != (len(few), layer.in_features):
            return None
        expected = features.rows(0, len(few) * features.outputs)
        rows = found._of(seen).rows(0, len(expected))
        return found if bool((rows - expected).norm() <= SAME * expected.norm()) else None

    def features(self, inputs: Inputs) -> LinearOperator:
        """Its Jacobian at inputs, in main memory."""
        return self._of(torch.cat([self._required(batch).cpu() for batch in inputs]))

    def _required(self, batch: Sample) -> Tensor:
        seen = self._inputs_of(batch)
        if seen is None or seen.shape != (len(batch), self.layer.in_features):
            raise ValueError(
                f"the last layer, {self.layer}, was called in another way than on the training data: expected once, "
                f"with {len(batch)} rows"
            )
        return seen

    def _of(self, seen: Tensor) -> PerOutput:  # (n, q)
        c, q = self.layer.out_features, self.layer.in_features
        order = torch.arange(c * q).reshape(c, q).mT
        if self.layer.bias is not None:
            seen = torch.cat([seen, seen.new_ones(len(seen), 1)], dim=1)
            order = torch.cat([order, c * q + torch.arange(c)[None]])
        return PerOutput(Dense(seen), c, order.reshape(-1))

    def _inputs_of(self, batch: Sample) -> Tensor | None:  # (b, q)
        """What the layer is given for a batch; None where it is called more than once, or never."""
        with _watched(self.layer) as seen, untouched_random_state():
            self.network.outputs(batch)
        return seen[0] if len(seen) == 1 else None


@contextmanager
def _watched(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What a layer is given, call by call."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()


def _layer(network: Network) -> nn.Linear | None:
    """The linear layer that has just the chosen weights, all of them."""
    layout = network.layout
    if layout.mask is not None:
        return None
    chosen = set(layout.names)
    return next((layer for layer, names in _linear(network.model) if names == chosen), None)


def _linear(model: nn.Module) -> Iterator[tuple[nn.Linear, set[str]]]:
    """Plain linear layers with the names of their own weights, weight first."""
    for prefix, module in model.named_modules():
        if type(module) is nn.Linear:
            yield module, {f"{prefix}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False)}
