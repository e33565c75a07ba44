"""The weights of a network as one flat vector, and which of them are random."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

Select = Callable[[str], bool] | Tensor | None


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Names and shapes of a network's chosen weights, in its own order; tied weights appear once.

    A mask over the flat vector leaves out single weights: they keep their value and have no tangent.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    mask: Tensor | None = None  # (weights of the named tensors,), bool

    @staticmethod
    def of(model: nn.Module, select: Select = None) -> Layout:
        """The layout of the weights that require gradients and that `select` chooses, by name or by a mask."""
        found = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if not (select is None or callable(select) or isinstance(select, Tensor)):
            raise ValueError(
                f"select is {select!r}, expected a function of a weight's name, such as last_layer(model), or a "
                "boolean mask, such as subnetwork(…) gives"
            )
        if callable(select):
            found = {name: weight for name, weight in found.items() if select(name)}
        mask = select if isinstance(select, Tensor) else None
        total = sum(weight.numel() for weight in found.values())
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (total,)):
            raise ValueError(
                f"select is a {mask.dtype} tensor of shape {tuple(mask.shape)}, expected a boolean mask over the "
                f"{total:,} weights that require gradients"
            )
        if total == 0 or (mask is not None and not bool(mask.any())):
            raise ValueError(
                "no weight is selected: give weights requires_grad=True, or let select choose some of "
                f"{[name for name, _ in model.named_parameters()][:6]}"
            )
        return Layout(tuple(found), tuple(weight.shape for weight in found.values()), mask)

    @property
    def sizes(self) -> list[int]:
        """Weights per tensor, chosen or not."""
        return [shape.numel() for shape in self.shapes]

    @property
    def size(self) -> int:
        """Number of chosen weights, p."""
        return sum(self.sizes) if self.mask is None else int(self.mask.sum())

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:  # (p,)
        """Tensors by name to the flat vector of the chosen weights."""
        return self.gather(torch.cat([tensors[name].reshape(-1) for name in self.names]))

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:  # (p,)
        """The flat vector as tensors by name, zero where a weight is not chosen."""
        parts = self.split(self.spread(flat))
        return {name: parts[name].reshape(shape) for name, shape in zip(self.names, self.shapes, strict=True)}

    def unflatten_each(self, rows: Tensor) -> dict[str, Tensor]:  # (k, p)
        """Flat vectors as tensors by name with one more axis in front."""
        parts = self.split(self.spread(rows.mT))
        shapes = zip(self.names, self.shapes, strict=True)
        return {name: parts[name].mT.reshape(len(rows), *shape) for name, shape in shapes}

    def split(self, whole: Tensor) -> dict[str, Tensor]:  # (weights of the named tensors, …)
        """The part of every tensor, as views."""
        return dict(zip(self.names, whole.split(self.sizes), strict=True))

    def gather(self, whole: Tensor) -> Tensor:  # (weights of the named tensors, …) -> (p, …)
        """The chosen weights."""
        return whole if self.mask is None else whole[self.mask.to(whole.device)]

    def spread(self, chosen: Tensor) -> Tensor:  # (p, …) -> (weights of the named tensors, …)
        """All weights of the named tensors, zero where one is not chosen."""
        if self.mask is None:
            return chosen
        whole = chosen.new_zeros(len(self.mask), *chosen.shape[1:])
        whole[self.mask.to(chosen.device)] = chosen
        return whole

    def tensor_of(self) -> Tensor:  # (p,)
        """The number of the tensor that each chosen weight belongs to."""
        numbers = torch.repeat_interleave(torch.arange(len(self.names)), torch.tensor(self.sizes))
        return numbers if self.mask is None else numbers[self.mask.cpu()]

    def layers(self) -> dict[str, Tensor]:
        """Indices of the chosen weights of every layer, by its name: the parent of weight and bias."""
        parents = [name.rpartition(".")[0] or name for name in self.names]
        owner, index = self.tensor_of(), {parent: number for number, parent in enumerate(dict.fromkeys(parents))}
        of_tensor = torch.tensor([index[parent] for parent in parents])[owner]
        groups = {parent: (of_tensor == number).nonzero().flatten() for parent, number in index.items()}
        return {parent: indices for parent, indices in groups.items() if len(indices)}


def matrices_only(model: nn.Module) -> Callable[[str], bool]:
    """A choice for `select=`: matrices and filters, without biases and the vectors of normalisation layers.

    Parameters
    ----------
    model : nn.Module
        The network.

    Returns
    -------
    callable
        For `select=`: true for the names of weights with two axes or more.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> [name for name, _ in model.named_parameters() if matrices_only(model)(name)]
    ['0.weight', '2.weight']
    """
    shapes = {name: weight.ndim for name, weight in model.named_parameters()}
    return lambda name: shapes[name] > 1


def last_layer(model: nn.Module, inputs: Any = None) -> Callable[[str], bool]:
    """A choice for `select=`: weight and bias of the last layer, be it linear or a convolution.

    The last one to be called, where a batch of `inputs` is given to try it on; else the last one in the order of
    `named_modules`, which is wrong for a network that defines its head first.

    Parameters
    ----------
    model : nn.Module
        The network.
    inputs : Tensor, optional
        A batch to run, so that the layer called last is found.

    Returns
    -------
    callable
        For `select=`: true for the names of the last layer's weight and bias.

    Raises
    ------
    ValueError
        If the network has no linear or convolutional layer.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(dim=1)).eval()
    >>> [name for name, _ in model.named_parameters() if last_layer(model)(name)]
    ['2.weight', '2.bias']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"last_layer is given {model!r}, expected the network, as in select=last_layer(model)")
    heads: list[nn.Module] = [module for module in model.modules() if isinstance(module, _HEADS)]
    if not heads:
        raise ValueError(
            f"{type(model).__name__} has no linear or convolutional layer: select its last layer by name, as in "
            "select=lambda name: name.startswith('head.')"
        )
    last = heads[-1] if inputs is None else _last_called(model, heads, inputs)
    own = {id(weight) for weight in last.parameters(recurse=False)}
    chosen = {name for name, weight in model.named_parameters() if id(weight) in own}
    return chosen.__contains__


_HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _last_called(model: nn.Module, heads: list[nn.Module], inputs: Any) -> nn.Module:
    check_model(model)
    called: list[nn.Module] = []
    hooks = []
    try:
        for head in heads:
            hooks.append(head.register_forward_pre_hook(lambda module, _: called.append(module)))  # noqa: PERF401
        with torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ValueError("none of the network's linear or convolutional layers was called: select the last by name")
    return called[-1]


def fingerprint(model: nn.Module | Mapping[str, Tensor]) -> str:
    """Digits that change with any weight or buffer of a network.

    >>> one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> fingerprint(one) == fingerprint(one), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    if isinstance(model, nn.Module):
        model = dict((*model.named_parameters(), *model.named_buffers()))
    digest = hashlib.sha256()
    for name, tensor in model.items():
        flat = tensor.detach().cpu().contiguous()
        digest.update(f"{name}{flat.dtype}{tuple(flat.shape)}".encode())
        digest.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_model(model: Any) -> None:
    """Refuse what is not a network in eval mode with finite weights in single or double precision."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch.nn.Module, got {type(model).__name__}")
    training = [name or type(module).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise ValueError(
            f"the network is in training mode (first: {training[0]}): call model.eval() first, so that dropout is off "
            "and normalisation layers use their running statistics"
        )
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(f"{name} is {tensor.dtype}: convert the network with model.float() first")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinite values: the network did not train")
    dtypes = {str(weight.dtype) for _, weight in model.named_parameters()}
    if len(dtypes) > 1:
        raise ValueError(f"the network's weights have several dtypes, {sorted(dtypes)}: convert it to one")
    devices = {str(tensor.device) for _, tensor in tensors}
    if len(devices) > 1:
        raise ValueError(f"the network's tensors are on several devices, {sorted(devices)}: move it to one")
