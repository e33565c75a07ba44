"""Σ a aᵀ over every position of a convolution, without its unfolded input.

Two places of the kernel that are equally far apart see the same pairs of pixels, but for those at the margins. So the
input is unfolded in every direction but the first, and a product is made for each distance along that one, not for
each pair of places: a third of the work and of the memory for a kernel of height three.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.network.kfac.layers import KnownLayer
from lapwing.network.layers.kinds import Convolution, Kind
from lapwing.network.layers.recorder import Use


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
