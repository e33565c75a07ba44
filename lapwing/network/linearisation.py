"""A network linearised at its weights: h(θ, x) = f(x) + J(x) (θ − w̄), whose features are the Jacobian."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lapwing.bayes.likelihoods import Categorical, Curved, Gaussian, Likelihood
from lapwing.bayes.linear_model import Centre, LinearModel
from lapwing.linalg.curvature import Curvature
from lapwing.network.batches import BATCH_SIZE, Batches, Inputs, as_batches
from lapwing.network.checks import checked_outputs
from lapwing.network.groups import weight_groups
from lapwing.network.jacobian import Jacobian, Network, prepared
from lapwing.network.kfac import Structure, root_of, structured
from lapwing.network.parameters import Select, fingerprint


def linearise(
    model: nn.Module, data: Any, likelihood: Likelihood, *, select: Select = None, total: int | None = None
) -> LinearModel:
    """The linear model of a trained network: features J, offset f − J w̄, and the network's output as centre.

    Under Gaussian noise the offset is taken from the targets; class labels stay as they are.

    `data` is anything `as_batches` reads; `select` chooses weights by name or by a mask; `total` is the size of the
    whole training set where `data` is a part of it, so that each datum counts `total / n` times.
    """
    network, batches = Network.of(model, select), as_batches(data)
    checked = [(checked_outputs(network, inputs, i), targets) for i, (inputs, targets) in enumerate(batches)]
    outputs = torch.cat([part for part, _ in checked])
    targets = _targets(torch.cat([part for _, part in checked]), outputs, likelihood)
    features = prepared(Jacobian(network, batches.inputs, outputs[0].numel()))
    offset = outputs.reshape(-1) - features @ network.weights
    if isinstance(likelihood, Gaussian):
        targets = (targets.reshape(-1) - offset.to(targets)).reshape(targets.shape)
    if total is not None and total < len(targets):
        raise ValueError(f"total is {total}, less than the {len(targets)} data given: it counts the whole training set")
    weights = None if total is None else torch.full((len(targets),), total / len(targets), dtype=torch.float64)
    return LinearModel(
        features, targets, likelihood, weights=weights, offset=offset.double(),
        features_at=lambda inputs: replace(features, inputs=_inputs(inputs)),
        blocks=network.layout.tensor_of(),
        groups=lambda kind: weight_groups(network, kind, next(iter(features.inputs))),
        structure=lambda method, scale, seed: _structure(
            structured(
                network, features.inputs, root_of(likelihood, targets), method, scale=scale, counts=weights, seed=seed
            )
        ),
        centre=Centre(
            lambda inputs: torch.cat([network.outputs(batch) for batch in _inputs(inputs)]), network.weights,
            network.layout.names, network.layout.mask, lambda: fingerprint(network.fixed),
            lambda inputs, change: torch.cat([network.moved(change).outputs(batch) for batch in _inputs(inputs)]),
        ),
    )  # fmt: skip


def _structure(found: Structure) -> tuple[Curvature, dict[str, Any]]:
    return found.curvature, found.diagnostics


def _inputs(data: Any) -> Inputs:
    if isinstance(data, Tensor):
        return Inputs.of(data.split(BATCH_SIZE))
    return (data if isinstance(data, Batches) else as_batches(data)).inputs


def _targets(targets: Tensor, outputs: Tensor, likelihood: Likelihood) -> Tensor:
    if isinstance(likelihood, Categorical):
        if outputs.ndim != 2 or targets.shape not in ((len(outputs),), (len(outputs), 1)):
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: "
                "Categorical() expects outputs (n, classes) and class numbers (n,)"
            )
        return likelihood.checked(targets.reshape(-1), outputs.numel())
    if isinstance(likelihood, Curved):
        shape = likelihood.targets_shape(outputs.shape if outputs.ndim <= 2 else outputs.flatten(1).shape)
        if targets.numel() != shape.numel() or len(targets) != len(outputs):
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: "
                f"{type(likelihood).__name__} expects targets of shape {tuple(shape)}"
            )
        return likelihood.checked(targets.reshape(shape), outputs.numel())
    if targets.numel() != outputs.numel() or len(targets) != len(outputs):
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: "
            "expected one number per output"
        )
    return targets.double().reshape(outputs.shape if outputs.ndim <= 2 else (len(outputs), -1))
