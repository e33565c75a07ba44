"""The joint distribution of chosen outputs of a linear model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.solving.iterative import Drawn
from lapwing.bayes.statistics import Whitened
from lapwing.linalg.operators import LinearOperator

OUTPUTS = 2000  # whose covariance is asked for at once


@final
@dataclass(frozen=True, eq=False)
class Joint:
    """A Gaussian over some outputs: what the functions may be there, without the noise of an observation."""

    mean: Tensor  # (k,)
    covariance: Tensor  # (k, k)
    standard_error: Tensor | None = None  # (k, k), Monte-Carlo error of the covariance; None where it is closed form

    @property
    def correlation(self) -> Tensor:  # (k, k)
        """The covariance of the outputs over their standard deviations."""
        std = self.covariance.diagonal().sqrt().clamp_min(torch.finfo(self.covariance.dtype).tiny)
        return self.covariance / std / std[:, None]


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


def joint(belief: Whitened | Drawn, features: LinearOperator, rows: Tensor, mean: Tensor, deviations: Tensor) -> Joint:
    """The joint distribution of the outputs that chosen rows of features give, around their mean."""
    if not isinstance(belief, Whitened) or not belief.exact:
        draws = (features @ deviations.to(features.like))[rows.to(features.like.device)].double().cpu()
        covariance = draws @ draws.mT / draws.shape[1]
        own = covariance.diagonal()
        error = ((covariance.square() + own * own[:, None]) / draws.shape[1]).sqrt()
        return Joint(mean, covariance, error)
    units = torch.zeros(features.shape[0], len(rows), dtype=features.like.dtype, device=features.like.device)
    units[rows.to(units.device), torch.arange(len(rows))] = 1
    whitened = features.rmatmat(units).mT.double().cpu() * belief.std
    inside, k = belief.spectrum.coordinates(whitened), belief.values
    if belief.spectrum.complete:
        return Joint(mean, (inside / (1 + k)) @ inside.mT)
    return Joint(mean, whitened @ whitened.mT - (inside * (k / (1 + k))) @ inside.mT)
