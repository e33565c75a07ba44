"""Every tensor of a value changed, however deep it lies: to move what is stored to another device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value with its tensors changed, in dataclasses, tuples, lists and mappings.

    >>> import torch
    >>> map_tensors((torch.ones(2), "name"), lambda tensor: 2 * tensor)
    (tensor([2., 2.]), 'name')
    """
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        return replace(value, **{name: map_tensors(part, change) for name, part in parts.items()})
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(part, change) for part in value)
    if isinstance(value, Mapping):
        return {name: map_tensors(part, change) for name, part in value.items()}
    return value
