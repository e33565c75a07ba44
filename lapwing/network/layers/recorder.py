"""One pass through a network in which every use of chosen weights is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lapwing.network.layers.kinds import Convolution, Elementwise, Embedding, Kind, Linear, Shift


@final
@dataclass(frozen=True, eq=False)
class LayerCall:
    """What a function of torch does with weights: its kind, and its arguments in their roles."""

    kind: Kind
    inputs: Tensor  # what the weight is multiplied with
    weight: Tensor | None
    bias: Tensor | None


@final
@dataclass(frozen=True, eq=False)
class Use:
    """One use of chosen weights by a layer."""

    kind: Kind
    inputs: Tensor  # what the weight was multiplied with, detached
    version: int  # of the inputs: they may be written to later
    weight: str | None  # names, where chosen
    bias: str | None
    has_bias: bool  # chosen or not
    output: GradientEdge  # kept as it was: a later operation in place does not move it
    shape: torch.Size

    @property
    def is_intact(self) -> bool:
        """Whether the inputs are still what the layer saw."""
        return self.inputs._version == self.version


Arguments = Mapping[str, Any]  # of a function, by torch's names
Reader = Callable[[Arguments], LayerCall | None]  # None where weights are used in another way


@final
class Recorder(TorchFunctionMode):
    """Notes the uses of chosen weights while it is entered: those by a layer, and names of what is used otherwise."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.uses: list[Use] = []
        self.others: list[tuple[str, str]] = []  # of a weight, and of the function that used it

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> Recorder:
        """A recorder of the uses of these tensors."""
        return Recorder({id(tensor): name for name, tensor in weights.items()})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's own value."""
        del types
        kwargs = kwargs or {}
        used = [self.names[id(part)] for part in _flat((args, kwargs)) if id(part) in self.names]
        value = func(*args, **kwargs)
        if not used or not any(isinstance(part, Tensor) for part in _flat(value)):
            return value  # no weight, or only its shape
        layer = self._layer(func, args, kwargs)
        known = [] if layer is None else [self.names.get(id(part)) for part in (layer.weight, layer.bias)]
        self.others += [(name, getattr(func, "__name__", str(func))) for name in used if name not in known]
        return value if layer is None else self._noted(layer, value)

    def _layer(self, func: Any, args: Any, kwargs: Any) -> LayerCall | None:
        if func in SUMS:
            return _sum(args, self.names) if len(args) == 2 and not kwargs else None
        if func not in READERS:
            return None
        places, read = READERS[func]
        return read({**dict(zip(places, args, strict=False)), **kwargs})

    def _noted(self, layer: LayerCall, value: Tensor) -> Tensor:
        """Note a layer's output, and pass it on so that it may be written to."""
        weight, bias = (self.names.get(id(part)) for part in (layer.weight, layer.bias))
        fresh = not value.requires_grad
        value = value.requires_grad_() if fresh else value
        inputs = layer.inputs.detach()
        edge, has_bias = get_gradient_edge(value), layer.bias is not None
        self.uses.append(Use(layer.kind, inputs, inputs._version, weight, bias, has_bias, edge, value.shape))
        return value.clone() if fresh else value


def _linear(given: Arguments) -> LayerCall:
    return LayerCall(Linear(), given["input"], given["weight"], given.get("bias"))


def _convolution(given: Arguments) -> LayerCall | None:
    """Of a convolution or of its transpose, which has an `output_padding`."""
    kernel = tuple(given["weight"].shape[2:])
    dims = len(kernel)
    if given["input"].ndim != dims + 2:  # without an axis of data
        return None
    stride, dilation = _sizes(given.get("stride", 1), dims), _sizes(given.get("dilation", 1), dims)
    more = None if given.get("output_padding") is None else _sizes(given["output_padding"], dims)
    margins = _margins(given.get("padding", 0), kernel, dilation)
    kind = Convolution(kernel, stride, margins, dilation, given.get("groups", 1), more)
    return LayerCall(kind, given["input"], given["weight"], given.get("bias"))


def _transposed(given: Arguments) -> LayerCall | None:
    return _convolution({"output_padding": 0, **given})


