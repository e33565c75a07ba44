"""MacKay's fixed point α = γ(α) / ‖θ⋆(α)‖² in log α: where to begin, how exact a mode must be, where to go next."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lapwing.bayes.statistics import Statistics

LARGEST_STEP = 2.5  # of log α


def at_the_weights(statistics: Statistics, weights: Tensor) -> float:
    """log α with α = γ(α) / ‖w̄‖², the evidence at the network's own weights: a start that costs nothing."""
    energy, values = max(float(weights.square().sum()), 1e-300), statistics.values
    if not len(values):  # the data say nothing at all
        return 0.0
    low, high = (float(np.log(x)) for x in (1e-8 * float(values.max()), 1e4 * float(values.max())))
    for _ in range(60):
        middle = (low + high) / 2
        found = max(determined(statistics, middle), 1e-300)
        low, high = (middle, high) if np.log(found / energy) > middle else (low, middle)
    return (low + high) / 2


def determined(statistics: Statistics, log_alpha: float) -> float:
    """γ at a precision."""
    return statistics.trace_of(lambda s: s / (s + np.exp(log_alpha))).value


def rough_enough(gamma: float, step: float) -> float:
    """Nats of the loss within which log ‖θ⋆‖² is known to a twentieth of the last step in log α.

    A gap ε leaves ½α‖θ − θ⋆‖² ≤ ε, and α‖θ⋆‖² is about γ, so that log ‖θ⋆‖² is within √(8ε/γ).
    """
    return gamma * (0.05 * min(step, 1.0)) ** 2 / 8


def secant(seen: list[tuple[float, float]]) -> float:
    """The next log α: MacKay's step, or where two steps are known the root of the line through them, held in bounds."""
    x, step = seen[-1]
    if len(seen) > 1 and (change := seen[-2][1] - step):
        towards = step * (x - seen[-2][0]) / change
        if towards * step > 0:
            step = towards
    return x + float(np.clip(step, -LARGEST_STEP, LARGEST_STEP))
