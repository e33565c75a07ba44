"""A network as a function of its weights, and the Jacobian of its outputs as an operator known by its products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapwing.linalg.operators import LinearOperator
from lapwing.network.parameters import Layout, Select, check_model

Weights = dict[str, Tensor]
Forward = Literal["plain", "tracked"] | None  # None where an operation has no forward mode: two reverse passes serve


@final
@dataclass(frozen=True, eq=False)
class Network:
    """A network as a function of its chosen weights; the module is read, never written."""

    model: nn.Module
    layout: Layout
    fixed: Weights  # a copy of every parameter and buffer: training on does not change a posterior

    @staticmethod
    def of(model: nn.Module, select: Select = None) -> Network:
        """A network in eval mode, checked."""
        check_model(model)
        fixed = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        return Network(model, Layout.of(model, select), fixed)

    @property
    def weights(self) -> Tensor:  # (p,)
        """The chosen weights w̄, flat."""
        return self.layout.flatten(self.fixed)

    def chosen(self) -> Weights:
        """The tensors that hold chosen weights."""
        return {name: self.fixed[name] for name in self.layout.names}

    def __call__(self, weights: Weights, inputs: Tensor) -> Tensor:  # (b, c)
        """The outputs at some values of the chosen tensors, one row per datum."""
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
            outputs = functional_call(self.model, {**self.fixed, **weights}, (inputs,))
        return outputs.reshape(len(inputs), -1)

    def outputs(self, inputs: Tensor) -> Tensor:  # (b, *shape)
        """The network's own outputs."""
        with torch.no_grad():
            return functional_call(self.model, self.fixed, (inputs,))


@final
@dataclass(frozen=True, eq=False)
class Jacobian(LinearOperator):
    """The Jacobian of a network's outputs over batches of inputs, (n · c, p): products by forward and reverse mode.

    Nothing is stored. Columns are worked on one at a time, which on a CPU is faster than batching them.
    """

    network: Network
    inputs: tuple[Tensor, ...]  # one tensor per batch
    outputs: int  # per datum, c
    forward: Forward = "plain"

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(len(batch) for batch in self.inputs) * self.outputs, self.network.layout.size)

    @property
    def like(self) -> Tensor:
        return self.network.fixed[self.network.layout.names[0]]

    def matmat(self, x: Tensor) -> Tensor:
        return torch.cat([self._forward(batch, x) for batch in self.inputs])

    def rmatmat(self, y: Tensor) -> Tensor:
        total, start = y.new_zeros(self.shape[1], y.shape[1]), 0
        for batch in self.inputs:
            stop = start + len(batch) * self.outputs
            total += self._backward(batch, y[start:stop])
            start = stop
        return total

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of whole data, by one reverse pass per datum with all its outputs at once."""
        first, last = start // self.outputs, -(-stop // self.outputs)
        data = torch.cat(self.inputs) if len(self.inputs) > 1 else self.inputs[0]
        rows = torch.cat([self._rows_of(datum[None]) for datum in data[first:last]])
        return rows[start - first * self.outputs : stop - first * self.outputs]

    def _rows_of(self, datum: Tensor) -> Tensor:  # (c, p)
        outputs, pull = self._pulled(datum)
        units = torch.eye(self.outputs, dtype=outputs.dtype, device=outputs.device)[:, None]
        (gradients,) = vmap(pull)(units)
        flat = torch.cat([gradients[name].reshape(self.outputs, -1) for name in self.network.layout.names], dim=1)
        mask = self.network.layout.mask
        return flat.detach() if mask is None else flat[:, mask].detach()

    def _pulled(self, batch: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        """Outputs and the function that multiplies with the transpose."""
        found: Any = vjp(self._function(batch), self.network.chosen())
        return found[0], found[1]

    def _function(self, batch: Tensor) -> Callable[[Weights], Tensor]:
        return lambda weights: self.network(weights, batch)

    def _forward(self, batch: Tensor, x: Tensor) -> Tensor:
        function, at, layout = self._function(batch), self.network.chosen(), self.network.layout
        if self.forward is not None:
            if self.forward == "tracked":
                at = {name: weight.detach().requires_grad_() for name, weight in at.items()}
            columns = [jvp(function, (at,), (layout.unflatten(column),))[1].reshape(-1) for column in x.mT]
            return torch.stack(columns, dim=1).detach()
        outputs, _ = self._pulled(batch)
        found: Any = vjp(lambda y: vjp(function, at)[1](y)[0], torch.zeros_like(outputs))  # Jᵀ y is linear in y
        columns = [found[1](layout.unflatten(column))[0].reshape(-1) for column in x.mT]
        return torch.stack(columns, dim=1).detach()

    def _backward(self, batch: Tensor, y: Tensor) -> Tensor:
        outputs, pull = self._pulled(batch)
        columns = [self.network.layout.flatten(pull(column.reshape(outputs.shape))[0]) for column in y.mT]
        return torch.stack(columns, dim=1).detach()


def forward_mode(jacobian: Jacobian) -> Forward:
    """How the network can be differentiated forwards, tried on one datum.

    Fused layers, which torch uses where no weight tracks gradients, have no forward mode; tracked weights avoid them.
    """
    probe = replace(jacobian, inputs=(jacobian.inputs[0][:1],))
    modes: tuple[Forward, ...] = ("plain", "tracked")
    for mode in modes:
        try:
            replace(probe, forward=mode).matmat(torch.zeros(probe.shape[1], 1).to(probe.like))
        except NotImplementedError:
            continue
        return mode
    return None
