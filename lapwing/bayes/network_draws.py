"""Predictions by a network at drawn weights: the baseline that a linearised network is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.axes import as_rows, class_axis
from lapwing.bayes.likelihoods import Gaussian, Likelihood
from lapwing.bayes.linear_model import Centre
from lapwing.bayes.predictive import Labels, Prediction
from lapwing.bayes.spreads import of_draws

NOT_KNOWN = (
    "only a posterior that was fitted to a network in this process can run it at other weights: fit it again, and not "
    "from a file or a design matrix"
)


def network_draws(
    centre: Centre | None, inputs: Any, deviations: Tensor, prior_draws: Tensor, likelihood: Likelihood, seed: int
) -> Prediction:
    """What the network itself says at weights w̄ + deviations, columns (d, draws), averaged over them."""
    if centre is None or centre.moved is None:
        raise ValueError(NOT_KNOWN)
    if deviations.shape[1] < 2:
        raise ValueError(f"there are {deviations.shape[1]} draws, and a variance needs two: fit with draws=2 or more")
    functions = torch.stack([centre.moved(inputs, change) for change in deviations.mT])
    at_prior = torch.stack([centre.moved(inputs, change) for change in (prior_draws - centre.weights[:, None]).mT])
    mean, variance = functions.mean(0), functions.var(0)
    if isinstance(likelihood, Gaussian):
        shown, labels = _as_it_is, None
        noise = likelihood.variance_at(mean.shape[1] if mean.ndim > 1 else None)
    else:
        spread = of_draws((functions - mean).movedim(class_axis(likelihood, mean), -1))
        rows = as_rows(likelihood, mean)
        shown, labels = likelihood.observed, Labels(likelihood, "monte carlo", spread, outputs=rows)
        noise = likelihood.noise_variance(mean, spread)
    return Prediction(
        mean=shown(mean), epistemic_variance=shown(variance), prior_variance=shown(at_prior.var(0)),
        noise_variance=noise.to(mean) if isinstance(noise, Tensor) else noise, draws=functions,
        standard_error=shown(variance) * (2 / (len(functions) - 1)) ** 0.5, seed=seed, labels=labels,
    )  # fmt: skip


def _as_it_is(values: Tensor) -> Tensor:
    return values
