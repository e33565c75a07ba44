"""The raw network: one set of weights, no epistemic uncertainty, and a noise that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from lapwing.bayes.likelihoods import Likelihood
from lapwing.families.networks import Networks, evaluated, stacked, values, with_noise
from lapwing.network.parameters import check_model

__all__ = ["fit"]


def fit(model: nn.Module, data: Any, likelihood: Likelihood, *, validation: Any = None) -> Networks:
    """A trained network as its own prediction: the baseline that every posterior has to beat.

    The noise of a Gaussian, where it is not given, is the root mean square error on `validation`, or without it on the
    training data, which is too small for a network that fits them too well.

    Parameters
    ----------
    model : nn.Module
        A trained network in eval mode; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.

    Returns
    -------
    Networks
        With `predict`, and no epistemic variance.

    Raises
    ------
    ValueError
        If the network is in training mode.

    Examples
    --------
    >>> import torch
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> model = torch.nn.Linear(2, 1).eval()
    >>> x = torch.eye(2)
    >>> found = fit(model, (x, model(x).detach() + 0.5), Gaussian())
    >>> round(float(found.likelihood.noise_std), 4), found.predict(x).epistemic_variance.flatten().tolist()
    (0.5, [0.0, 0.0])
    """
    check_model(model)
    found = Networks(evaluated(model), stacked([values(model)]), likelihood, mixture=True)
    return replace(found, likelihood=with_noise(found, data if validation is None else validation))
