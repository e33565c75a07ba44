"""Roots of the Hessian of −log p in a network's outputs, as columns to pull back: R Rᵀ = B for every datum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Categorical, Gaussian, softmax_root
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

    def root(outputs: Tensor, start: int) -> Tensor:  # noqa: ARG001
        probabilities = outputs.softmax(1)
        return softmax_root(probabilities, _complement(probabilities.sqrt()))

    return root


def bernoulli() -> Root:
    """The root for outputs that are logits of their own, √(σ (1 − σ)) each."""

    def root(outputs: Tensor, start: int) -> Tensor:  # noqa: ARG001
        return torch.diag_embed((outputs.sigmoid() * (-outputs).sigmoid()).sqrt())

    return root


def root_of(likelihood: Any, targets: Tensor) -> Root:
    """The root for a likelihood and all its targets: of its Hessian in the outputs, noise precisions included."""
    if isinstance(likelihood, Gaussian):
        return gaussian(likelihood.row_precision(targets))
    if isinstance(likelihood, Categorical):
        return categorical()

    def root(outputs: Tensor, start: int) -> Tensor:
        units = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        given = targets[start : start + len(outputs)]
        given = given.reshape(outputs.shape) if given.numel() == outputs.numel() else given
        return likelihood.hessian_root(outputs, units.expand(*outputs.shape, -1), targets=given)

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


def _complement(unit: Tensor) -> Tensor:  # (b, c) -> (b, c, c - 1)
    """Orthonormal columns orthogonal to a unit vector without negative entries, by Householder's reflection."""
    normal = unit.clone()
    normal[:, 0] += 1  # never cancels
    scale = 2 / normal.square().sum(1)
    identity = torch.eye(unit.shape[1], dtype=unit.dtype, device=unit.device)
    return (identity - scale[:, None, None] * normal[:, :, None] * normal[:, None, :])[:, :, 1:]
