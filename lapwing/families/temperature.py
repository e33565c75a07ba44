"""Temperature scaling (Guo et al. 2017) of anything that predicts, on validation data; of numbers, the variances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.predictive import Observation, Prediction
from lapwing.families.networks import BATCH, Predictive
from lapwing.network.shuffling import Source

__all__ = ["TemperatureScaled", "fit", "scaled"]


@final
@dataclass(frozen=True, eq=False)
class TemperatureScaled:
    """Predictions whose logits, or for numbers whose precisions, are divided by one constant.

    For class labels `temperature` divides the logits and their spread; for numbers it multiplies every variance, that
    of the noise included, so that both blur what was too sharp when they exceed one.

    Parameters
    ----------
    base : Posterior or any other with `predict`
        What predicts.
    temperature : float
        Positive; above one it blurs.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Categorical
    >>> from lapwing.families import point
    >>> x, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> layer = torch.nn.Linear(2, 2, bias=False).eval()
    >>> _ = torch.nn.init.eye_(layer.weight)
    >>> network = point.fit(layer, (x, labels), Categorical())
    >>> [round(float(one.predict(x).probs[0, 0]), 4) for one in (network, TemperatureScaled(network, 2.0))]
    [0.8808, 0.7311]
    """

    base: Predictive
    temperature: float

    def functions(self, inputs: Any) -> Tensor:  # (draws, *outputs)
        """Draws of the scaled logits, or for numbers draws with √temperature times the deviations."""
        drawn: Tensor = self.base.functions(inputs)  # type: ignore[attr-defined]
        found = self.base.predict(inputs)
        if found.likelihood.has_classes:
            return drawn / self.temperature
        return found.mean + self.temperature**0.5 * (drawn - found.mean)

    def predict(self, inputs: Any) -> Prediction:
        """The scaled predictive distribution."""
        return scaled(self.base.predict(inputs), self.temperature)


def fit(base: Predictive, validation: Any) -> TemperatureScaled:
    """The scaling that maximises the log density of held-out data: one number, which cannot change the ranking.

    Parameters
    ----------
    base : Posterior or any other with `predict`
        What is to be scaled.
    validation : (inputs, targets), Dataset, DataLoader or list of batches
        Data that neither trained nor tuned it.

    Returns
    -------
    TemperatureScaled
        With the best temperature.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> from lapwing.families import point
    >>> x = torch.zeros(4, 1)
    >>> network = point.fit(torch.nn.Linear(1, 1, bias=False).eval(), (x, x), Gaussian(0.5))
    >>> round(fit(network, (x, x + 1)).temperature, 4)  # every error is 1 and every variance 0.25
    4.0
    """
    pairs = [(base.predict(inputs), targets) for inputs, targets in Source.of(validation).pairs(BATCH)]
    first = pairs[0][0]
    if first.likelihood.constant_curvature and isinstance(first.observation, Observation):  # the best in closed form
        squares = torch.cat([_squares(found, targets) for found, targets in pairs])
        return TemperatureScaled(base, float(squares.mean()))

    def loss(log_temperature: float) -> float:
        terms = [scaled(found, float(np.exp(log_temperature))).log_prob(targets) for found, targets in pairs]
        return -float(torch.cat([part.double().flatten() for part in terms]).mean())

    best = scipy.optimize.minimize_scalar(loss, bounds=(-4, 6), method="bounded")
    return TemperatureScaled(base, float(np.exp(best.x)))


def scaled(found: Prediction, temperature: float) -> Prediction:
    """A prediction with its logits divided by a temperature, or its variances multiplied by it.

    Parameters
    ----------
    found : Prediction
        What is to be scaled.
    temperature : float
        Positive; above one it blurs.

    Returns
    -------
    Prediction
        A new one.

    Raises
    ------
    ValueError
        If the temperature is not positive.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> from lapwing.families import point
    >>> x = torch.zeros(1, 1)
    >>> network = point.fit(torch.nn.Linear(1, 1, bias=False).eval(), (x, x), Gaussian(0.5))
    >>> float(scaled(network.predict(x), 4.0).std)
    1.0
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    classes, seen = found.likelihood.has_classes, found.observation
    shrunk, root = (1 / temperature, 1 / temperature) if classes else (1.0, temperature**0.5)
    mean, factor = shrunk * found.mean, 1 / temperature**2 if classes else temperature
    observation = seen.blurred(temperature)
    centre = 0 if found.draws is None else found.likelihood.to_output_layout(seen.outputs, found.draws[0])
    drawn = None if found.draws is None else shrunk * centre + root * (found.draws - centre)

    def times(values: Any) -> Any:
        return factor * values if isinstance(values, Tensor) else values

    return replace(
        found, mean=mean, draws=drawn, observation=observation, prior_variance=times(found.prior_variance),
        epistemic_variance=times(found.epistemic_variance), standard_error=times(found.standard_error),
        bounds=None if found.bounds is None else (times(found.bounds[0]), times(found.bounds[1])),
    )  # fmt: skip


def _squares(found: Prediction, targets: Tensor) -> Tensor:
    errors = targets.reshape(found.mean.shape).to(found.mean) - found.mean
    return (errors.square() / found.variance).double().flatten()
