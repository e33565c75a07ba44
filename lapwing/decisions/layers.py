"""What the layers before the last one make of an input, in a few numbers: means and spreads of their channels.

An input may look familiar to the last layer and be strange to the first ones: noise, blur and other contrasts are. So
each part of a network has a score of its own, the Mahalanobis distance of these numbers from those of training data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

PARTS = 5  # of a network at most: layers one after the other share a score
RIDGE = 1e-3  # of the variance, added to correlations so that they can be inverted
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """A list that gets the channels' means and spreads of every layer with weights, in the order of their calls."""
    found: list[Tensor] = []

    def note(module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim > 1:
            found.append(channel_statistics(output, last=isinstance(module, CHANNELS_LAST)))

    own = (module for module in model.modules() if any(True for _ in module.parameters(recurse=False)))
    handles = [module.register_forward_hook(note) for module in own]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def channel_statistics(output: Tensor, *, last: bool) -> Tensor:  # (b, channels) or (b, 2 · channels), float64
    """The mean of every channel over its positions, and its standard deviation where there are several."""
    found = output.detach().double().cpu()
    if found.ndim == 2:
        return found
    channels = (found.movedim(-1, 1) if last else found).flatten(2)
    return torch.cat([channels.mean(2), channels.std(2, correction=0)], dim=1)


def parts_of(layers: list[Tensor]) -> tuple[Tensor, ...]:
    """Layers one after the other, joined to few parts of about as many layers each."""
    count = min(PARTS, len(layers))
    ends = [round(number * len(layers) / count) for number in range(count + 1)] if count else []
    return tuple(torch.cat(layers[start:end], dim=1) for start, end in pairwise(ends))


@final
@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """The squared distance from the mean of some rows in their own covariance, a little stabilised."""

    mean: Tensor  # (k,)
    whitening: Tensor  # (k, k)

    @staticmethod
    def of(rows: Tensor) -> Mahalanobis:
        """From the training data, (n, k)."""
        mean = rows.mean(0)
        std = rows.std(0, correction=0)
        scale = std.clamp_min(1e-6 * std.max().clamp_min(1e-300)).reciprocal()
        scaled = (rows - mean) * scale
        correlation = scaled.mT @ scaled / len(rows) + RIDGE * torch.eye(len(mean), dtype=rows.dtype)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(correlation))
        return Mahalanobis(mean, scale[:, None] * torch.linalg.cholesky((inverse + inverse.mT) / 2))

    def __call__(self, rows: Tensor) -> Tensor:  # (n,)
        """Of new rows."""
        return ((rows - self.mean) @ self.whitening).square().sum(1)
