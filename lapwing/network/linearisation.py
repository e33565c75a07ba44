"""A network linearised at its weights: h(θ, x) = f(x) + J(x) (θ − w̄), whose features are the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import Centre, LinearModel
from lapwing.linalg.operators import LinearOperator
from lapwing.network.batches import Batches, as_batches
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


def linearise(
    model: nn.Module, data: Any, likelihood: Gaussian, *, select: Select = None, total: int | None = None
) -> LinearModel:
    """The linear model of a trained network: features J, targets y − f + J w̄, and the network's output as centre.

    `data` is anything `as_batches` reads; `select` chooses weights by name or by a mask; `total` is the size of the
    whole training set where `data` is a part of it, so that each datum counts `total / n` times.
    """
    network, batches = Network.of(model, select), as_batches(data)
    pairs = list(batches)
    outputs = torch.cat([_checked(network, inputs) for inputs, _ in pairs])
    targets = _targets(torch.cat([targets for _, targets in pairs]), outputs)
    features = Jacobian(network, tuple(inputs for inputs, _ in pairs), outputs[0].numel())
    features = replace(features, forward=forward_mode(features))
    offset = outputs.reshape(-1) - features @ network.weights
    adjusted = targets.reshape(-1) - offset.to(targets)
    if total is not None and total < len(targets):
        raise ValueError(f"total is {total}, less than the {len(targets)} data given: it counts the whole training set")
    weights = None if total is None else torch.full((len(targets),), total / len(targets), dtype=torch.float64)
    return LinearModel(
        features, adjusted.reshape(targets.shape), likelihood, weights=weights,
        features_at=lambda inputs: replace(features, inputs=_inputs(inputs)),
        blocks=network.layout.tensor_of(),
        centre=Centre(lambda inputs: torch.cat([network.outputs(batch) for batch in _inputs(inputs)]), network.weights),
    )  # fmt: skip


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


def _inputs(data: Any) -> tuple[Tensor, ...]:
    if isinstance(data, Tensor):
        return tuple(data.split(128))
    batches = data if isinstance(data, Batches) else as_batches(data)
    return tuple(inputs for inputs, _ in batches)


def _checked(network: Network, inputs: Tensor) -> Tensor:
    """Outputs, after two passes that must agree to the bit."""
    outputs, again = network.outputs(inputs), network.outputs(inputs)
    if not isinstance(outputs, Tensor) or len(outputs) != len(inputs):
        raise ValueError("the network must return one tensor with one row per input")
    if not torch.equal(outputs, again):
        raise ValueError("two calls of the network differ: it is random, and a posterior needs a function")
    if not bool(outputs.isfinite().all()):
        raise ValueError("the network's outputs are NaN or infinite for some inputs")
    return outputs


def _targets(targets: Tensor, outputs: Tensor) -> Tensor:
    if targets.numel() != outputs.numel() or len(targets) != len(outputs):
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: "
            "expected one number per output"
        )
    return targets.double().reshape(outputs.shape if outputs.ndim <= 2 else (len(outputs), -1))
