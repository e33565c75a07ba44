"""Targets and weights of a network's outputs, in the order of the rows of its Jacobian."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.linear_model import Observed


def observe(inputs: Any, outputs: Tensor, targets: Tensor, weights: Tensor | None, likelihood: Likelihood) -> Observed:
    """What a likelihood sees: one class number for every place with classes, or one target per output.

    `weights` are one per datum, or one per target. Class numbers to be ignored get the weight zero.
    """
    return Observed(inputs, *likelihood.arranged(outputs, targets, weights))
