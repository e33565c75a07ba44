"""A network linearised at its weights: h(θ, x) = f(x) + J(x) (θ − w̄), whose features are the Jacobian."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel, Observed
from lapwing.linalg.operators import LinearOperator
from lapwing.network.batches import Batches, Inputs, as_batches, check_finite_batch
from lapwing.network.checks import check_logits, check_purpose, checked_outputs, run_network
from lapwing.network.data_spec import NO_TARGETS
from lapwing.network.groups import weight_groups
from lapwing.network.hessian import DenseCurvatures
from lapwing.network.input_tree import Output, View, nested, required
from lapwing.network.jacobian import Jacobian, Network, ProductPlan, prepared
from lapwing.network.jacobian.jacobian import InMainMemory
from lapwing.network.kfac import FoundStructure, Structures, root_of
from lapwing.network.kfac.factors import Sharing
from lapwing.network.kfac.roots import Root, per_place, scaled
from lapwing.network.last_layer import LastLayer
from lapwing.network.parameters import Select, fingerprint
from lapwing.network.remainder import FirstOrder, check_rest, counts
from lapwing.network.serving import Served
from lapwing.runtime.devices import map_tensors
from lapwing.runtime.journal import Journal


def linearise(
    model: nn.Module, data: Any, likelihood: Likelihood, *, select: Select = None, dataset_size: int | None = None,
    rest: Any = None, output: Output = None, checkpoint: Path | str | None = None,
) -> LinearModel:  # fmt: skip
    """The linear model of a trained network: features J, offset f − J w̄, and the network's output as centre.

    `data` is anything `as_batches` reads; `select` chooses weights by name or by a mask; `dataset_size` is the size of
    the whole training set where `data` is a part of it, so that each datum counts `dataset_size / n` times. `output`
    says which tensor is meant where the network returns several: a key, a place or a function. `checkpoint` keeps how
    products are worked out, which a probe decides: in the same way after a crash.

    Parameters
    ----------
    model : nn.Module
        A trained network in eval mode.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        The training data.
    likelihood : Likelihood
        Such as `Categorical()` or `Gaussian()`.
    select : callable or Tensor, optional
        Which weights are uncertain: a function of a weight's name, or a boolean mask. All that require
        gradients by default.
    dataset_size : int, optional
        Size of the whole training set, where `data` is a part of it.
    rest : as data, optional
        The training data that `data` leaves out, or some of them. They are read once, for the gradient of their loss.
    output : str, int or callable, optional
        Which tensor is meant, where the network returns several.
    checkpoint : path, optional
        Folder that keeps how products are worked out.

    Returns
    -------
    LinearModel
        For `infer`.

    Raises
    ------
    ValueError
        If the network is in train mode, or data and outputs do not fit the likelihood.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model, x = torch.nn.Linear(2, 1).double().eval(), torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]).double()
    >>> linearise(model, (x, x[:, :1]), lw.Gaussian(0.1)).features.shape
    (3, 3)
    """
    if isinstance(likelihood, str | type | nn.Module):
        kind = likelihood if isinstance(likelihood, type) else type(likelihood)
        given = repr(likelihood) if isinstance(likelihood, str) else kind.__name__
        raise ValueError(
            f"likelihood is {given}, expected a value: Categorical() for classes, Gaussian() for numbers, "
            "Bernoulli() for yes and no, Poisson() for counts"
        )
    check_purpose(model)
    network, batches = Network.of(model, select, View(output, likelihood.dim)), as_batches(data)
    outputs, observed = _observed(network, batches, likelihood)
    observed = replace(observed, targets=observed.targets.cpu())  # what is inferred is kept in main memory
    targets, weights, n = observed.targets, observed.weights, len(outputs)
    features = _kept(prepared(Jacobian(network, observed.inputs, outputs[0].numel())), checkpoint)
    last = LastLayer.of(features)

    def features_at(inputs: Any) -> LinearOperator:
        given = inputs_of(network, inputs)
        return InMainMemory.of(replace(features, inputs=given)) if last is None else last.features(given)

    seen = InMainMemory.of(features) if last is None else last.features(observed.inputs)
    own = features.product_with_weights.cpu() if last is None else seen @ network.weights.cpu()
    offset = network.view.rows(outputs).reshape(-1).cpu() - own
    others = None if rest is None else _first_order(network, as_batches(rest), likelihood, outputs.shape[1:])
    times, each = counts(dataset_size, n, 0 if others is None else others.count)
    remainder = None
    if others is not None:
        part = FirstOrder.of(features, likelihood, observed, network.view.rows(outputs).reshape(-1))
        remainder = others.added_to(part, times, each)
    if times > 1:
        weights = torch.full(targets.shape[:1], times, dtype=torch.float64) if weights is None else weights * times
    observed = replace(observed, weights=weights)
    return LinearModel(
        seen, targets, likelihood, weights=weights, offset=offset.double(),
        features_at=features_at,
        blocks=network.layout.tensor_of(),
        groups=lambda kind: weight_groups(network, kind, next(iter(features.inputs))),
        structure=NetworkStructures(
            Structures(
                network, features.inputs, _root(likelihood, targets, weights, features),
                weights if _one_each(weights, features) else None,
            ),
            DenseCurvatures(network, features.inputs, likelihood, observed),
        ),
        point=LinearisationPoint(
            lambda inputs: _joined(
                [run_network(network, batch, features.inputs, outputs.ndim) for batch in inputs_of(network, inputs)]
            ), network.weights.cpu(),
            network.layout.names, network.layout.mask, lambda: fingerprint(network.fixed),
            lambda inputs, change: _joined(
                [network.moved(change).outputs(batch) for batch in inputs_of(network, inputs)]
            ),
            lambda data: _observed(network, as_batches(data), likelihood)[1],
            lambda posterior, _, link: Served.of_posterior(network, last, posterior, link),
            stands_for=times,
        ),
        rest=remainder,
    )  # fmt: skip


def _first_order(network: Network, rest: Batches, likelihood: Likelihood, shape: torch.Size) -> FirstOrder:
    """What data that a posterior does not condition on say of it."""
    check_rest(likelihood)
    outputs, observed = _observed(network, rest, likelihood)
    if outputs.shape[1:] != shape:
        raise ValueError(
            f"outputs for rest= have shape {tuple(outputs.shape[1:])} a datum and those for the data {tuple(shape)}: "
            "both are to be parts of one training set"
        )
    features = prepared(Jacobian(network, observed.inputs, outputs[0].numel()))
    return FirstOrder.of(features, likelihood, observed, network.view.rows(outputs).reshape(-1))


def _kept(features: Jacobian, checkpoint: Path | str | None) -> Jacobian:
    """The same with the plan of the run that began the checkpoint, so that the same products give the same bits."""
    if checkpoint is None:
        return features
    plan = asdict(features.plan)
    plan["factored_from"] = str(plan["factored_from"])  # it may be infinite
    known = Journal(Path(checkpoint)).found("plan", lambda: ({}, plan))[1]
    return replace(features, plan=ProductPlan(**{**known, "factored_from": float(known["factored_from"])}))


def _observed(network: Network, batches: Batches, likelihood: Likelihood) -> tuple[Tensor, Observed]:
    """The network's outputs on data, (n, *shape), and their targets as the likelihood takes them."""
    outputs, targets, weights = list[Tensor](), list[Tensor](), list[Tensor | None]()
    for number, batch in enumerate(batches.read()):
        if batch.targets is None:
            raise ValueError(NO_TARGETS)
        check_finite_batch(batch.inputs, batch.targets, number=number)
        outputs.append(checked_outputs(network, batch.inputs, number))
        targets.append(batch.targets)
        weights.append(batch.weights)
    found, given = _joined(outputs), _joined(targets, "targets")
    if likelihood.exclusive_classes:
        check_logits(found)
    counts = [part for part in weights if part is not None]
    arranged = likelihood.arranged(found, given, torch.cat(counts) if counts else None)
    return found, Observed(batches.inputs, *arranged)


