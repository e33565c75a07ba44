"""Layers whose per-example gradient is a sum of outer products over positions, and what those products are of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapwing.network.parameters import Layout

Kind = Literal["linear", "convolution", "transposed", "embedding", "norm"]
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
CHANNEL_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, *INSTANCE_NORMS)
SHAPE_NORMS = (nn.LayerNorm, nn.RMSNorm)
KINDS: tuple[tuple[Kind, tuple[type[nn.Module], ...]], ...] = (
    ("linear", (nn.Linear,)),
    ("convolution", (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    ("transposed", (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)),
    ("embedding", (nn.Embedding,)),
    ("norm", (*CHANNEL_NORMS, *SHAPE_NORMS)),
)


@final
@dataclass(frozen=True, eq=False)
class Layer:
    """Weights used by one module or several, with gradient Σ_t g_t a_tᵀ over the positions t of a datum.

    g is the gradient in the module's output, a its input with a one appended for the bias. A grouped convolution has
    one such matrix per group; a normalisation layer has a vector, its gradient the sum of g ⊙ [x̂, 1].
    """

    name: str
    kind: Kind
    modules: tuple[Any, ...]
    index: Tensor  # (groups, o, i), places in the flat vector of all named tensors
    weight: bool  # whether the weight is in it,
    bias: bool  # and the bias
    axis: int = 0  # of the data, in what the modules take and return

    def features(self, module: Any, x: Tensor, positions: int, data: int) -> Tensor:  # (groups, data, positions, i)
        """What the weights are multiplied with at every position: an unfolded image, or the input itself."""
        if self.kind == "embedding":
            return _by_datum(x[..., None], self.axis, data)[None]
        if self.kind in ("linear", "norm"):
            rows = _by_datum(_channels_last(module, x), self.axis, data)[None]
            return rows if self.kind == "norm" else self._with_ones(rows)
        nothing = x.new_zeros(module.groups, len(x), 0, positions)
        patches = _patches(module, x, self.kind == "transposed") if self.weight else nothing
        if self.bias:
            patches = torch.cat([patches, x.new_ones(module.groups, len(x), 1, positions)], dim=2)
        return _rows_by_datum(patches.mT, data)

    def signals(self, module: Any, gradient: Tensor, data: int) -> Tensor:  # (groups, data, positions, o)
        """The gradient in the module's output, position by position."""
        if self.kind not in ("convolution", "transposed"):
            return _by_datum(_channels_last(module, gradient), self.axis, data)[None]
        grouped = gradient.reshape(len(gradient), module.groups, -1, gradient[0, 0].numel())
        return _rows_by_datum(grouped.transpose(0, 1).mT, data)

    def _with_ones(self, rows: Tensor) -> Tensor:
        rows = rows if self.weight else rows[..., :0]
        return torch.cat([rows, torch.ones_like(rows[..., :1].sum(-1, keepdim=True))], dim=-1) if self.bias else rows


def find(model: nn.Module, layout: Layout) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """The layers that hold chosen weights, and the names of chosen tensors that belong to none."""
    names = {id(weight): name for name, weight in model.named_parameters() if name in layout.names}
    modules: dict[tuple[str | None, str | None], list[nn.Module]] = {}
    for module in model.modules():
        key = _key(module, names)
        if key != (None, None):
            modules.setdefault(key, []).append(module)
    starts = dict(zip(layout.names, torch.tensor([0, *layout.sizes]).cumsum(0).tolist(), strict=False))
    layers = [layer for key, owners in _split(modules) if (layer := _layer(key, owners, starts)) is not None]
    known = {names[id(weight)] for layer in layers for weight in _weights(layer) if id(weight) in names}
    return tuple(layers), tuple(name for name in layout.names if name not in known)


