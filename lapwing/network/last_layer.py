"""The features of a last layer: its inputs, which all outputs share, found in one pass and kept."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from lapwing.bayes.fits.loss import PerOutput
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.network.batches import Inputs
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian import Jacobian, Network

TRIED = 3  # data on which the features are compared with the network's own Jacobian
SAME = 1e-4  # relative difference that round-off may make


@final
@dataclass(frozen=True, eq=False)
class LastLayer:
    """A linear layer whose weights are the chosen ones, and whose outputs are those of the network."""

    before: Network  # what the layer is given: the network with nothing in its place
    layer: nn.Linear

    @staticmethod
    def of(features: Jacobian) -> LastLayer | None:
        """That of a Jacobian; None where other weights are chosen, or the layer is not the last in what it does.

        A layer may be followed by a softmax, be called twice or share its weights with another one. So what it gives is
        compared with the Jacobian of the network.
        """
        name = _name(features.network)
        if name is None:
            return None
        found = _without(features.network, name)
        few = next(iter(features.inputs))[:TRIED]
        try:
            rows = found._of(found.before.outputs(few)).dense()
        except (
            AttributeError,
            IndexError,
            RuntimeError,
            TypeError,
            ValueError,
        ):  # it does something else with what it is given
            return None
        expected = features.rows(0, len(few) * features.outputs)
        same = rows.shape == expected.shape and bool((rows - expected).norm() <= SAME * expected.norm())
        return found if same else None

    def features(self, inputs: Inputs) -> LinearOperator:
        """Its Jacobian at inputs, in main memory."""
        return self._of(torch.cat([self._given(batch) for batch in inputs]).cpu())

    def _given(self, batch: Sample) -> Tensor:  # (b, q)
        return self.before.outputs(batch).reshape(len(batch), self.layer.in_features)

    def _of(self, given: Tensor) -> PerOutput:  # (n, q)
        c, q = self.layer.out_features, self.layer.in_features
        order = torch.arange(c * q).reshape(c, q).mT
        if self.layer.bias is not None:
            given = torch.cat([given, given.new_ones(len(given), 1)], dim=1)
            order = torch.cat([order, c * q + torch.arange(c)[None]])
        return PerOutput(Dense(given), c, order.reshape(-1))


def _name(network: Network) -> str | None:
    """The linear layer that has just the chosen weights, all of them."""
    if network.layout.mask is not None:
        return None
    chosen = set(network.layout.names)
    return next((name for name, own in _linear(network.model) if own == chosen), None)


def _linear(model: nn.Module) -> Iterator[tuple[str, set[str]]]:
    """Plain linear layers inside a network, with the names of their own weights."""
    for name, module in model.named_modules():
        if name and type(module) is nn.Linear:
            yield name, {f"{name}.{weight}" for weight, _ in module.named_parameters(recurse=False)}


def _without(network: Network, name: str) -> LastLayer:
    """A layer, and a network of the same tensors that ends before it."""
    layer = network.model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    tensors = (*network.model.parameters(), *network.model.buffers())
    before = deepcopy(network.model, {id(tensor): tensor for tensor in tensors})
    *path, last = name.split(".")
    setattr(before.get_submodule(".".join(path)), last, nn.Identity())
    fixed = {key: tensor for key, tensor in network.fixed.items() if not key.startswith(f"{name}.")}
    return LastLayer(replace(network, model=before, fixed=fixed), layer)
