"""The Jacobian of a batch from what every layer saw and what the outputs feel of it: one reverse pass per output.

Where weights enter a layer linearly, s = W a, the Jacobian of output o is the product of a and ∂o/∂s. Both are found
once per batch and then serve any number of columns, without another pass through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

COLUMNS = 64  # worked on at once by a layer that keeps its factors


class Unfactored(Exception):
    """Some weight enters the network in a way that has no factored form; carries the name of the function."""


@final
@dataclass(frozen=True, eq=False)
class FactorRows:
    """Dense rows of the Jacobian with respect to one tensor."""

    name: str
    matrix: Tensor  # (b · c, weights)

    def times(self, x: Tensor) -> Tensor:  # (weights, k) -> (b · c, k)
        return self.matrix @ x

    def transposed(self, y: Tensor) -> Tensor:  # (b · c, k) -> (weights, k)
        return (y.mT @ self.matrix).mT


@final
@dataclass(frozen=True, eq=False)
class Tokens:
    """The matrix of a linear layer, by its inputs and the gradients at its outputs."""

    name: str
    inputs: Tensor  # (b, tokens, in)
    gradients: Tensor  # (b, c, tokens, out)

    def times(self, x: Tensor) -> Tensor:  # (out · in, k) -> (b · c, k)
        return torch.cat([self._times(part) for part in x.split(COLUMNS, dim=1)], dim=1)

    def transposed(self, y: Tensor) -> Tensor:  # (b · c, k) -> (out · in, k)
        return torch.cat([self._transposed(part) for part in y.split(COLUMNS, dim=1)], dim=1)

    def _times(self, x: Tensor) -> Tensor:
        (b, c, tokens, out), k = self.gradients.shape, x.shape[1]
        tangents = self.inputs @ x.reshape(out, -1, k).permute(1, 2, 0).reshape(-1, k * out)  # (b, tokens, k · out)
        moved = tangents.reshape(b, tokens, k, out).transpose(1, 2).reshape(b, k, tokens * out)
        return (self.gradients.reshape(b, c, tokens * out) @ moved.mT).reshape(b * c, k)

    def _transposed(self, y: Tensor) -> Tensor:
        (b, c, tokens, out), k = self.gradients.shape, y.shape[1]
        felt = y.reshape(b, c, k).mT @ self.gradients.reshape(b, c, tokens * out)  # (b, k, tokens · out)
        felt = felt.reshape(b, k, tokens, out).permute(1, 3, 0, 2).reshape(k * out, b * tokens)
        return (felt @ self.inputs.reshape(b * tokens, -1)).reshape(k, -1).mT


Terms = Callable[[Tensor, float], list[FactorRows | Tokens]]  # of gradients (b, c, …) for so many columns


@final
@dataclass(frozen=True, eq=False)
class JacobianFactors:
    """The Jacobian of one batch as a sum of terms."""

    outputs: Tensor  # (b, c)
    terms: list[FactorRows | Tokens]
    gradients: int  # numbers that the gradients at all layers held before they became terms


@final
@dataclass(frozen=True, eq=False)
class _Use:
    """One use of weights: how their rows follow from the gradients at its output (b, c, …)."""

    edge: GradientEdge
    shape: torch.Size
    terms: Terms
    seen: Tensor | None  # what the layer saw; must not have been written to since
    version: int


@final
class _Tracer(TorchFunctionMode):
    """Watches a forward pass for uses of chosen weights."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.uses = names, list[_Use]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [
            part for arg in (*args, *kwargs.values()) for part in (arg if isinstance(arg, (tuple, list)) else [arg])
        ]
        if not any(id(arg) in self.names for arg in flat):
            return func(*args, **kwargs)
        if func in RULES:
            return RULES[func](self, *args, **kwargs)
        value = func(*args, **kwargs)
        if any(isinstance(part, Tensor) for part in (value if isinstance(value, (tuple, list)) else [value])):
            raise Unfactored(getattr(func, "__name__", str(func)))
        return value  # a shape, a dtype, …

    def name(self, tensor: Any) -> str | None:
        return self.names.get(id(tensor))

    def use(self, value: Tensor, seen: Tensor | None, terms: Terms) -> Tensor:
        """Remember a layer's output, and pass it on so that it may be written to."""
        fresh = not value.requires_grad
        value = value.requires_grad_() if fresh else value
        version = 0 if seen is None else seen._version
        self.uses.append(_Use(get_gradient_edge(value), value.shape, terms, seen, version))
        return value.clone() if fresh else value


