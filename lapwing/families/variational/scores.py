"""How a fit does on held-out data: scores of the averaged prediction, and of single draws (Gibbs)."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood
from lapwing.network.shuffling import Source

BATCH = 1000
BINS = 15


class FunctionSampler(Protocol):
    """Whatever draws functions: a variational fit, Markov chains, an ensemble."""

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean."""

    def functions(self, inputs: Any) -> Tensor:
        """Outputs of every draw: (draws, *outputs)."""


def held_out(posterior: FunctionSampler, data: Any) -> dict[str, float]:
    """`nll` of the averaged predictive and `gibbs_nll`, the average over draws of their own, both per datum.

    For classes also accuracy, expected calibration error (15 equal bins) and mean confidence, of the averaged
    probabilities; otherwise the root mean square error of the mean.

    Parameters
    ----------
    posterior : Variational or any other with `functions`
        What is scored.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Data that were not trained on.

    Returns
    -------
    dict of float
        By the name of the score.

    Examples
    --------
    >>> from torch import nn
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> from lapwing.families import variational
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> found = variational.fit(nn.Linear(1, 1), (x, x), Gaussian(0.1), epochs=1, temperature=1.0, progress=False)
    >>> sorted(held_out(found, (x, x)))
    ['gibbs_nll', 'nll', 'rmse']
    """
    pairs = list(Source.of(data).pairs(BATCH))
    functions = torch.cat([posterior.functions(inputs) for inputs, _ in pairs], dim=1).double()
    targets = torch.cat([targets for _, targets in pairs])
    terms = log_density(posterior.likelihood, functions, targets)  # (draws, n)
    found = {
        "nll": -float((terms.logsumexp(0) - math.log(len(terms))).mean()),
        "gibbs_nll": -float(terms.mean()),
    }
    if posterior.likelihood.has_classes:
        chances = posterior.likelihood.class_probabilities(functions).mean(0)
        return {**found, **_of_classes(chances.reshape(-1, chances.shape[-1]), targets.reshape(-1).long())}
    error = functions.mean(0).reshape(targets.shape) - targets
    return {**found, "rmse": float(error.square().mean().sqrt())}


def log_density(likelihood: Likelihood, functions: Tensor, targets: Tensor) -> Tensor:  # (draws, n)
    """log p(y_i | f_i) of every datum under every draw of the outputs."""
    if likelihood.tunes_noise:
        raise ValueError("the noise of this likelihood is not known: give Gaussian(noise_std) or let it be learnt")
    known = likelihood.checked(likelihood.flat_targets(targets), functions[0].numel())
    terms = torch.stack([likelihood.log_density(likelihood.reshape_outputs(one, known), known) for one in functions])
    return terms.reshape(len(functions), len(targets), -1).sum(2)


def _of_classes(probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    confidence, guess = probabilities.max(1)
    right = (guess == targets).double()
    bins = (confidence * BINS).ceil().clamp(1, BINS).long() - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, right - confidence)
    return {
        "accuracy": float(right.mean()),
        "ece": float(gaps.abs().sum() / len(targets)),
        "confidence": float(confidence.mean()),
    }
