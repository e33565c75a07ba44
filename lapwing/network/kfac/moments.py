"""Σ a aᵀ over every position of a convolution, without its unfolded input.

Two places of the kernel that are equally far apart see the same pairs of pixels, but for those at the margins. So the
input is unfolded in every direction but the first, and a product is made for each distance along that one, not for
each pair of places: a third of the work and of the memory for a kernel of height three.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapwing.network.kfac.layers import Layer, strips
from lapwing.network.kfac.tape import Call


def in_strips(layer: Layer, calls: list[Call]) -> bool:
    """Whether `second_moment` serves a layer: its kernel goes down by single pixels."""
    modules = [call.module for call in calls]
    return (
        layer.kind == "convolution"
        and layer.weight
        and all(m.stride[0] == m.dilation[0] == 1 and m.kernel_size[0] > 1 for m in modules)
    )


def second_moment(layer: Layer, call: Call, counts: Tensor) -> Tensor:  # (groups, i, i), float64
    """Σ count · a aᵀ over data and positions, a with a one appended for the bias."""
    module: Any = call.module
    right = strips(module, call.inputs)
    each = counts.repeat_interleave(len(call.inputs) // len(counts))
    weights = each.to(right).repeat_interleave(right.shape[3] // len(each))
    left = right * weights if bool((counts != 1).any()) else right
    groups, size, tall, _ = right.shape
    kernel, channels = module.kernel_size[0], call.inputs.shape[1] // module.groups
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
