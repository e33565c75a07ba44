"""A network as a function of its weights, and what its passes hold in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapwing.network.factors import FactorRows, JacobianFactors
from lapwing.network.input_tree import AS_IT_IS, Sample, View, call, leaves
from lapwing.network.parameters import Layout, Select, check_model

Weights = dict[str, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Network:
    """A network as a function of its chosen weights; the module is read, never written."""

    model: nn.Module
    layout: Layout
    fixed: Weights  # a copy of every parameter and buffer: training on does not change a posterior
    view: View = AS_IT_IS

    @staticmethod
    def of(model: nn.Module, select: Select = None, view: View | None = None) -> Network:
        """A network in eval mode, checked."""
        check_model(model)
        fixed = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        return Network(model, Layout.of(model, select), fixed, view or AS_IT_IS)

    @property
    def weights(self) -> Tensor:  # (p,)
        """The chosen weights w̄, flat."""
        return self.layout.flatten(self.fixed)

    def chosen(self) -> Weights:
        """The tensors that hold chosen weights."""
        return {name: self.fixed[name] for name in self.layout.names}

    def tracked(self) -> Weights:
        """The same tensors, recording gradients."""
        return {name: weight.detach().requires_grad_() for name, weight in self.chosen().items()}

    def __call__(self, weights: Weights, inputs: Sample) -> Tensor:  # (b, c)
        """The outputs at some values of the chosen tensors, one row per datum."""
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
            returned = functional_call(self.model, {**self.fixed, **weights}, *call(self.model, inputs))
        return self.view.rows(self.view.raw(returned))

    def outputs(self, inputs: Sample) -> Tensor:  # (b, *shape)
        """The network's own outputs."""
        with torch.no_grad():
            return self.view.raw(functional_call(self.model, self.fixed, *call(self.model, inputs)))

    def moved(self, change: Tensor) -> Network:  # (p,)
        """The same network with something added to its chosen weights."""
        parts = self.layout.unflatten(change.to(self.fixed[self.layout.names[0]]))
        return replace(self, fixed={**self.fixed, **{name: self.fixed[name] + part for name, part in parts.items()}})


WIDE_OFTEN = (
    5  # times what a pass keeps, for every column of data with many outputs: 2.5 on a U-Net, 3.4 on a Transformer
)


def activation_bytes(network: Network, few: Sample) -> float:
    """What a forward pass keeps for each of a few data."""
    kept: dict[int, int] = {}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: _counted(t, kept), lambda t: t):
        outputs = network(network.tracked(), few)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*leaves(few).values(), *network.fixed.values())}
    del outputs
    return sum(size for place, size in kept.items() if place not in given) / len(few)


def held_numbers(found: JacobianFactors) -> int:
    """Numbers that factors hold at their largest."""
    terms = (term.matrix if isinstance(term, FactorRows) else term.gradients for term in found.terms)
    return found.gradients + sum(term.numel() for term in terms)


def _counted(tensor: Tensor, kept: dict[int, int]) -> Tensor:
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor
