"""Which tensor of what a network returns its outputs are, and how their axes lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, final

from torch import Tensor

from lapwing.network.input_tree import outline

Output = str | int | Callable[[Any], Tensor] | None
USUAL = "logits"


@final
@dataclass(frozen=True, eq=False)
class View:
    """A choice among what a network returns, and the axis of its classes, which comes last in rows of a Jacobian."""

    output: Output = None
    dim: int = -1

    def raw(self, returned: Any) -> Tensor:  # (b, *shape)
        """The outputs as the network has them."""
        return chosen(returned, self.output)

    def rows(self, outputs: Tensor) -> Tensor:  # (b, *shape) -> (b, c)
        """One row per datum, the classes of one place side by side."""
        ordered = outputs if self.dim == -1 else outputs.movedim(self.dim, -1)
        return ordered.reshape(len(outputs), -1)


AS_IT_IS = View()


def chosen(returned: Any, output: Output = None) -> Tensor:
    """The tensor that `output` names: a key or attribute, a place in a tuple, or a function of what is returned.

    By default it is the tensor itself, the entry called "logits", or the only tensor there is.

    >>> import torch
    >>> chosen({"loss": torch.zeros(()), "logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if isinstance(returned, Tensor) and output is None:
        return returned
    if callable(output):
        found = output(returned)
    elif output is None:
        found = _usual(returned)
    else:
        entries = _entries(returned)
        if output not in entries:
            raise ValueError(
                f"the network returns {_told(returned)}, which has no {output!r}: output= is one of {list(entries)}, "
                "or a function"
            )
        found = entries[output]
    if not isinstance(found, Tensor):
        raise ValueError(f"output={output!r} gives a {outline(found)} of what the network returns: expected a tensor")
    return found


def _usual(returned: Any) -> Tensor:
    entries = _entries(returned)
    if isinstance(entries.get(USUAL), Tensor):
        return entries[USUAL]
    tensors = {id(value): value for value in entries.values() if isinstance(value, Tensor)}
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    raise ValueError(
        f"the network returns {_told(returned)}, not one tensor: say which is meant by output=, one of "
        f"{list(entries)}, or a function of what is returned"
    )


def _entries(returned: Any) -> dict[Any, Any]:
    """Parts by key, attribute or place."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if is_dataclass(returned) and not isinstance(returned, type):
        return {item.name: getattr(returned, item.name) for item in fields(returned)}
    if isinstance(returned, tuple) and hasattr(returned, "_fields"):
        return {**dict(zip(returned._fields, returned, strict=True)), **dict(enumerate(returned))}
    return dict(enumerate(returned)) if isinstance(returned, tuple | list) else {}


def _told(returned: Any) -> str:
    entries = _entries(returned)
    return f"a {type(returned).__name__}" + (f" of {outline(entries)}" if entries else "")
