"""What goes into a network where it is more than one tensor, cut along the data together, and which output is meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call


@final
@dataclass(frozen=True, eq=False)
class InputTree:
    """Tensors in tuples and dictionaries, each with one entry per datum along its first axis.

    Length, indices and `split` are those of a tensor, so that what works on a tensor of inputs works on this.

    >>> pair = InputTree({"left": torch.zeros(5, 2), "right": torch.zeros(5, 3)})
    >>> len(pair), [len(part) for part in pair.split(3)]
    (5, [3, 2])
    """

    parts: Any

    def __post_init__(self) -> None:
        lengths = {name: len(leaf) if leaf.ndim else 0 for name, leaf in leaves(self.parts).items()}
        if not lengths:
            raise ValueError(f"the inputs hold no tensor: {outline(self.parts)}")
        if 0 in {leaf.ndim for leaf in leaves(self.parts).values()} or len(set(lengths.values())) > 1:
            raise ValueError(
                f"the inputs do not agree in their number of data, {outline(self.parts)}: expected the same first axis "
                "for each"
            )

    def __len__(self) -> int:
        return len(next(iter(leaves(self.parts).values())))

    def __getitem__(self, index: Any) -> InputTree:
        found = object.__new__(InputTree)  # one datum without its axis has no length to compare
        object.__setattr__(found, "parts", mapped(self.parts, lambda leaf: leaf[index]))
        return found

    def __iter__(self) -> Iterator[InputTree]:
        return (self[number] for number in range(len(self)))

    def split(self, size: int) -> list[InputTree]:
        """Consecutive parts of at most so many data."""
        return [self[start : start + size] for start in range(0, len(self), size)]


Sample = Tensor | InputTree  # the inputs of some data


def nested(inputs: Any) -> Sample:
    """Inputs as a tensor, or as a nest where they are a tuple, list or dictionary of them."""
    if isinstance(inputs, Tensor | InputTree):
        return inputs
    if isinstance(inputs, np.ndarray):
        return torch.as_tensor(inputs)
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        return nested(inputs[0])
    return InputTree(tensors_in(inputs))


def tensors_in(tree: Any) -> Any:
    """The same tree with what is no tensor left out of its dictionaries; elsewhere that is an error."""
    if isinstance(tree, Tensor):
        return tree
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "fiub":
        return torch.as_tensor(tree)
    if isinstance(tree, Mapping):
        kept = {key: value for key, value in tree.items() if _holds_tensors(value)}
        return {key: tensors_in(value) for key, value in kept.items()}
    if isinstance(tree, tuple | list):
        return tuple(tensors_in(part) for part in tree)
    raise ValueError(
        f"the inputs hold a {type(tree).__name__}: expected tensors, or tuples and dictionaries of tensors"
    )


def _holds_tensors(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return any(_holds_tensors(part) for part in tree.values())
    if isinstance(tree, tuple | list):
        return bool(tree) and all(_holds_tensors(part) for part in tree)
    return isinstance(tree, Tensor) or (isinstance(tree, np.ndarray) and tree.dtype.kind in "fiub")


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The tree with a function of every tensor in its place."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(part, function) for key, part in tree.items()}
    return tuple(mapped(part, function) for part in tree)


def leaves(tree: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor of a tree by the path to it."""
    if isinstance(tree, InputTree):
        return leaves(tree.parts)
    if isinstance(tree, Tensor):
        return {name or "inputs": tree}
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    return {path: leaf for key, part in items for path, leaf in leaves(part, f"{name}.{key}".lstrip(".")).items()}


def outline(tree: Any) -> str:
    """What a batch is made of, for messages."""
    if isinstance(tree, InputTree):
        return outline(tree.parts)
    if isinstance(tree, Tensor | np.ndarray):
        return f"{type(tree).__name__} {tuple(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {outline(part)}" for key, part in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(outline(part) for part in tree[:6]) + (", …" if len(tree) > 6 else "") + ")"
    return type(tree).__name__


def call(model: nn.Module, inputs: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a network is called with.

    A tuple gives its entries in order. A dictionary gives those of its entries that `forward` has a parameter for, by
    name; where it has none for any of them, the dictionary itself, as one argument.

    >>> inputs = InputTree({"input1": torch.zeros(5, 2), "input2": torch.zeros(5, 3), "id": torch.ones(5)})
    >>> list(call(nn.Bilinear(2, 3, 1), inputs)[1])
    ['input1', 'input2']
    """
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if not isinstance(inputs.parts, Mapping):
        return tuple(inputs.parts), {}
    parameters = inspect.signature(model.forward).parameters.values()
    names = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    if any(one.kind == one.VAR_KEYWORD for one in parameters) and names & set(inputs.parts):
        return (), dict(inputs.parts)
    chosen = {key: value for key, value in inputs.parts.items() if key in names}
    return ((), chosen) if chosen else ((dict(inputs.parts),), {})


def outputs_at(model: nn.Module, weights: dict[str, Tensor], inputs: Sample) -> Any:
    """What a network returns for some inputs, with other weights than its own."""
    return functional_call(model, weights, *call(model, inputs))


def as_inputs(inputs: Any) -> Sample:
    """Inputs of a prediction: one tensor, array or list of numbers, or several tensors in a tuple or dictionary."""
    return nested(inputs) if isinstance(inputs, Tensor | InputTree | Mapping | tuple) else torch.as_tensor(inputs)


def joined(parts: list[Sample]) -> Sample:
    """Inputs of several batches after each other; those of one as they are."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)  # type: ignore[arg-type]
    trees = [part.parts for part in parts if isinstance(part, InputTree)]
    return InputTree(_joined(trees))


def _joined(trees: list[Any]) -> Any:
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees)
    if isinstance(first, Mapping):
        return {key: _joined([tree[key] for tree in trees]) for key in first}
    return tuple(_joined(list(parts)) for parts in zip(*trees, strict=True))


def required(model: nn.Module) -> int:
    """How many arguments `forward` cannot do without."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds and one.default is one.empty for one in parameters)


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
