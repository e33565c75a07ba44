"""LoRA adapters, as PEFT puts them into a network: which weights they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

_ADAPTED = re.compile(r"\.(?:lora_[A-Za-z_]+|modules_to_save)\.([^.]+)(?:\.|$)")
_HEAD = ".modules_to_save."


def lora(model: nn.Module, adapter: str | None = None, head: bool = True) -> Callable[[str], bool]:
    """A choice for `select=`: the matrices of a LoRA adapter, and the head that was trained beside them.

    A LoRA layer adds B A to a matrix, and (c A, B / c) is the same network. The g-prior, which is the default of `fit`,
    has a scale for each weight that follows this; a prior with one precision for all weights does not.

    Parameters
    ----------
    model : nn.Module
        A network with adapters of PEFT, not merged.
    adapter : str, optional
        Name of the adapter. By default the only one.
    head : bool
        Whether layers that PEFT keeps beside the adapter (`modules_to_save`) are chosen too.

    Returns
    -------
    callable
        For `select=`: true for the names of the adapter's weights.

    Raises
    ------
    ValueError
        If there is no such adapter, it is merged or not active, its weights take no gradients, or the network's
        weights are quantised.

    Examples
    --------
    Without PEFT, a layer with the same names:

    >>> class Adapted(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.base_layer = nn.Linear(3, 2).requires_grad_(False)
    ...         self.lora_A = nn.ModuleDict({"default": nn.Linear(3, 1, bias=False)})
    ...         self.lora_B = nn.ModuleDict({"default": nn.Linear(1, 2, bias=False)})
    >>> model = nn.Sequential(Adapted(), nn.Linear(2, 2))
    >>> [name for name, _ in model.named_parameters() if lora(model)(name)]
    ['0.lora_A.default.weight', '0.lora_B.default.weight']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"lora is given {model!r}, expected the network, as in select=lora(model)")
    _check_floating(model)
    meant = _named(model, adapter)
    _check_in_use(model, meant)
    chosen = {name: weight for name, weight in _adapted(model, meant) if head or _HEAD not in name}
    still = [name for name, weight in chosen.items() if not weight.requires_grad]
    if still:
        raise ValueError(
            f"{len(still)} of {len(chosen)} weights of the adapter take no gradients, such as {still[0]}: load it with "
            "is_trainable=True, or call requires_grad_() on them"
        )
    return lambda name: name in chosen


def _adapted(model: nn.Module, adapter: str) -> Iterator[tuple[str, Tensor]]:
    """The weights of one adapter with their names."""
    for name, weight in model.named_parameters():
        found = _ADAPTED.search(f".{name}")
        if found and found[1] == adapter:
            yield name, weight


def _named(model: nn.Module, adapter: str | None) -> str:
    """The name of the adapter that is meant."""
    matches = (_ADAPTED.search(f".{name}") for name, _ in model.named_parameters() if ".lora_" in f".{name}")
    known = list(dict.fromkeys(found[1] for found in matches if found))
    if not known:
        raise ValueError(
            f"{type(model).__name__} has no LoRA adapter: give the network that peft.get_peft_model returned, before "
            "merge_and_unload()"
        )
    if adapter is None and len(known) > 1:
        raise ValueError(f"the network has the adapters {known}: say which is meant, as in lora(model, {known[0]!r})")
    if adapter is not None and adapter not in known:
        raise ValueError(f"the network has no adapter {adapter!r}, only {known}")
    return adapter or known[0]


def _check_in_use(model: nn.Module, adapter: str) -> None:
    """Refuse an adapter that the network's outputs do not depend on."""
    for name, layer in model.named_modules():
        if adapter in getattr(layer, "merged_adapters", ()):
            raise ValueError(
                f"the adapter {adapter!r} is merged into {name}, whose outputs then ignore it: call unmerge_adapter()"
            )
        parts, active = getattr(layer, "lora_A", ()), getattr(layer, "active_adapters", None)
        off = getattr(layer, "disable_adapters", False) is True
        if active is not None and adapter in parts and (off or adapter not in active):
            raise ValueError(
                f"the adapter {adapter!r} is not active in {name}: call set_adapter({adapter!r}), or "
                "enable_adapter_layers()"
            )


def _check_floating(model: nn.Module) -> None:
    """Refuse weights that are kept in fewer bits: products with their layers have no tangents."""
    for name, layer in model.named_modules():
        kinds = [value.dtype for key, value in layer.named_parameters(recurse=False) if key.startswith("weight")]
        kind = type(layer)
        packed = kind.__module__.startswith(("torch.ao.nn.quantized", "bitsandbytes"))
        if packed or any(not dtype.is_floating_point or dtype.itemsize < 2 for dtype in kinds):
            where = f"{name} ({kind.__name__})" + (f" holds {kinds[0]}" if kinds else "")
            raise ValueError(
                f"the weights of {where} are quantised, and a posterior needs derivatives through them: load the "
                f"network in {torch.float32} or {torch.bfloat16}"
            )
