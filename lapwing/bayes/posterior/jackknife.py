"""Jackknife+ intervals (Barber, Candès, Ramdas & Tibshirani 2021) from leverages: n refits for the price of one.

With f₋ᵢ the mean without datum i and Rᵢ = |yᵢ − f₋ᵢ(xᵢ)|, the ends are the ⌊(1 − level)(n + 1)⌋-th smallest of
f₋ᵢ(x) − Rᵢ and the ⌈level · (n + 1)⌉-th smallest of f₋ᵢ(x) + Rᵢ. Whatever the distribution they hold a new target with
probability 2 · level − 1 at least, and with about the level where leaving one datum out changes little.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior


@final
@dataclass(frozen=True, eq=False)
class JackknifePlus:
    """A posterior with the errors of its predictions without each training datum."""

    posterior: Posterior
    errors: Tensor  # (n, *outputs), |target − prediction without it|

    def interval(self, inputs: Any, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends for new inputs, for each output by itself; infinite where data are too few.

        Parameters
        ----------
        inputs : Tensor or what the network takes
            New inputs.
        level : float
            Probability between 0.5 and 1.

        Returns
        -------
        tuple of Tensor
            Lower and upper ends.

        Raises
        ------
        ValueError
            If the level is not between 0.5 and 1.
        """
        if not 0.5 < level < 1:
            raise ValueError(f"level must lie between 0.5 and 1, got {level}")
        mean = self.posterior.predict(inputs, mean="linear").mean.double()
        change = self.posterior.influence(inputs).reshape(len(self.errors), *mean.shape)
        without = mean - change
        errors = self.errors[:, None]  # (n, 1, *outputs)
        rank = ceil(round(level * (len(self.errors) + 1), 9))
        return -_smallest(errors - without, rank), _smallest(without + errors, rank)

    def __repr__(self) -> str:
        return f"Jackknife+ of {len(self.errors)} training examples: interval(inputs, level)"


def jackknife_plus(posterior: Posterior) -> JackknifePlus:
    """From the leave-one-out predictions of a posterior under Gaussian noise."""
    if not posterior.likelihood.constant_curvature:
        raise ValueError(
            f"conformal() is for numbers with Gaussian(), not {type(posterior.likelihood).__name__}: for labels use "
            "lapwing.families.conformal with validation data"
        )
    residual = posterior.leave_one_out().residual
    assert residual is not None
    return JackknifePlus(posterior, residual.double().abs())


def _smallest(values: Tensor, rank: int) -> Tensor:  # (n, …) -> (…)
    if rank > len(values):
        return torch.full_like(values[0], torch.inf)
    return values.kthvalue(rank, dim=0).values