def normalised(module: Any, x: Tensor) -> Tensor:
    """x̂, which a normalisation layer multiplies with its weight."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, None, None, module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, module.normalized_shape, None, module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, None, None, module.eps)
    if isinstance(module, INSTANCE_NORMS):
        statistics = module.running_mean, module.running_var
        return F.instance_norm(x, *statistics, use_input_stats=statistics[0] is None, eps=module.eps)
    return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)


def kind_of(module: nn.Module) -> Kind | None:
    """What kind of layer a module is, None where its gradients are not known here."""
    if isinstance(module, nn.Embedding) and (module.scale_grad_by_freq or module.max_norm is not None):
        return None
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        return None  # its outputs depend on the other data of a batch
    return next((kind for kind, types in KINDS if isinstance(module, types)), None)


def _key(module: nn.Module, names: dict[int, str]) -> tuple[str | None, str | None]:
    if kind_of(module) is None:
        return None, None
    weight, bias = (names.get(id(getattr(module, part, None))) for part in ("weight", "bias"))
    return weight, bias


Owners = tuple[tuple[str | None, str | None], list[nn.Module]]


def _split(modules: dict[tuple[str | None, str | None], list[nn.Module]]) -> Iterator[Owners]:
    """Modules by their weights; where only one of weight and bias is shared, each is for itself."""
    seen = [name for key in modules for name in key if name is not None]
    merged: dict[tuple[str | None, str | None], list[nn.Module]] = {}
    for (weight, bias), owners in modules.items():
        shared = any(seen.count(name) > 1 for name in (weight, bias) if name is not None)
        for key in ((weight, None), (None, bias)) if shared else ((weight, bias),):
            if key != (None, None):
                merged.setdefault(key, []).extend(owners)
    yield from merged.items()


def _layer(key: tuple[str | None, str | None], owners: list[Any], starts: dict[str, int]) -> Layer | None:
    weight, bias = key
    kinds = {kind_of(module) for module in owners}
    groups = {getattr(module, "groups", 1) for module in owners}
    kind = kinds.pop()
    if kinds or len(groups) > 1 or kind is None:
        return None
    module, parts = owners[0], []
    if weight is not None:
        parts.append(_weight_index(module, kind) + starts[weight])
    if bias is not None:
        places = torch.arange(module.bias.numel()) + starts[bias]
        parts.append(places.reshape(1, 1, -1) if kind == "norm" else places.reshape(*groups, -1, 1))
    whole = None not in key or all(getattr(module, "bias", None) is None for module in owners)
    full = weight or bias or ""
    name, index = full.rpartition(".")[0] or full if whole else full, torch.cat(parts, dim=-1)
    return Layer(name, kind, tuple(owners), index, weight is not None, bias is not None)


def _weight_index(module: Any, kind: Kind) -> Tensor:  # (groups, o, i)
    places = torch.arange(module.weight.numel()).reshape(module.weight.shape)
    if kind == "embedding":
        return places.mT[None]
    if kind == "norm":
        return places.reshape(1, 1, -1)
    if kind == "transposed":  # (inputs, outputs per group, kernel), the kernel run backwards
        grouped = places.flatten(2).flip(-1).unflatten(0, (module.groups, -1))
        return grouped.transpose(1, 2).flatten(2)
    groups = module.groups if kind == "convolution" else 1
    return places.reshape(groups, module.weight.shape[0] // groups, -1)


def _weights(layer: Layer) -> Iterator[Tensor]:
    for module in layer.modules:
        if layer.weight:
            yield module.weight
        if layer.bias:
            yield module.bias


def _channels_last(module: Any, x: Tensor) -> Tensor:
    """The features of a position as the last axis."""
    if isinstance(module, CHANNEL_NORMS):
        return x.movedim(1, -1)
    return x.flatten(-len(module.normalized_shape)) if isinstance(module, SHAPE_NORMS) else x


def _by_datum(x: Tensor, axis: int, data: int) -> Tensor:  # (data, positions, features)
    x = x.transpose(0, axis) if axis else x
    if len(x) % data:
        raise ValueError(f"{len(x)} rows are no multiple of {data} data")
    return x.reshape(data, -1, x.shape[-1])


def _rows_by_datum(x: Tensor, data: int) -> Tensor:  # (groups, rows, positions, features)
    """(groups, data, positions, features); nothing is copied where a datum is a row."""
    groups, rows, positions, size = x.shape
    if rows % data:
        raise ValueError(f"{rows} rows are no multiple of {data} data")
    return x if rows == data else x.reshape(groups, data, rows // data * positions, size)


def _patches(module: Any, x: Tensor, transposed: bool) -> Tensor:  # (groups, rows, i, positions)
    """The input of a convolution under its kernel at every position of the output.

    Positions come last in memory, so that they are copied in long runs.
    """
    dims, step = x.ndim - 2, (1,) * (x.ndim - 2) if transposed else module.stride
    x = _unfolded(module, _spread(module, x) if transposed else padded(module, x), step, range(dims))
    x = x.unflatten(1, (module.groups, -1))  # rows, groups, channels, *positions, *kernel
    x = x.permute(1, 0, 2, *range(3 + dims, 3 + 2 * dims), *range(3, 3 + dims))
    return x.flatten(3 + dims).flatten(2, 2 + dims)


def strips(
    module: Any, x: Tensor
) -> Tensor:  # (groups, channels · rest of the kernel, height, rows · rest of positions)
    """The input of a convolution under its kernel in every direction but the first, of whose height it is."""
    dims = x.ndim - 2
    x = _unfolded(module, padded(module, x), module.stride, range(1, dims)).unflatten(1, (module.groups, -1))
    x = x.permute(1, 2, *range(3 + dims, 2 + 2 * dims), 3, 0, *range(4, 3 + dims))
    return x.flatten(2 + dims).flatten(1, dims)


def padded(module: Any, x: Tensor) -> Tensor:
    """The input of a convolution with its margins."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, _padding(module), mode=mode)


def _unfolded(module: Any, x: Tensor, step: tuple[int, ...], axes: range) -> Tensor:
    for axis in axes:
        gap = module.dilation[axis]
        width = gap * (module.kernel_size[axis] - 1) + 1
        x = x.unfold(2 + axis, width, step[axis])[..., ::gap]
    return x


def _padding(module: Any) -> list[int]:
    """Numbers for F.pad, which begins with the last axis."""
    pairs = []
    for axis, (kernel, gap) in enumerate(zip(module.kernel_size, module.dilation, strict=True)):
        total = gap * (kernel - 1)
        same = (total // 2, total - total // 2)
        padding = module.padding
        pairs.append(((0, 0) if padding == "valid" else same) if isinstance(padding, str) else (padding[axis],) * 2)
    return [number for pair in reversed(pairs) for number in pair]


def _spread(module: Any, x: Tensor) -> Tensor:
    """The input of a transposed convolution with zeros between: a convolution of stride one gives the output."""
    size = [step * (n - 1) + 1 for step, n in zip(module.stride, x.shape[2:], strict=True)]
    spread = x.new_zeros(*x.shape[:2], *size)
    places: Any = (..., *(slice(None, None, step) for step in module.stride))
    spread[places] = x
    numbers = zip(module.kernel_size, module.dilation, module.padding, module.output_padding, strict=True)
    pairs = [(gap * (kernel - 1) - cut, gap * (kernel - 1) - cut + extra) for kernel, gap, cut, extra in numbers]
    return F.pad(spread, [number for pair in reversed(pairs) for number in pair])
