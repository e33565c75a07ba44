"""Averages of a log density and its derivatives over Gaussian outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import quadrature
from lapwing.bayes.likelihoods.spread import Spread

STEP = 0.4  # between nodes in units of an output, where its standard deviation asks for more of them
FURTHER = 10.0  # standard deviations: a function that grows as e^f counts most at one standard deviation squared
MOST = 4001  # nodes of one output

Values = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # outputs -> log p, its gradient, minus its Hessian


@final
@dataclass(frozen=True, eq=False)
class Expectation:
    """The means of log p and of its derivatives in the outputs f ~ N(mean, covariance), of each datum."""

    log_density: Tensor  # the targets' shape, E log p
    gradient: Tensor  # the outputs' shape, E ∂ log p
    curvature: Tensor  # E −∂² log p: the outputs' shape where each stands alone, or (n, c, c)
    standard_error: float = 0.0  # of log_density averaged over the data; zero in closed form and by quadrature


def by_quadrature(values: Values, mean: Tensor, variance: Tensor) -> Expectation:
    """Averages over outputs that stand alone, elementwise, by the trapezoidal rule."""
    centre, std = mean.double(), variance.double().clamp_min(0).sqrt()
    widest = float(std.max()) if std.numel() else 0.0
    reach = quadrature.REACH + min(widest, FURTHER)
    points = min(max(181, ceil(2 * reach * widest / STEP)), MOST)
    z, weights = quadrature.nodes(points, reach)
    total = [torch.zeros_like(centre) for _ in range(3)]
    for at, weight in zip(z.tolist(), weights.tolist(), strict=True):  # memory does not grow with their number
        total = [so_far + weight * part for so_far, part in zip(total, values(centre + at * std), strict=True)]
    log_density, gradient, curvature = (part.to(mean) for part in total)
    return Expectation(log_density, gradient, curvature)


def by_points(values: Values, mean: Tensor, covariance: Tensor, seed: int = 0) -> Expectation:
    """Averages over the outputs (n, c) of each datum, by a fixed set of antithetic points."""
    wide = covariance.double()
    deviations = Spread(wide.diagonal(dim1=1, dim2=2), wide, seed=seed).deviations()
    pairs, found, means = len(deviations) // 2, None, []
    for away in deviations[:pairs]:
        ends = [values(mean.double() + side * away) for side in (1, -1)]
        both = [0.5 * (first + second) for first, second in zip(*ends, strict=True)]
        means.append(both[0].mean())
        found = both if found is None else [so_far + part for so_far, part in zip(found, both, strict=True)]
    assert found is not None
    error = float(torch.stack(means).std()) / pairs**0.5
    log_density, gradient, curvature = ((part / pairs).to(mean) for part in found)
    return Expectation(log_density, gradient, curvature, error)


def own_variances(mean: Tensor, covariance: Tensor) -> Tensor:  # the mean's shape
    """The variance of each output from variances, or from covariances of the outputs of a datum."""
    return covariance.diagonal(dim1=-2, dim2=-1) if covariance.ndim > mean.ndim else covariance


def as_given(curvature: Tensor, covariance: Tensor) -> Tensor:
    """The curvature of outputs that stand alone in the layout of their covariance."""
    return torch.diag_embed(curvature) if covariance.ndim > curvature.ndim else curvature
