"""The network of a deep image prior: a U-Net with few channels on its skip connections."""

from __future__ import annotations

import itertools
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

SLOPE, CLAMP = 0.2, 15.0  # of the leaky rectifiers; of the pre-sigmoid


@final
class UNet(nn.Module):
    """Convolutions over `len(channels)` scales, each half as fine as the last, and back up by interpolation.

    `channels` are those of the scales, finest first; `skips` those of the 1×1 convolutions that carry every scale but
    the coarsest across, 0 for none. Blocks of 3×3 convolutions are called enter, down.i and up.i; those of 1×1
    convolutions skip.i and leave. `groups` is for group normalisation, 0 for none. In training mode, whole channels are
    dropped with probability `dropout`.

    Parameters
    ----------
    channels : tuple of int
        Of the scales, finest first.
    skips : tuple of int
        Of the 1 × 1 convolutions between scales; 0 for none.
    groups : int
        Of group normalisation; 0 for none.
    sigmoid : bool
        Whether images end between 0 and 1 by a sigmoid.
    dropout : float
        Share of channels that are dropped in training.

    Raises
    ------
    ValueError
        If scales and skips do not fit.

    Examples
    --------
    >>> net = UNet(channels=(8, 8, 8), skips=(4, 4))
    >>> net(torch.zeros(1, 1, 14, 14)).shape, sum(weight.numel() for weight in net.parameters())
    (torch.Size([1, 1, 14, 14]), 5409)
    """

    def __init__(
        self, channels: tuple[int, ...] = (32, 32, 32), skips: tuple[int, ...] = (4, 4), *, groups: int = 0,
        sigmoid: bool = True, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(channels) < 2 or min(channels) < 1 or len(skips) != len(channels) - 1 or min(skips) < 0:
            raise ValueError(
                f"channels are {channels} and skips {skips}: expected two or more scales, and one skip for each but "
                "the coarsest, 0 for none"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}, expected a probability below 1")
        steps = range(len(skips))
        self.sigmoid = sigmoid
        self.enter = _block((1, channels[0]), 1, groups, dropout)
        self.down = nn.ModuleList(
            _block((channels[i], channels[i + 1], channels[i + 1]), 2, groups, dropout) for i in steps
        )
        self.skip = nn.ModuleList(_skip(channels[i], skips[i]) for i in steps)
        self.up = nn.ModuleList(
            _block((channels[i + 1] + skips[i], channels[i], channels[i]), 1, groups, dropout) for i in steps
        )
        self.leave = nn.Conv2d(channels[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:  # (b, 1, size, size)
        """The image, between 0 and 1 with a sigmoid."""
        x, across = self.enter(x), []
        for skip, down in zip(self.skip, self.down, strict=True):
            across.append((skip(x), x.shape[-2:]))
            x = down(x)
        for (side, shape), up in zip(reversed(across), reversed(self.up), strict=True):
            x = interpolate(x, size=shape, mode="bilinear", align_corners=False)
            x = up(torch.cat([x, side], dim=1))
        x = self.leave(x)
        return x.clamp(-CLAMP, CLAMP).sigmoid() if self.sigmoid else x


def _block(channels: tuple[int, ...], stride: int, groups: int, dropout: float) -> nn.Sequential:
    """3×3 convolutions, the first with a stride, each with what follows it."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(itertools.pairwise(channels)):
        layers.append(nn.Conv2d(before, after, 3, stride=1 if number else stride, padding=1))
        if groups:
            layers.append(nn.GroupNorm(groups, after))
        layers.append(nn.LeakyReLU(SLOPE))
    if dropout:
        layers.append(nn.Dropout2d(dropout))
    return nn.Sequential(*layers)


def _skip(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 1), nn.LeakyReLU(SLOPE)) if after else _Nothing()


class _Nothing(nn.Module):
    """No channels."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :0]
