"""Predictions by a network at drawn weights: the baseline that a linearised network is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.linear_model import LinearisationPoint
from lapwing.bayes.predictive.prediction import Prediction, from_draws

NOT_KNOWN = (
    "only a posterior that was fitted to a network in this process can run it at other weights: fit it again, and not "
    "from a file or a design matrix"
)


def network_draws(
    point: LinearisationPoint | None,
    inputs: Any,
    deviations: Tensor,
    prior_draws: Tensor,
    likelihood: Likelihood,
    seed: int,
) -> Prediction:
    """What the network itself says at weights w̄ + deviations, columns (d, draws), averaged over them."""
    if point is None or point.outputs_moved is None:
        raise ValueError(NOT_KNOWN)
    if deviations.shape[1] < 2:
        raise ValueError(f"there are {deviations.shape[1]} draws, and a variance needs two: fit with draws=2 or more")
    functions = torch.stack([point.outputs_moved(inputs, change) for change in deviations.mT])
    at_prior = torch.stack(
        [point.outputs_moved(inputs, change) for change in (prior_draws - point.weights[:, None]).mT]
    )
    return from_draws(functions, likelihood, at_prior, seed=seed)
