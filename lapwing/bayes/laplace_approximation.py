"""Laplace's approximation of any density in a few dimensions: a Gaussian at its mode with its curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.func import grad, hessian

from lapwing.linalg.operators import as_tensor

LOG_2PI = float(np.log(2 * np.pi))
POLISH = 5  # Newton steps at most, after the search


@final
@dataclass(frozen=True, eq=False)
class LaplaceApproximation:
    """N(mode, covariance) with the covariance (−∇²log f)⁻¹ at the mode, and the logarithm of ∫ f."""

    mode: Tensor  # (d,)
    covariance: Tensor  # (d, d)
    log_normaliser: float  # log f(mode) + ½ d log 2π + ½ log det covariance
    gradient: float  # the largest entry of |∇log f| at the mode

    @property
    def distribution(self) -> MultivariateNormal:
        """The Gaussian, to draw from and to evaluate."""
        return MultivariateNormal(self.mode, covariance_matrix=self.covariance)


def laplace_approximation(log_density: Callable[[Tensor], Tensor], start: Any) -> LaplaceApproximation:
    """The Gaussian at the mode that is found uphill from `start`, exact where the density is Gaussian.

    `log_density` takes a vector (d,) and returns a number, up to a constant, by operations that torch can
    differentiate twice. The search is by trust regions with the full Hessian, so it is for tens of dimensions. A
    density with several modes has an approximation at each.

    Parameters
    ----------
    log_density : callable
        Log density of a vector (d,), up to a constant.
    start : array (d,)
        Where the search for the mode starts.

    Returns
    -------
    LaplaceApproximation
        With `mode`, `covariance` and `log_normaliser`.

    Raises
    ------
    ValueError
        If no mode is found, or the density is flat there.

    Examples
    --------
    >>> found = laplace_approximation(lambda x: -0.5 * (x - 1).square().sum() / 4, [0.0, 0.0])
    >>> found.mode, found.covariance.diagonal(), round(found.log_normaliser, 6)  # log 8π
    (tensor([1., 1.], dtype=torch.float64), tensor([4., 4.], dtype=torch.float64), 3.224171)
    """
    begin = as_tensor(start).double().reshape(-1)
    _check(log_density, begin)

    def at(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(x, dtype=float))

    found = scipy.optimize.minimize(
        lambda x: -float(log_density(at(x))), begin.numpy(), jac=lambda x: -grad(log_density)(at(x)).numpy(),
        hess=lambda x: -hessian(log_density)(at(x)).numpy(), method="trust-exact", options={"gtol": 1e-8},
    )  # fmt: skip
    mode, precision = _polished(log_density, at(found.x))
    values = torch.linalg.eigvalsh(precision)
    slope = float(grad(log_density)(mode).abs().max())
    if not bool((values > 1e-12 * values.abs().max().clamp_min(1e-300)).all()):
        raise ValueError(
            f"no maximum was found: at {_shown(mode)} the negative Hessian has the eigenvalue {float(values[0]):.3g}, "
            "expected all to be positive; the density is flat, or rises without end: give another start, or "
            "coordinates in which it has a peak"
        )
    scale = float((precision.diagonal().sqrt()).max())
    if not slope <= 1e-5 * max(scale, 1.0):
        raise ValueError(
            f"the search ended at {_shown(mode)} where the gradient is still {slope:.3g}: give a start nearer the "
            "mode, or coordinates of order one"
        )
    log_det = float(torch.linalg.slogdet(precision).logabsdet)
    return LaplaceApproximation(
        mode, torch.linalg.inv(precision), float(log_density(mode)) + 0.5 * (len(mode) * LOG_2PI - log_det), slope
    )


def _polished(log_density: Callable[[Tensor], Tensor], mode: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's steps while they lower the gradient, and the negative Hessian there."""
    slope, precision = grad(log_density)(mode), -hessian(log_density)(mode)
    for _ in range(POLISH):
        if not bool((torch.linalg.eigvalsh(precision) > 0).all()):
            break
        moved = mode + torch.linalg.solve(precision, slope)
        new = grad(log_density)(moved)
        if not float(new.norm()) < float(slope.norm()):
            break
        mode, slope, precision = moved, new, -hessian(log_density)(moved)
    return mode, precision


def _check(log_density: Callable[[Tensor], Tensor], start: Tensor) -> None:
    value = log_density(start)
    if not isinstance(value, Tensor) or value.numel() != 1 or value.ndim:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"log_density returned {shape}, expected a tensor with one number, of shape ()")
    if not bool(value.isfinite()):
        raise ValueError(
            f"log_density is {float(value)} at the start {_shown(start)}: start where the density is positive"
        )


def _shown(x: Tensor) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in x[:6].tolist()) + (", …)" if len(x) > 6 else ")")
