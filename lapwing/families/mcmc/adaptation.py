"""What warm-up learns: a step size by dual averaging, and a variance for every coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class DualAveraging:
    """Nesterov's dual averaging of the log step size (Hoffman & Gelman 2014, §3.2)."""

    centre: float  # log of ten times the first step size: steps are pulled towards it
    target: float
    count: int = 0
    error: float = 0.0  # running mean of target − acceptance
    log_step: float = 0.0
    log_average: float = 0.0

    @staticmethod
    def start(step_size: float, target: float) -> DualAveraging:
        """Before the first acceptance is seen."""
        return DualAveraging(math.log(10 * step_size), target, log_step=math.log(step_size))

    def update(self, acceptance: float) -> DualAveraging:
        """After a transition that was accepted with this probability."""
        count = self.count + 1
        share = 1 / (count + 10)
        error = (1 - share) * self.error + share * (self.target - acceptance)
        log_step = self.centre - math.sqrt(count) / 0.05 * error
        weight = count**-0.75
        average = weight * log_step + (1 - weight) * self.log_average
        return replace(self, count=count, error=error, log_step=log_step, log_average=average)

    @property
    def step_size(self) -> float:
        """The step to try next."""
        return math.exp(self.log_step)

    @property
    def averaged(self) -> float:
        """The step to keep."""
        return math.exp(self.log_average if self.count else self.log_step)


def windows(warmup: int) -> list[int]:
    """Where the variances are renewed: after windows that double, between a first sixth and a last tenth of warm-up.

    >>> windows(1000), windows(20)
    ([191, 241, 341, 900], [])
    """
    start, stop = warmup // 6, warmup - warmup // 10
    if stop - start < 20:
        return []
    found, size = [], 25
    while start + 3 * size <= stop:
        start, size = start + size, 2 * size
        found.append(start)
    return [*found, stop]


def regularised_variance(positions: Tensor) -> Tensor:  # (n, d) -> (d,)
    """The variance of each coordinate, n / (n + 5) of it, plus 5e-3 / (n + 5): few draws are not believed.

    The constants are those of Stan. A coordinate that did not move keeps the second part, so no variance is zero.
    """
    n = len(positions)
    return n / (n + 5) * positions.var(0) + 5e-3 / (n + 5) * torch.ones_like(positions[0])
