"""An encoder made invariant by averaging it over rotations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.warping import Interpolation, warp


def averaged(
    encoder: Callable[[Tensor], Tensor], images: Tensor, count: int, *, half_range: float = math.pi,
    interpolation: Interpolation = "bilinear",
) -> Tensor:  # fmt: skip
    """The mean of an encoder over `count` equally spaced rotations of each picture within ±half_range: (n, …).

    Over the whole circle what is left of a rotation falls as fast as the encoder's higher circular harmonics do; over a
    part of it, a picture and a turned copy of it are averaged over different poses.

    >>> pictures = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    >>> averaged(lambda x: x.flatten(1), pictures, 4).shape
    torch.Size([2, 25])
    """
    if count < 1 or not 0 <= half_range <= math.pi + 1e-9:
        raise ValueError(f"{count} rotations within ±{half_range:g}: expected at least one, and at most ±π")
    steps = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 - 1
    turns = Affine.of(rotation=math.pi).matrix((half_range * steps)[:, None].to(images))
    total = [encoder(warp(images, turn.expand(len(images), 3, 3), interpolation=interpolation)) for turn in turns]
    return torch.stack(total).mean(0)
