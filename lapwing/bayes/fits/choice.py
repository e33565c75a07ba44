"""Where the curvature of a likelihood is taken, and what follows from it for the fit."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lapwing.bayes.fits.interface import Fit, LeastSquares
from lapwing.bayes.fits.laplace import LaplaceAtMode, LaplaceAtPoint, ModeSearch
from lapwing.bayes.fits.newton import AS_NEEDED, NewtonSteps
from lapwing.bayes.fits.variational import Variational
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.priors import DiagonalPrior

Curvature = Literal["expected", "mode", "network"]


def pointwise(model: LinearModel) -> Curvature:
    """Where Laplace's approximation takes it: at the network's outputs, or of a model that is linear at its mode."""
    return "mode" if model.point is None else "network"


def fit_of(
    model: LinearModel, prior: DiagonalPrior, steps: NewtonSteps = AS_NEEDED, curvature: Curvature | None = None,
    free: Tensor | None = None,
) -> Fit:  # fmt: skip
    """How mean and curvature of a model's likelihood are found; its features are stored where they fit.

    The curvature is that averaged over the posterior, or that at the mode, or that at the network's own outputs; None
    is Laplace's. `free` says which precisions are to be found, by default all.
    """
    if model.likelihood.constant_curvature:
        return LeastSquares(model.gaussian_surrogate())
    at = curvature or pointwise(model)
    if at == "expected":
        every = torch.ones_like(prior.precision).bool()
        return Variational.of(model, prior, every if free is None else free, steps)
    search = ModeSearch.of(model, prior, steps)
    if at == "mode":
        return LaplaceAtMode(search, prior)
    return LaplaceAtPoint(search, model.gaussian_surrogate(model.outputs_at_point()), prior)
