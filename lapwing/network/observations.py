"""Targets and weights of a network's outputs, in the order of the rows of its Jacobian."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Curved, Likelihood, Poisson
from lapwing.bayes.linear_model import Observed


def observe(inputs: Any, outputs: Tensor, targets: Tensor, weights: Tensor | None, likelihood: Likelihood) -> Observed:
    """What a likelihood sees: one class number for every place with classes, or one target per output.

    `weights` are one per datum, or one per target. Class numbers to be ignored get the weight zero.
    """
    if isinstance(likelihood, Categorical):
        return _classes(inputs, outputs, targets, weights, likelihood)
    shape = outputs.shape if outputs.ndim <= 2 else outputs.flatten(1).shape
    own = [[size for size in part.shape[1:] if size > 1] for part in (targets, outputs)]
    if isinstance(likelihood, Curved):
        shape = likelihood.targets_shape(shape)
        fits = targets.numel() == shape.numel() and (shape.numel() != outputs.numel() or own[0] == own[1])
        expected = f"{type(likelihood).__name__} expects targets of shape {tuple(shape)}"
    else:
        fits, expected = own[0] == own[1], "expected one number per output"
        if targets.ndim == 1 and not targets.is_floating_point():
            expected += "; for class numbers take Categorical()"
    if len(targets) != len(outputs) or not fits:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: {expected}"
        )
    if isinstance(likelihood, Curved):
        return _one_by_one(inputs, targets.reshape(shape), weights, likelihood, outputs.numel())
    counts = weights if weights is None or weights.ndim == 1 else weights.reshape(shape)
    return Observed(inputs, targets.double().reshape(shape), counts)


def _one_by_one(inputs: Any, targets: Tensor, weights: Tensor | None, of: Curved, outputs: int) -> Observed:
    """Targets that are no class numbers; each a datum of its own where they count differently."""
    if weights is None or weights.numel() == len(targets):
        return Observed(inputs, of.checked(targets, outputs), None if weights is None else weights.reshape(-1))
    if not isinstance(of, Bernoulli | Poisson):
        raise ValueError(
            f"a mask over single targets is not for {type(of).__name__}, which sees them together: mask whole data, "
            "one value each"
        )
    return Observed(inputs, of.checked(targets.reshape(-1), outputs), weights.reshape(-1))


def _classes(inputs: Any, outputs: Tensor, targets: Tensor, weights: Tensor | None, of: Categorical) -> Observed:
    dim = class_axis(outputs, of)
    places = outputs.select(dim, 0).shape
    if targets.shape not in (places, (*places, 1)):
        if targets.shape == outputs.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} have the shape of the outputs: Categorical() takes class "
                f"numbers, here of shape {tuple(places)}; from one-hot labels they are targets.argmax({of.dim})"
            )
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: "
            f"Categorical(dim={of.dim}) expects outputs (n, classes) and class numbers (n,), here {tuple(places)}"
        )
    labels, counts = targets.reshape(-1), weights
    if counts is not None:
        counts = counts.reshape(-1).repeat_interleave(labels.numel() // counts.numel())
    ignored = labels == of.ignore_index
    if bool(ignored.any()):
        if bool(ignored.all()):
            raise ValueError(f"every target is {of.ignore_index}, which is ignored: no data are left")
        labels = torch.where(ignored, 0, labels)
        counts = torch.where(ignored, 0.0, torch.ones_like(labels, dtype=torch.float64) if counts is None else counts)
    if counts is not None:
        labels = torch.where(counts > 0, labels, 0)  # a masked target may hold anything
    return Observed(inputs, of.checked(labels, outputs.numel()), counts)


def class_axis(outputs: Tensor, of: Categorical) -> int:
    """The axis of the classes, counted from the front."""
    axis = of.dim + outputs.ndim if of.dim < 0 else of.dim
    if not 0 < axis < outputs.ndim:
        raise ValueError(
            f"Categorical(dim={of.dim}) does not fit outputs of shape {tuple(outputs.shape)}: the classes need an axis "
            "of their own beside that of the data"
        )
    return axis
