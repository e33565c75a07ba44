"""Outputs chosen by place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

OUTPUTS = 2000  # whose covariance is asked for at once


def places(outputs: Any, shape: tuple[int, ...]) -> Tensor:  # (k,), long
    """The numbers of chosen outputs, given by a boolean mask of their shape or by a list of places in it.

    >>> places([(0, 1), (2, 0)], (3, 2))
    tensor([1, 4])
    """
    chosen = outputs if isinstance(outputs, Tensor) else torch.as_tensor(outputs)
    if chosen.dtype == torch.bool:
        if chosen.shape != shape:
            raise ValueError(f"a mask of shape {tuple(chosen.shape)} does not fit outputs of shape {shape}")
        found = chosen.reshape(-1).nonzero()[:, 0].cpu()
    else:
        chosen = chosen.reshape(-1, 1) if chosen.ndim == 1 and len(shape) == 1 else chosen
        if chosen.ndim != 2 or chosen.shape[1] != len(shape) or chosen.is_floating_point():
            raise ValueError(
                f"places of shape {tuple(chosen.shape)} do not fit outputs of shape {shape}: expected a boolean mask "
                f"of that shape, or a list of places with {len(shape)} indices each"
            )
        sizes = torch.tensor(shape)
        if not bool(((chosen >= 0) & (chosen < sizes)).all()):
            raise ValueError(f"a place lies outside outputs of shape {shape}: indices count from zero")
        steps = torch.tensor([int(sizes[axis + 1 :].prod()) for axis in range(len(shape))])
        found = (chosen * steps).sum(1)
    if not 0 < len(found) <= OUTPUTS:
        raise ValueError(f"{len(found):,} outputs chosen, expected from 1 to {OUTPUTS:,}")
    return found
