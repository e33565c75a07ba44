"""Which weights to be uncertain about when there are too many: those that would vary most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapwing.network.batches import as_batches
from lapwing.network.input_tree import call
from lapwing.network.kfac import diagonal
from lapwing.network.linearisation import linearise
from lapwing.network.parameters import Layout, check_model

Score = Literal["swag", "diagonal", "predictive"]
SMALLEST = 1e-30  # a variance of SWAG's is at least this


def subnetwork(
    model: nn.Module, data: Any, likelihood: Any, size: int, *, score: Score = "swag",
    select: Callable[[str], bool] | None = None, seed: int = 0, **swag: Any,
) -> Tensor:  # fmt: skip
    """A boolean mask for `select=` over the weights that require gradients: the `size` that would vary most.

    Under independent weights the squared Wasserstein distance between the whole posterior and that of a part is the
    sum of the variances left out, so the largest are kept (Daxberger et al. 2021). The variances are

    - "swag": those of SGD iterates started at the weights, on a copy (`swag_variances` has its options);
    - "diagonal": of the diagonal Laplace posterior, 1 / (h + λ). Its largest belong to weights that the data say
      nothing about, dead units first: as published, but on small networks worse than a choice by chance;
    - "predictive": of the outputs at the data, h / (h + λ) for each weight: the same distance between functions.

    The last two depend on the curvature h alone, not on the precision λ of an isotropic prior. `select` says by name
    which weights may be chosen.

    Parameters
    ----------
    model : nn.Module
        A trained network in eval mode.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        The training data.
    likelihood : Likelihood
        That of the data.
    size : int
        How many weights to choose.
    score : "swag", "diagonal" or "predictive"
        How weights are ranked.
    select : callable, optional
        Which weights may be chosen, by name.
    seed : int
        Of the SGD iterates.
    swag : options
        Further options of `swag_variances`.

    Returns
    -------
    Tensor
        A boolean mask for `select=`.

    Raises
    ------
    ValueError
        If there are fewer weights than `size`.

    Examples
    --------
    >>> from lapwing import Gaussian
    >>> model, x = nn.Linear(3, 1, bias=False).eval(), torch.tensor([[1.0, 5.0, 0.1], [1.0, -5.0, 0.1]])
    >>> subnetwork(model, (x, torch.zeros(2, 1)), Gaussian(1.0), 2, score="predictive")
    tensor([ True,  True, False])
    """
    check_model(model)
    weights = Layout.of(model)
    owner, allowed = weights.tensor_of(), [select is None or select(name) for name in weights.names]
    eligible = torch.tensor(allowed)[owner]
    if not 1 <= size <= int(eligible.sum()):
        raise ValueError(f"size is {size}, expected 1 to {int(eligible.sum())}, the number of weights to choose from")
    if score == "swag":
        variance = swag_variances(model, data, likelihood, seed=seed, **swag)
    elif score in ("diagonal", "predictive") and not swag:
        parts = linearise(model, data, likelihood).structure.layers
        curvature = diagonal(parts.network, parts.batches, parts.root, counts=parts.counts).value
        variance = curvature if score == "predictive" else -curvature  # their order is all that counts
    else:
        raise ValueError(
            f"score is {score!r} with options {swag}, expected 'swag' with its options, 'diagonal' or 'predictive'"
        )
    variance = torch.where(eligible.to(variance.device), variance.double(), -torch.inf)
    mask = torch.zeros(len(variance), dtype=torch.bool)
    mask[variance.argsort(descending=True, stable=True)[:size].cpu()] = True
    return mask


def swag_variances(
    model: nn.Module, data: Any, likelihood: Any, *, snapshots: int = 40, learning_rate: float = 1e-2,
    momentum: float = 0.9, weight_decay: float = 3e-4, seed: int = 0,
) -> Tensor:  # (p,)  # fmt: skip
    """The variance of every weight over SGD iterates that start at the trained weights, one snapshot per epoch.

    A copy is trained, in eval mode: the function that is linearised has no dropout and frozen statistics. Batches
    come in an order shuffled by the seed.
    """
    if snapshots < 2:
        raise ValueError(f"snapshots is {snapshots}, expected at least 2: a variance needs several")
    copy, batches = deepcopy(model), list(as_batches(data).read())
    names = Layout.of(copy).names
    weights = [weight for name, weight in copy.named_parameters() if name in names]
    optimiser = torch.optim.SGD(weights, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    first = _flat(weights)
    total, squares = torch.zeros_like(first), torch.zeros_like(first)
    for _ in range(snapshots):
        for number in torch.randperm(len(batches), generator=generator).tolist():
            batch = batches[number]
            arguments, named = call(copy, batch.inputs)
            optimiser.zero_grad()
            log_prob = likelihood.log_prob_of_batch(copy(*arguments, **named), batch.targets, weights=batch.weights)
            (-log_prob / len(batch.inputs)).backward()
            optimiser.step()
        moved = _flat(weights) - first  # differences keep their digits where variances are small
        if not bool(moved.isfinite().all()):
            raise ValueError(
                f"the weights diverged at learning_rate={learning_rate}: pass a smaller one, the snapshots must stay "
                "near the trained weights"
            )
        total, squares = total + moved, squares + moved.square()
    return (squares / snapshots - (total / snapshots).square()).clamp_min(SMALLEST)


def _flat(weights: Sequence[Tensor]) -> Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in weights]).double()
