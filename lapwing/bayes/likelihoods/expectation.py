"""Averages of a log density and its derivatives over Gaussian outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil, pi
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lapwing.bayes.likelihoods import quadrature

STEP = 0.4  # between nodes in units of an output, where its standard deviation asks for more of them
FURTHER = 10.0  # standard deviations: a function that grows as e^f counts most at one standard deviation squared
MOST = 4001  # nodes of one output
WIDE = 6.0  # standard deviation of a logit beyond which its average is taken around zero
BUMP = 40.0  # where log(1 + eᶠ) − max(f, 0) has fallen to round-off
POINTS = 512  # over several outputs,
MANY, FEWER_POINTS = 9000, 128  # of so many data, whose errors largely cancel
JITTER = 1e-11  # of the variance of a datum, so that outputs without any variance have a Cholesky factor
BLOCK = 2**17  # outputs at points that are held at once: more are slower, since they leave the processor's cache

Values = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # outputs -> log p, its gradient, minus its Hessian
Density = Callable[[Tensor, slice], tuple[Tensor, Tensor]]  # outputs (c, b, points) of some data -> log p, its gradient


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


def logistic(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # the mean's shape each
    """E log(1 + eᶠ), E σ(f) and E σ′(f) for f ~ N(mean, variance), elementwise, to about 1e-10.

    Outputs up to six wide by the trapezoidal rule over the Gaussian. For wider ones log(1 + eᶠ) is max(f, 0), whose
    mean is known, plus a bump around zero, over which the Gaussian is smooth.
    """
    centre, std = mean.double().reshape(-1), variance.double().clamp_min(0).sqrt().reshape(-1)
    found = centre.new_empty(3, len(centre))
    for chosen, averages in ((std <= WIDE, _narrow_logistic), (std > WIDE, _wide_logistic)):
        if bool(chosen.any()):
            found[:, chosen] = torch.stack(averages(centre[chosen], std[chosen]))
    softplus, sigma, slope = (part.reshape(mean.shape).to(mean) for part in found)
    return softplus, sigma, slope


def _narrow_logistic(centre: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z, weights = (part.to(centre) for part in quadrature.nodes(121))
    at = centre[:, None] + std[:, None] * z
    sigma = at.sigmoid()
    return functional.softplus(at) @ weights, sigma @ weights, (sigma * (-at).sigmoid()) @ weights


def _wide_logistic(centre: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nodes, weights = (part.to(centre) for part in _legendre(80))
    at, weights = 0.5 * BUMP * (nodes + 1), 0.5 * BUMP * weights
    scaled = centre / std
    density, below = (-0.5 * scaled.square()).exp() / (2 * pi) ** 0.5, torch.special.ndtr(scaled)

    def gaussian(x: Tensor) -> Tensor:
        return (-0.5 * ((x - centre[:, None]) / std[:, None]).square()).exp() / (std[:, None] * (2 * pi) ** 0.5)

    above_zero, below_zero, tail = gaussian(at), gaussian(-at), (-at).sigmoid()
    return (
        centre * below + std * density + (above_zero + below_zero) @ (weights * (-at).exp().log1p()),
        below + (below_zero - above_zero) @ (weights * tail),
        (above_zero + below_zero) @ (weights * tail * at.sigmoid()),
    )


@cache
def _legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss and Legendre on [−1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def points_for(data: int) -> int:
    """How many points are taken for each of so many data."""
    return POINTS if data < MANY else FEWER_POINTS


def by_points(
    density: Density, mean: Tensor, covariance: Tensor, seed: int = 0, count: int | None = None
) -> Expectation:
    """Averages over the outputs (n, c) of each datum, by a fixed set of points.

    The sum over points is taken for the average itself: gradient and curvature are its exact derivatives, in the mean
    and minus twice that in the covariance. So a search that maximises it finds a slope of zero at its maximum, however
    wide the outputs are. For a density whose logarithm is quadratic the points are exact.
    """
    n, c = mean.shape
    count = count or points_for(n)
    wide, centre = covariance.double(), mean.double()
    jitter = JITTER * wide.diagonal(dim1=1, dim2=2).sum(1) + torch.finfo(torch.float64).tiny
    root = torch.linalg.cholesky_ex(wide + jitter[:, None, None] * torch.eye(c).to(wide))[0]
    points = normal_points(c, count, seed).to(wide)
    log_density, gradient, by_root = centre.new_empty(n), centre.new_empty(n, c), centre.new_empty(n, c, c)
    total = centre.new_zeros(count)
    for start in range(0, n, step := max(1, BLOCK // (count * c))):
        data = slice(start, start + step)
        at = (root[data].permute(1, 0, 2).reshape(-1, c) @ points.mT).reshape(c, -1, count)
        values, slopes = density(at.add_(centre[data].mT[:, :, None]), data)
        log_density[data] = values.sum(1)
        gradient[data] = slopes.sum(2).mT
        by_root[data] = (slopes @ points).permute(1, 0, 2)
        total += values.sum(0)
    curvature = _curvature(root, by_root / count)
    pairs = (total / n).reshape(2, -1).mean(0)
    error = float(pairs.std()) / len(pairs) ** 0.5
    return Expectation((log_density / count).to(mean), (gradient / count).to(mean), curvature.to(mean), error)


def _curvature(root: Tensor, by_root: Tensor) -> Tensor:  # (n, c, c)
    """−2 ∂/∂V of a function of the Cholesky factor of V, from its derivative in that."""
    lower = (root.mT @ by_root).tril()
    lower = lower - 0.5 * torch.diag_embed(lower.diagonal(dim1=1, dim2=2))
    half = torch.linalg.solve_triangular(root.mT, lower + lower.mT, upper=True)
    found = torch.linalg.solve_triangular(root.mT, half.mT, upper=True)
    return -0.5 * (found + found.mT)


@cache
def normal_points(dimension: int, count: int, seed: int) -> Tensor:  # (count, dimension)
    """Sobol's points as standard normals, both signs of each, turned to a mean of zero and a covariance of one."""
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    uniform = engine.draw(count // 2, dtype=torch.float64).clamp(1e-10, 1 - 1e-10)
    half = torch.special.ndtri(uniform)
    points = torch.cat([half, -half])
    factor = torch.linalg.cholesky(points.mT @ points / count)
    return torch.linalg.solve_triangular(factor, points.mT, upper=False).mT


def own_variances(mean: Tensor, covariance: Tensor) -> Tensor:  # the mean's shape
    """The variance of each output from variances, or from covariances of the outputs of a datum."""
    return covariance.diagonal(dim1=-2, dim2=-1) if covariance.ndim > mean.ndim else covariance


def as_given(curvature: Tensor, covariance: Tensor) -> Tensor:
    """The curvature of outputs that stand alone in the layout of their covariance."""
    return torch.diag_embed(curvature) if covariance.ndim > curvature.ndim else curvature
