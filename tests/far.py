"""A device that is not there: numbers of the CPU that say they are elsewhere, and refuse to meet others.

Unlike torch's fake tensors these have values, so whatever looks at numbers on its way can run, and results can be
compared with those of the CPU. Operations on `Far` tensors are done on the CPU inside; what torch refuses for tensors of
two devices is refused here. The device is called "lazy", a name that builds of torch without a GPU can use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy")
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class Far(Tensor):
    """A tensor of the CPU that says it is elsewhere."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "Far":
        made = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=DEVICE,
        )
        made.near = near
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.near.tolist()

    def untyped_storage(self) -> Any:
        return self.near.untyped_storage()

    def __repr__(self) -> str:
        return f"Far({self.near})"


class _Watch(TorchDispatchMode):
    """Makes tensors where they are asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})


@contextmanager
def far_away() -> Iterator[None]:
    """Inside, tensors can be made and moved far away."""
    enabled = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *kind: False if kind == (DEVICE.type,) else enabled(*kind)  # no such name there
    try:
        with _Watch():
            yield
    finally:
        torch.is_autocast_enabled = enabled


def moved(model: nn.Module) -> nn.Module:
    """The same network, far away; tied weights stay tied."""
    seen = dict[int, nn.Parameter]()
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = seen.setdefault(id(weight), nn.Parameter(Far(weight.detach())))
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else Far(buffer)
    return model


def _done(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target, place = kwargs.get("device"), args[0] if args else None
    _check(func, args, kwargs)
    far = any(isinstance(part, Far) for part in tree_leaves((args, kwargs)))
    if target is not None:
        far, kwargs = torch.device(target).type == DEVICE.type, {**kwargs, "device": torch.device("cpu")}
    if func is aten.copy_.default:
        far = isinstance(place, Far)
    run = aten.zeros.default if func is aten._efficientzerotensor.default else func  # which has no numbers
    result = run(
        *tree_map(_near, args), **tree_map(_near, {**kwargs, "pin_memory": None} if "pin_memory" in kwargs else kwargs)
    )
    if not far:
        return result
    if func._schema.name.endswith("_") and not func._schema.name.endswith("__"):
        return place
    return tree_map(lambda part: Far(part) if isinstance(part, Tensor) else part, result)


def _check(func: Any, args: Any, kwargs: Any) -> None:
    parts = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
    if func in COPIES or not any(isinstance(part, Far) for part in parts):
        return
    if func in INDEXING and isinstance(args[0], Far):  # its indices may be on the CPU
        parts = [part for part in tree_leaves(args[2:]) if isinstance(part, Tensor)]
    if any(part.ndim > 0 and not isinstance(part, Far) for part in parts):
        raise RuntimeError(f"expected all tensors to be on the same device, in {func}")


def _near(part: Any) -> Any:
    return part.near if isinstance(part, Far) else part
