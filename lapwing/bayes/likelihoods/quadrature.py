"""Averages over a Gaussian output, by the trapezoidal rule: for analytic functions its error falls exponentially."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi

import torch
from torch import Tensor

POINTS = 257
DROP = 36.0  # in nats: what lies further below the largest value of an integrand is left out
REACH = (2 * DROP) ** 0.5  # in standard deviations: where a normal density has fallen by this much


def nodes(points: int = 121, reach: float = REACH) -> tuple[Tensor, Tensor]:
    """Standard normal nodes and weights that sum to one, for functions that vary over a standard deviation or more."""
    z = torch.linspace(-reach, reach, points, dtype=torch.float64)
    return z, (-0.5 * z.square()).softmax(0)


def log_average(
    log_density: Callable[[Tensor], Tensor], gradient: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor,
    *, concave: bool = True,
) -> Tensor:  # mean's shape  # fmt: skip
    """log ∫ p(f) N(f; mean, variance) df, elementwise, of a function known by its logarithm and the gradient of that.

    Where log p is concave, nodes are laid where the integrand is, however narrow: good to about 1e-10 up to standard
    deviations of ten times the scale on which p varies. Otherwise they are spread over the Gaussian, and more of them.

    >>> mean, variance = torch.tensor([0.3, -2.0]).double(), torch.tensor([2.0, 0.5]).double()
    >>> found = log_average(lambda f: 0.7 * f, lambda f: torch.full_like(f, 0.7), mean, variance)
    >>> torch.allclose(found, 0.7 * mean + 0.245 * variance, rtol=0, atol=1e-10)
    True
    """
    centre, std = mean.double(), variance.double().sqrt()
    points = POINTS if concave else 4 * POINTS

    def value(z: Tensor) -> Tensor:
        return log_density(centre + std * z) - 0.5 * z.square()

    with torch.no_grad():
        peak = _zero(lambda z: std * gradient(centre + std * z) - z) if concave else torch.zeros_like(centre)
        low, high = (_edge(value, peak, side) if concave else peak + 1.5 * side * REACH for side in (-1, 1))
        step = (high - low) / (points - 1)
        top = value(peak)
        if not concave:
            for k in range(points):
                top = torch.maximum(top, value(low + k * step))
    total = torch.zeros_like(centre)
    for k in range(points):  # one node at a time: memory does not grow with their number
        total = total + (value(low + k * step) - top).exp()
    return (top + (total * step).log() - 0.5 * log(2 * pi)).to(mean)


def _zero(falling: Callable[[Tensor], Tensor], halvings: int = 70) -> Tensor:
    """Where a function that falls with a slope of one or more is zero: between 0 and its value there."""
    first = falling(torch.zeros(1, dtype=torch.float64)).clamp(-1e12, 1e12)
    low, high = first.clamp_max(0), first.clamp_min(0)
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        above = falling(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return 0.5 * (low + high)


def _edge(value: Callable[[Tensor], Tensor], peak: Tensor, side: int, halvings: int = 25) -> Tensor:
    """Where a function whose curvature is −1 or less has fallen by `DROP` from its peak."""
    near, far, least = torch.zeros_like(peak), torch.full_like(peak, REACH), value(peak) - DROP
    for _ in range(halvings):
        middle = 0.5 * (near + far)
        inside = value(peak + side * middle) > least
        near, far = torch.where(inside, middle, near), torch.where(inside, far, middle)
    return peak + side * far