def factor(
    function: Callable[[dict[str, Tensor]], Tensor], weights: dict[str, Tensor], columns: float
) -> JacobianFactors:
    """The outputs and the terms whose sum is the Jacobian, in the form that is cheapest for so many columns.

    Every datum must depend on its own inputs alone. Raises `Unfactored` where some weight is used otherwise.
    """
    tracer = _Tracer({id(tensor): name for name, tensor in weights.items()})
    with torch.enable_grad(), tracer:
        outputs = function(weights)
    if any(use.seen is not None and use.seen._version != use.version for use in tracer.uses):
        raise Unfactored("an operation in place")
    if not outputs.requires_grad:
        return JacobianFactors(outputs, [], 0)
    b, c = outputs.shape
    edges, passes = [use.edge for use in tracer.uses], []
    for output in range(c):
        ahead = output < c - 1
        passes.append(torch.autograd.grad(outputs[:, output].sum(), edges, retain_graph=ahead, allow_unused=True))
    felt = [list(gradients) for gradients in zip(*passes, strict=True)]  # by use, so that each can be let go
    passes.clear()
    terms: list[FactorRows | Tokens] = []
    for use in tracer.uses:
        gradients = felt.pop(0)
        if all(gradient is None for gradient in gradients):
            continue
        if use.shape[0] % b:
            raise Unfactored("a layer whose rows are not those of the data")
        like = next(gradient for gradient in gradients if gradient is not None)
        parts = [torch.zeros_like(like) if gradient is None else gradient for gradient in gradients]
        whole = torch.stack([part.reshape(b, use.shape[0] // b, *use.shape[1:]) for part in parts], dim=1)
        del gradients, like, parts
        terms += use.terms(whole if use.shape[0] != b else whole[:, :, 0], columns)
    return JacobianFactors(outputs.detach(), terms, c * sum(use.shape.numel() for use in tracer.uses))


def _linear(tracer: _Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    matrix, shift, seen = tracer.name(weight), tracer.name(bias), x.detach()

    def terms(gradients: Tensor, columns: float) -> list[FactorRows | Tokens]:
        b, c, out = gradients.shape[0], gradients.shape[1], gradients.shape[-1]
        g, a = gradients.reshape(b, c, -1, out), seen.reshape(b, -1, seen.shape[-1])
        tokens, wide = a.shape[1:]
        if matrix is None:
            return _shift(shift, g.sum(2))
        dense = columns == torch.inf or c * tokens + 2 * columns * c < 2 * columns * tokens * (1 + c / wide)
        rows = (g.mT.reshape(b, c * out, tokens) @ a).reshape(b * c, out * wide) if dense else None
        own = Tokens(matrix, a, g) if rows is None else FactorRows(matrix, rows)
        return [own, *_shift(shift, g.sum(2))]

    return tracer.use(F.linear(x, weight, bias), seen if matrix else None, terms)


def _conv2d(
    tracer: _Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    if isinstance(padding, str) or x.ndim != 4:
        raise Unfactored("conv2d with padding by name or without a batch")
    filters, shift, seen = tracer.name(weight), tracer.name(bias), x.detach()
    value = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    patches = partial(F.unfold, seen, weight.shape[2:], dilation, padding, stride)
    return tracer.use(value, seen if filters else None, _convolved(filters, shift, patches, groups))


def _conv1d(
    tracer: _Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    if isinstance(padding, str) or x.ndim != 3:
        raise Unfactored("conv1d with padding by name or without a batch")
    one = [value[0] if isinstance(value, (tuple, list)) else value for value in (stride, padding, dilation)]
    filters, shift, seen = tracer.name(weight), tracer.name(bias), x.detach()
    value = F.conv1d(x, weight, bias, stride, padding, dilation, groups)
    patches = partial(F.unfold, seen[:, :, None], (1, weight.shape[2]), (1, one[2]), (0, one[1]), (1, one[0]))
    return tracer.use(value, seen if filters else None, _convolved(filters, shift, patches, groups))


def _convolved(filters: str | None, shift: str | None, patches: Callable[[], Tensor], groups: int) -> Terms:
    """Terms of a convolution: gradients of its outputs times the patches that its filters saw."""

    def terms(gradients: Tensor, columns: float) -> list[FactorRows | Tokens]:  # noqa: ARG001
        b, c, out = gradients.shape[:3]
        g = gradients.reshape(b, c, groups, out // groups, -1)
        found: list[FactorRows | Tokens] = []
        if filters is not None:
            seen = patches().reshape(b, groups, -1, g.shape[-1])
            each = [g[:, :, i].reshape(b, -1, g.shape[-1]) @ seen[:, i].mT for i in range(groups)]
            rows = torch.stack([part.reshape(b, c, -1) for part in each], dim=2) if groups > 1 else each[0]
            found.append(FactorRows(filters, rows.reshape(b * c, -1)))
        return found + _shift(shift, g.sum(-1).reshape(b, c, out))

    return terms


def _affine(tracer: _Tracer, plain: Tensor, weight: Tensor | None, bias: Tensor | None, channels: bool) -> Tensor:
    """weight · plain + bias, along the second axis or along the last ones."""
    scale, shift, seen = tracer.name(weight), tracer.name(bias), plain.detach()
    around = [1] * (plain.ndim - 2) if channels else []
    value = plain if weight is None else plain * weight.reshape(-1, *around) if channels else plain * weight
    value = value if bias is None else value + bias.reshape(-1, *around) if channels else value + bias

    def terms(gradients: Tensor, columns: float) -> list[FactorRows | Tokens]:  # noqa: ARG001
        first = 2 if channels else gradients.ndim - len((weight if weight is not None else bias).shape)  # type: ignore[union-attr]
        axes = tuple(range(3, gradients.ndim)) if channels else tuple(range(2, first))
        found = _shift(scale, _summed(gradients * seen[:, None], axes))
        return found + _shift(shift, _summed(gradients, axes))

    return tracer.use(value, seen if scale else None, terms)


def _layer_norm(
    tracer: _Tracer, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return _affine(tracer, F.layer_norm(x, shape, None, None, eps), weight, bias, channels=False)


def _rms_norm(tracer: _Tracer, x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    return _affine(tracer, F.rms_norm(x, shape, None, eps), weight, None, channels=False)


def _group_norm(
    tracer: _Tracer, x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return _affine(tracer, F.group_norm(x, groups, None, None, eps), weight, bias, channels=True)


def _batch_norm(
    tracer: _Tracer, x: Tensor, mean: Any, variance: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if training or mean is None:
        raise Unfactored("batch_norm by the statistics of a batch")
    return _affine(
        tracer, F.batch_norm(x, mean, variance, None, None, False, momentum, eps), weight, bias, channels=True
    )


def _add(tracer: _Tracer, x: Any, y: Any) -> Tensor:
    """A tensor of weights added to every datum, as positions are."""
    weight, other = (x, y) if tracer.name(x) is not None else (y, x)
    if (
        not isinstance(other, Tensor)
        or tracer.name(other) is not None
        or weight.ndim >= other.ndim + (weight.shape[:1] == (1,))
    ):
        raise Unfactored("a sum of weights")
    name, value = tracer.name(weight), other + weight
    if value.shape != other.shape:
        raise Unfactored("a sum that repeats the data")

    def terms(gradients: Tensor, columns: float) -> list[FactorRows | Tokens]:  # noqa: ARG001
        inner = weight.shape if weight.ndim < other.ndim else weight.shape[1:]
        first = gradients.ndim - len(inner)
        axes = tuple(a for a in range(2, gradients.ndim) if a < first or inner[a - first] != gradients.shape[a])
        return _shift(name, _summed(gradients, axes))

    return tracer.use(value, None, terms)


class elementary_norms(TorchFunctionMode):
    """Inside, normalisation layers are made of sums and products.

    Torch's own forward derivatives of them hold the mean and the spread of the inputs fixed: right as numbers, wrong
    when differentiated once more with respect to the inputs.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ELEMENTARY.get(func, func)(*args, **(kwargs or {}))


def _plain_layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    value = _standardised(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    value = value if weight is None else value * weight
    return value if bias is None else value + bias


def _plain_group_norm(x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    value = _standardised(x.reshape(len(x), groups, -1), (2,), eps).reshape(x.shape)
    around = (-1, *[1] * (x.ndim - 2))
    value = value if weight is None else value * weight.reshape(around)
    return value if bias is None else value + bias.reshape(around)


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()


def _shift(name: str | None, rows: Tensor) -> list[FactorRows | Tokens]:
    return [] if name is None else [FactorRows(name, rows.reshape(rows.shape[0] * rows.shape[1], -1))]


def _summed(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    return values.sum(axes) if axes else values


RULES: dict[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.conv1d: _conv1d,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    torch.add: _add,
    Tensor.add: _add,
    Tensor.__add__: _add,
    Tensor.__radd__: _add,
}
ELEMENTARY: dict[Any, Callable[..., Tensor]] = {F.layer_norm: _plain_layer_norm, F.group_norm: _plain_group_norm}