def _embedding(given: Arguments) -> LayerCall | None:
    if given.get("scale_grad_by_freq") or given.get("max_norm") is not None:
        return None
    entry = given.get("padding_idx")
    kind = Embedding(-1 if entry is None else entry % len(given["weight"]))
    return LayerCall(kind, given["input"], given["weight"], None)


def _normalisation(function: Callable[..., Tensor], options: tuple[str, ...]) -> Reader:
    """Of a normalisation: what the same one makes without weights, of which w ⊙ … + b is made last."""

    def read(given: Arguments) -> LayerCall:
        with torch.no_grad():
            plain = function(given["input"], **{name: given[name] for name in options if name in given})
        axes = len(given["normalized_shape"]) if "normalized_shape" in given else None
        return LayerCall(Elementwise(axes), plain, given.get("weight"), given.get("bias"))

    return read


def _batch_norm(given: Arguments) -> LayerCall | None:
    if given.get("training") or given["running_mean"] is None:  # outputs depend on the other data of a batch
        return None
    return _normalisation(F.batch_norm, ("running_mean", "running_var", "eps"))(given)


def _sum(terms: tuple[Any, Any], names: Mapping[int, str]) -> LayerCall | None:
    """A tensor of weights added to every datum, as positions are."""
    weight, other = terms if id(terms[0]) in names else terms[::-1]
    if not isinstance(other, Tensor):
        return None
    of_all = weight.ndim == other.ndim and weight.shape[:1] == (1,)
    if not (of_all or weight.ndim < other.ndim) or torch.broadcast_shapes(weight.shape, other.shape) != other.shape:
        return None
    return LayerCall(Shift(weight.shape[1:] if of_all else weight.shape), other, None, weight)


def _sizes(given: Any, dims: int) -> tuple[int, ...]:
    return tuple(given) * (dims if len(given) == 1 else 1) if isinstance(given, (tuple, list)) else (given,) * dims


def _margins(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    if not isinstance(padding, str):
        return tuple((one, one) for one in _sizes(padding, len(kernel)))
    totals = [gap * (size - 1) if padding == "same" else 0 for size, gap in zip(kernel, dilation, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def _flat(nested: Any) -> Iterator[Any]:
    if isinstance(nested, dict):
        nested = tuple(nested.values())
    if isinstance(nested, (tuple, list)):
        for part in nested:
            yield from _flat(part)
    else:
        yield nested


WEIGHTS = ("input", "weight", "bias")
CONVOLVED = ((*WEIGHTS, "stride", "padding", "dilation", "groups"), _convolution)
TRANSPOSED = ((*WEIGHTS, "stride", "padding", "output_padding", "groups", "dilation"), _transposed)
STATISTICS = ("running_mean", "running_var", "use_input_stats", "eps")
RUNNING = ("input", "running_mean", "running_var", "weight", "bias")
SHAPED = ("input", "normalized_shape", "weight")
PRODUCTS: dict[Any, tuple[tuple[str, ...], Reader]] = {  # whose output is linear in the weight
    F.linear: (WEIGHTS, _linear),
    F.conv1d: CONVOLVED,
    F.conv2d: CONVOLVED,
    F.conv3d: CONVOLVED,
    F.conv_transpose1d: TRANSPOSED,
    F.conv_transpose2d: TRANSPOSED,
    F.conv_transpose3d: TRANSPOSED,
}
READERS: dict[Any, tuple[tuple[str, ...], Reader]] = {
    **PRODUCTS,
    F.embedding: (("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"), _embedding),
    F.layer_norm: ((*SHAPED, "bias", "eps"), _normalisation(F.layer_norm, ("normalized_shape", "eps"))),
    F.rms_norm: ((*SHAPED, "eps"), _normalisation(F.rms_norm, ("normalized_shape", "eps"))),
    F.group_norm: (
        ("input", "num_groups", "weight", "bias", "eps"),
        _normalisation(F.group_norm, ("num_groups", "eps")),
    ),
    F.batch_norm: ((*RUNNING, "training", "momentum", "eps"), _batch_norm),
    F.instance_norm: ((*RUNNING, "use_input_stats", "momentum", "eps"), _normalisation(F.instance_norm, STATISTICS)),
}
SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
