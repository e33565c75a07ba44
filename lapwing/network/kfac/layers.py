"""The layers of a network whose per-example gradients are known, from the uses of their weights in a pass.

Σ a aᵀ over every position of a convolution is made without its unfolded input. Two places of the kernel that are
equally far apart see the same pairs of pixels, but for those at the margins. So the input is unfolded in every
direction but the first, and a product is made for each distance along that one, not for each pair of places: a third
of the work and of the memory for a kernel of height three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.network.layers.kinds import Convolution, Kind, Shift
from lapwing.network.layers.recorder import Use
from lapwing.network.parameters import Layout

Key = tuple[str | None, str | None]  # names of a weight and a bias


@final
@dataclass(frozen=True, eq=False)
class KnownLayer:
    """Weights of one layer, used once or often, with gradient Σ_t g_t a_tᵀ over the positions t of a datum.

    g is the gradient in the layer's output, a its input with a one appended for the bias. A grouped convolution has
    one such matrix per group; a normalisation layer has a vector, its gradient the sum of g ⊙ [x̂, 1].
    """

    name: str
    kind: Kind
    key: Key
    index: Tensor  # (groups, o, i), places in the flat vector of all named tensors
    axis: int = 0  # of the data, in what the layer takes and returns

    @property
    def weight(self) -> bool:
        """Whether the weight is in it."""
        return self.key[0] is not None

    @property
    def bias(self) -> bool:
        """Whether the bias is in it."""
        return self.key[1] is not None

    def is_used(self, use: Use) -> bool:
        """Whether a use is one of this layer."""
        return all(mine is None or mine == name for mine, name in zip(self.key, (use.weight, use.bias), strict=True))

    def features(self, use: Use, data: int) -> Tensor:  # (groups, data, positions, i)
        """What the weights are multiplied with at every position: an unfolded image, or the input itself."""
        if use.kind.is_vector:
            return use.kind.features(use.inputs, data, self.axis)
        parts = [use.kind.features(use.inputs, data, self.axis)] if self.weight else []
        if self.bias:
            parts.append(use.kind.ones(use.shape, data, use.inputs))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def signals(self, use: Use, gradient: Tensor, data: int) -> Tensor:  # (groups, data, positions, o)
        """The gradient in the layer's output, position by position."""
        return use.kind.signals(gradient, data, self.axis)


def find(uses: Sequence[Use], layout: Layout, shapes: dict[str, torch.Size]) -> tuple[KnownLayer, ...]:
    """The layers that use chosen weights, by the shapes of those."""
    starts = dict(zip(layout.names, torch.tensor([0, *layout.sizes]).cumsum(0).tolist(), strict=False))
    found = []
    for key, owners in _split([use for use in uses if not isinstance(use.kind, Shift)]):
        kind = owners[0].kind
        if all((type(use.kind), use.kind.groups) == (type(kind), kind.groups) for use in owners):
            found.append(KnownLayer(_name(key, owners), kind, key, _index(key, kind, starts, shapes)))
    return tuple(found)


def _split(uses: Sequence[Use]) -> Iterator[tuple[Key, list[Use]]]:
    """Uses by their weights; where only one of weight and bias is shared, each is for itself."""
    keys = list(dict.fromkeys((use.weight, use.bias) for use in uses))
    seen = [name for key in keys for name in key if name is not None]
    merged: dict[Key, list[Use]] = {}
    for use in uses:
        shared = any(seen.count(name) > 1 for name in (use.weight, use.bias) if name is not None)
        for key in ((use.weight, None), (None, use.bias)) if shared else ((use.weight, use.bias),):
            if key != (None, None):
                merged.setdefault(key, []).append(use)
    yield from merged.items()


def _name(key: Key, owners: Sequence[Use]) -> str:
    """The module's, where all of its weights are in the layer; else that of the weight."""
    full = key[0] or key[1] or ""
    whole = None not in key or not any(use.has_bias for use in owners)
    return full.rpartition(".")[0] or full if whole else full


def _index(key: Key, kind: Kind, starts: dict[str, int], shapes: dict[str, torch.Size]) -> Tensor:
    weight, bias = key
    parts = [] if weight is None else [kind.index(shapes[weight]) + starts[weight]]
    parts += [] if bias is None else [kind.bias_index(shapes[bias].numel()) + starts[bias]]
    return torch.cat(parts, dim=-1)


def in_strips(layer: KnownLayer, uses: list[Use]) -> bool:
    """Whether `second_moment` serves a layer: its kernel goes down by single pixels."""
    return layer.weight and all(_goes_down_by_one(use.kind) for use in uses)


def _goes_down_by_one(kind: Kind) -> bool:
    if not isinstance(kind, Convolution) or not kind.in_order:
        return False
    return kind.stride[0] == kind.dilation[0] == 1 and kind.kernel[0] > 1


def second_moment(layer: KnownLayer, use: Use, counts: Tensor) -> Tensor:  # (groups, i, i), float64
    """Σ count · a aᵀ over data and positions, a with a one appended for the bias."""
    assert isinstance(use.kind, Convolution)
    right = use.kind.strips(use.inputs)
    each = counts.repeat_interleave(len(use.inputs) // len(counts))
    weights = each.to(right).repeat_interleave(right.shape[3] // len(each))
    left = right * weights if bool((counts != 1).any()) else right
    groups, size, tall, _ = right.shape
    kernel, channels = use.kind.kernel[0], use.inputs.shape[1] // groups
    height, places = tall - kernel + 1, size // channels
    total = right.new_zeros(groups, channels, kernel, places, channels, kernel, places, dtype=torch.float64)
    for distance in range(kernel):
        found = _windows(left, right, distance, kernel - distance, height)
        for first, block in enumerate(found):
            block = block.reshape(groups, channels, places, channels, places)
            total[:, :, first, :, :, first + distance] = block
            total[:, :, first + distance, :, :, first] = block.permute(0, 3, 4, 1, 2)
    total = total.reshape(groups, size * kernel, size * kernel)
    if not layer.bias:
        return total
    sums = left.double().sum(3).unfold(2, height, 1).sum(3).reshape(groups, channels, places, kernel)
    column, one = sums.mT.reshape(groups, -1, 1), total.new_full((groups, 1, 1), height * float(weights.sum()))
    return torch.cat([torch.cat([total, column], dim=2), torch.cat([column.mT, one], dim=2)], dim=1)


def _windows(left: Tensor, right: Tensor, distance: int, windows: int, height: int) -> list[Tensor]:  # (groups, i, i)
    """Σ left_q right_{q + distance}ᵀ over q from u to u + height, for every u below `windows`."""

    def summed(start: int, stop: int) -> Tensor:
        ahead = right[:, :, start + distance : stop + distance].flatten(2)
        return (left[:, :, start:stop].flatten(2) @ ahead.mT).double()

    if height < windows:
        return [summed(u, u + height) for u in range(windows)]
    core = summed(windows - 1, height)  # in every window
    before = [summed(q, q + 1) for q in range(windows - 1)]
    after = [summed(height + q, height + q + 1) for q in range(windows - 1)]
    return [core + sum(before[u:]) + sum(after[:u]) for u in range(windows)]
