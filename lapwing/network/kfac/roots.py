"""Roots of the Hessian of −log p in a network's outputs, as columns to pull back: R Rᵀ = B for every datum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Likelihood
from lapwing.bayes.noise import Noise

Root = Callable[[Tensor, int], Tensor]  # outputs (b, c) of the data from this number on -> columns (b, c, k)
LARGEST = 2**25  # numbers of a root for one datum
SIGNS = 8  # a stream of random numbers of its own


def gaussian(precision: Tensor | float = 1.0) -> Root:
    """The root for Gaussian noise, a diagonal: `precision` is a number or one per output of every datum, (n · c,)."""

    def root(outputs: Tensor, start: int) -> Tensor:
        given = torch.as_tensor(precision, dtype=torch.float64).to(outputs)
        if given.ndim:
            given = given.reshape(-1, outputs.shape[1])[start : start + len(outputs)]
        return torch.diag_embed(given.sqrt().expand_as(outputs))

    return root


def categorical() -> Root:
    """The root for class labels, diag(√π) − π√πᵀ, turned so that its null column is left out: c − 1 columns."""
    return lambda outputs, start: Categorical().root_columns(outputs)  # noqa: ARG005


def bernoulli() -> Root:
    """The root for outputs that are logits of their own, √(σ (1 − σ)) each."""
    return lambda outputs, start: Bernoulli().root_columns(outputs)  # noqa: ARG005


def root_of(likelihood: Likelihood, targets: Tensor) -> Root:
    """The root for a likelihood and all its targets: of its Hessian in the outputs, noise precisions included."""
    of, precision = likelihood.at_unit_noise(), likelihood.row_precision(likelihood.flat_targets(targets))
    plain = not likelihood.constant_curvature  # no noise

    def root(outputs: Tensor, start: int) -> Tensor:
        given = targets[start : start + len(outputs)]
        given = given.reshape(outputs.shape) if given.numel() == outputs.numel() else given
        columns = of.root_columns(outputs, given)
        if plain:
            return columns
        own = precision.reshape(-1, outputs.shape[1])[start : start + len(outputs)]
        return columns * own[:, :, None].to(outputs).sqrt()

    return root


def sampled(root: Root, columns: int, seed: int) -> Root:
    """The root times random signs, a few columns for each datum: R ε with E (R ε)(R ε)ᵀ = B."""
    if columns < 1:
        raise ValueError(f"{columns} random columns asked for, expected at least 1, or None for all of them")

    def combined(outputs: Tensor, start: int) -> Tensor:
        whole = root(outputs, start)
        data, _, width = whole.shape
        signs = Noise(seed, SIGNS).rows(start * width, (start + data) * width, columns).sign()
        return whole @ signs.reshape(data, width, columns).to(whole) / columns**0.5

    return combined


def counted(root: Root, counts: Tensor | None) -> Root:
    """The root of data that count several times, (n,): √count times the columns of each."""
    if counts is None:
        return root

    def weighted(outputs: Tensor, start: int) -> Tensor:
        columns = root(outputs, start)
        return columns * counts[start : start + len(columns), None, None].to(columns).sqrt()

    return weighted


def per_place(root: Root, classes: int) -> Root:
    """The root of outputs that are several places with so many classes each, (b, places · classes): its blocks."""

    def blocks(outputs: Tensor, start: int) -> Tensor:
        b, c = outputs.shape
        places = c // classes
        each = root(outputs.reshape(b * places, classes), start * places).reshape(b, places, classes, -1)
        width = each.shape[3]
        if (size := c * places * width) > LARGEST:
            raise ValueError(
                f"a root of the curvature of {places:,} places with {classes} classes is a matrix of {size:,} numbers "
                "a datum, too many for a Kronecker or diagonal structure: use Krylov(), or leave the method out"
            )
        whole = each.new_zeros(b, places, classes, places, width)
        index = torch.arange(places, device=each.device)
        whole[:, index, :, index] = each.transpose(0, 1)
        return whole.reshape(b, c, places * width)

    return blocks


def scaled(root: Root, weights: Tensor) -> Root:
    """The root of outputs that count differently, (n · c,), those of one column alike: √weight times every row."""

    def weighted(outputs: Tensor, start: int) -> Tensor:
        own = weights.reshape(-1, outputs.shape[1])[start : start + len(outputs)]
        return root(outputs, start) * own[:, :, None].to(outputs).sqrt()

    return weighted
