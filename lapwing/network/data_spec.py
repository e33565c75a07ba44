"""What the parts of a batch are: inputs, targets, weights and a mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from lapwing.network.input_tree import InputTree, Sample, nested, outline

TARGETS = ("labels", "label", "targets", "target", "y")  # keys that hold targets unless one is named
NO_TARGETS = f"the data have no targets: give pairs of inputs and targets, or a dictionary with one of {TARGETS}"
UNUSED_WEIGHTS = "these data have weights or a mask, which are not used here: pass them without"
Key = str | int


@final
@dataclass(frozen=True, eq=False)
class DataSpec:
    """Data whose batches are dictionaries or tuples, with the key or place of each of their parts.

    `weights` are one number per datum: its likelihood counts to the power of that. `mask` is true where a target
    counts, one per datum or one per target; it may be an input of the network too, as an attention mask is. `inputs`
    are a key or several; by default everything that is neither targets nor weights. Every
    function that takes data takes a `DataSpec`.

    Parameters
    ----------
    data : Dataset, DataLoader, tuple or list of batches
        Batches that are dictionaries or tuples.
    inputs : str, int or tuple, optional
        Key or place of the inputs. Everything else by default.
    targets : str or int, optional
        Key or place of the targets.
    weights : str or int, optional
        Key or place of the examples' weights.
    mask : str or int, optional
        Key or place of a mask that is true where a target counts.

    Examples
    --------
    >>> triples = (torch.zeros(5, 2), torch.zeros(5), torch.ones(5))
    >>> DataSpec(triples, weights=2).batch(triples).weights.shape
    torch.Size([5])
    """

    data: Any
    inputs: Key | tuple[Key, ...] | None = None
    targets: Key | None = None
    weights: Key | None = None
    mask: Key | None = None

    def batch(self, whole: Any) -> Batch:
        """The parts of one batch."""
        raw: Any = whole.parts if isinstance(whole, InputTree) else whole
        if not isinstance(raw, (Mapping, tuple, list)):
            raise ValueError(f"keys are for batches of several parts, and this one is a {outline(raw)}")
        return self._read(raw)

    def _read(self, raw: Any) -> Batch:
        places = list(raw) if isinstance(raw, Mapping) else list(range(len(raw)))
        named = (*(self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)), self.targets, self.weights)
        for key in (*named, self.mask):
            if key is not None and key not in places:
                raise ValueError(f"there is no {key!r} in this batch, {outline(raw)}: expected one of {places}")
        target = self._target(raw, places)
        mask = None if self.mask is None else _tensor(raw[self.mask], "mask")
        weights = None if self.weights is None else _tensor(raw[self.weights], "weights")
        targets = None if target is None else _tensor(raw[target], "targets")
        inputs = self._inputs(raw, [key for key in places if key not in (target, self.weights)])
        return checked(Batch(inputs, targets, weights), mask)

    def _target(self, raw: Any, places: list[Any]) -> Key | None:
        if self.targets is not None:
            return self.targets
        if isinstance(raw, Mapping):
            found = [key for key in TARGETS if key in raw and key not in (self.weights, self.mask)]
            if len(found) > 1:
                raise ValueError(f"{found} may all be targets: say which, DataSpec(data, targets={found[0]!r})")
            return found[0] if found else None
        chosen = (0,) if self.inputs is None else self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)
        free = [key for key in places if key not in (*chosen, self.weights, self.mask)]
        return free[0] if len(free) == 1 else None

    def _inputs(self, raw: Any, left: list[Any]) -> Sample:
        chosen = self.inputs
        if isinstance(chosen, tuple):
            whole = {key: raw[key] for key in chosen} if isinstance(raw, Mapping) else [raw[key] for key in chosen]
            return nested(whole)
        if chosen is not None:
            return nested(raw[chosen])
        if isinstance(raw, Mapping):
            return nested({key: raw[key] for key in left})
        left = [key for key in left if key != self.mask]
        if len(left) != 1:
            raise ValueError(
                f"a batch of {len(raw)} parts, {outline(raw)}: say which are inputs and which the targets, as in "
                "DataSpec(data, inputs=(0, 1), targets=2), or DataSpec(data, weights=2)"
            )
        return nested(raw[left[0]])


class Batch(NamedTuple):
    """Some data: inputs, targets where they are there, and how often each counts where not once."""

    inputs: Sample
    targets: Tensor | None
    weights: Tensor | None  # (b,), or the targets' shape

    @property
    def observed(self) -> Targets:
        """The targets, with their weights where there are some."""
        if self.targets is None:
            raise ValueError(NO_TARGETS)
        return self.targets if self.weights is None else Counted(self.targets, self.weights)


class Counted(NamedTuple):
    """Targets with how often each datum, or each target, counts."""

    targets: Tensor
    weights: Tensor


Targets = Tensor | Counted


def read_batch(raw: Any) -> Batch:
    """A batch without keys: a pair of inputs and targets, a dictionary with targets under a usual name, or inputs."""
    if isinstance(raw, Batch):
        return raw
    if isinstance(raw, Mapping):
        return DataSpec(None).batch(raw)
    if isinstance(raw, Tensor | InputTree | np.ndarray):
        return Batch(nested(raw), None, None)
    if isinstance(raw, tuple | list) and len(raw) == 1:
        return Batch(nested(raw[0]), None, None)
    if not isinstance(raw, tuple | list) or len(raw) != 2:
        raise ValueError(
            f"cannot read a batch that is {outline(raw)}: expected a pair of inputs and targets, or a dictionary; "
            "where there are more parts say what they are, as in DataSpec(data, weights=2) or DataSpec(data, "
            "inputs=(0, 1), targets=2)"
        )
    targets = None if raw[1] is None else _tensor(raw[1], "targets")
    return checked(Batch(nested(raw[0]), targets, None), None)


def checked(batch: Batch, mask: Tensor | None) -> Batch:
    """The batch with its mask in its weights, or an error where the parts do not belong together."""
    n = len(batch.inputs)
    if batch.targets is not None and (batch.targets.ndim == 0 or len(batch.targets) != n):
        raise ValueError(f"{n} inputs and {_count(batch.targets)} targets in a batch: expected as many of each")
    weights = batch.weights
    if weights is not None:
        if weights.numel() != n or len(weights) != n:
            raise ValueError(f"weights of shape {tuple(weights.shape)} for {n} data: expected one number per datum")
        weights = weights.reshape(n).double()
        if not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError("weights must be finite and not negative")
    if mask is None or batch.targets is None:
        return batch._replace(weights=weights)
    shape = batch.targets.shape
    if mask.shape != shape[: mask.ndim] or mask.ndim == 0:
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} does not fit targets of shape {tuple(shape)}: expected one value per "
            "target, or per datum"
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("a mask must be true or false, or 1 and 0; numbers that count are given as weights")
    whole = mask.double().reshape(*mask.shape, *[1] * (len(shape) - mask.ndim)).expand(shape)
    whole = whole if weights is None else whole * weights.reshape(-1, *[1] * (len(shape) - 1))
    return batch._replace(weights=whole)


def _tensor(value: Any, what: str) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the {what} are a {outline(value)}: expected a tensor") from None


def _count(tensor: Tensor) -> str:
    return str(len(tensor)) if tensor.ndim else "no axis of"