def _joined(parts: list[Tensor], what: str = "outputs") -> Tensor:
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"the {what} of different batches have different shapes, {sorted(shapes)[:3]}: bring their data to one "
            "size, as by padding all of them to one length, with a mask or targets of -100 for what was added"
        )
    return torch.cat(parts)


def _root(likelihood: Likelihood, targets: Tensor, weights: Tensor | None, features: Jacobian) -> Root:
    """A root of the curvature of every datum; weights that are not one for all its outputs are in it."""
    root, rows = root_of(likelihood, targets), features.shape[0]
    if likelihood.exclusive_classes and len(targets) > features.inputs.count:
        root = per_place(root, rows // len(targets))
    if weights is None or _one_each(weights, features):
        return root
    return scaled(root, weights.reshape(-1).repeat_interleave(rows // weights.numel()))


def _one_each(weights: Tensor | None, features: Jacobian) -> bool:
    return weights is None or weights.shape == (features.inputs.count,)


@final
@dataclass(frozen=True, eq=False)
class NetworkStructures:
    """What a network can make of its layers and of its weights, for structured methods."""

    layers: Structures
    dense: DenseCurvatures

    def diagonal(self, probes: int | None, scale: Tensor | None, seed: int) -> FoundStructure:
        """The diagonal of the Gauss-Newton matrix."""
        return _in_main_memory(self.layers.diagonal(probes, scale, seed))

    def kronecker(self, sharing: Sharing, probes: int | None, scale: Tensor | None, seed: int) -> FoundStructure:
        """A Kronecker product for every layer."""
        return _in_main_memory(self.layers.kronecker(sharing, probes, scale, seed))

    def eigencorrected(self, sharing: Sharing, scale: Tensor | None, seed: int) -> FoundStructure:
        """The same with exact second moments along its eigenvectors."""
        return _in_main_memory(self.layers.eigencorrected(sharing, scale, seed))

    def hessian(self, scale: Tensor) -> FoundStructure:
        """The true Hessian, dense."""
        return FoundStructure(self.dense.hessian(scale), {})

    def empirical_fisher(self, scale: Tensor) -> FoundStructure:
        """Squared gradients, dense."""
        return FoundStructure(self.dense.empirical_fisher(scale), {})


def _in_main_memory(found: FoundStructure) -> FoundStructure:
    return replace(found, curvature=map_tensors(found.curvature, lambda tensor: tensor.cpu()))


def inputs_of(network: Network, data: Any) -> Inputs:
    """Inputs of any kind; of a tuple of as many tensors as the network takes, that is what they are."""
    if isinstance(data, Inputs):
        return data
    several = isinstance(data, tuple) and all(isinstance(part, Tensor | Mapping) for part in data) and len(data) > 1
    if several and required(network.model) == len(data):
        data = nested(data)
    return as_batches(data, labelled=False).inputs
