"""Saved posteriors and the networks they belong to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from lapwing.bayes.likelihoods import BradleyTerry, Categorical, Gaussian
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel
from lapwing.bayes.mixtures import Mixture
from lapwing.bayes.mixtures.files import restore as restore_mixture
from lapwing.bayes.mixtures.files import size
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.posterior.files import StoredPosterior, read, restore
from lapwing.linalg.operators import as_operator
from lapwing.network.checks import run_network
from lapwing.network.jacobian import Network
from lapwing.network.linearisation import inputs_of, linearise
from lapwing.network.parameters import Select, check_model, fingerprint


@overload
def load(path: Path | str, model: nn.Module | None = None) -> Posterior: ...


@overload
def load(path: Path | str, model: Sequence[nn.Module | None]) -> Mixture: ...


def load(path: Path | str, model: nn.Module | Sequence[nn.Module | None] | None = None) -> Posterior | Mixture:
    """The posterior that `posterior.save(path)` wrote; `model` is the network that it was fitted for.

    The network must be the same, weights and buffers to the bit. Predictions, draws and the curve are those of the
    posterior that was saved, and `at` and `tune` work where it was exact; the training data are not in the file. Of a
    mixture, `model` is the list of its networks, in the order in which they were fitted.

    Parameters
    ----------
    path : path
        File that `posterior.save` wrote.
    model : nn.Module or list of them, optional
        The network it was fitted for, or those of a mixture.

    Returns
    -------
    Posterior or Mixture
        It predicts as the one that was saved.

    Raises
    ------
    ValueError
        If the file is not one of lapwing's, or the network differs.

    Examples
    --------
    >>> import tempfile, torch
    >>> from lapwing import Gaussian, fit
    >>> model = torch.nn.Linear(2, 1).double().eval()
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]).double()
    >>> posterior = fit(model, (x, model(x).detach() + 0.1), Gaussian(0.1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load(posterior.save(f"{folder}/posterior.safetensors"), model)
    >>> torch.allclose(again.predict(x).std, posterior.predict(x).std, rtol=1e-12)
    True
    """
    stored = read(path)
    count = size(stored)
    if count is None:
        return _one(stored, _single(stored, model))
    models = [None] * count if model is None else model
    if isinstance(models, nn.Module) or len(models) != count:
        given = "one network" if isinstance(models, nn.Module) else f"{len(models)} networks"
        raise ValueError(f"{path}: a mixture of {count}, and {given} given: pass the list of its networks, in order")
    return restore_mixture(stored, lambda number, own: _one(own, models[number], f", network {number} of the list"))


def _single(stored: StoredPosterior, model: nn.Module | Sequence[nn.Module | None] | None) -> nn.Module | None:
    """The one network that a file of one posterior takes."""
    if model is None or isinstance(model, nn.Module):
        return model
    raise ValueError(f"{stored.path}: saved from one posterior, and a list of {len(model)} given: pass its network")


def _one(stored: StoredPosterior, model: nn.Module | None, which: str = "") -> Posterior:
    """The posterior of a file, or of a part of one, over its network."""
    path, network = f"{stored.path}{which}", stored.plain.get("network")
    if network is None:
        if model is not None:
            raise ValueError(f"{path}: saved from a linear model, so there is no network to give")
        return restore(stored, as_operator, None)
    if model is None:
        raise ValueError(f"{path}: saved from a network: pass that network too, load(path, model)")
    check_model(model)
    names = network.get("names") if isinstance(network, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: the file does not say which weights of the network it is about")
    if fingerprint(model) != network.get("fingerprint"):
        raise ValueError(f"{path}: saved from another network, or from this one with other weights or buffers")
    return restore(stored, *_linearised(stored, copy.deepcopy(model), tuple(names)))


def _linearised(
    stored: StoredPosterior, model: nn.Module, names: tuple[str, ...]
) -> tuple[Callable[[Any], Any], LinearisationPoint]:
    """The feature map of a network, linearised when the first inputs show what it takes."""
    mask = stored.tensors.get("mask")
    select: Select = _whole_mask(model, names, mask) if mask is not None else lambda name: name in names
    found: list[LinearModel] = []

    def linear(inputs: Any) -> LinearModel:
        if not found:
            network = Network.of(model)
            first = inputs[:1] if isinstance(inputs, Tensor) else next(iter(inputs_of(network, inputs)))[:1]
            outputs = run_network(network, first)
            named = stored.plain.get("likelihood") or {}
            if named.get("name") in (Categorical.__name__, BradleyTerry.__name__):  # whose classes may lie on any axis
                dim = named.get("dim", -1)
                labels = torch.zeros_like(outputs.select(dim, 0), dtype=torch.long)
                found.append(linearise(model, (first, labels), Categorical(dim=dim), select=select))
            else:
                found.append(linearise(model, (first, torch.zeros_like(outputs)), Gaussian(1.0), select=select))
        return found[0]

    def outputs_at(inputs: Any) -> Tensor:
        point = linear(inputs).point
        assert point is not None
        return point.outputs_at(inputs)

    def served(posterior: Posterior, inputs: Any, link: Any) -> nn.Module:
        point = linear(inputs).point
        assert point is not None
        assert point.served is not None
        module: nn.Module = point.served(posterior, inputs, link)
        return module

    point = LinearisationPoint(
        outputs_at, stored.tensor("weights"), names, mask, lambda: fingerprint(model), served=served
    )
    return (lambda inputs: linear(inputs).features_at(inputs)), point


def _whole_mask(model: nn.Module, names: tuple[str, ...], mask: Tensor) -> Tensor:
    """A mask over every weight that requires gradients, from one over the named tensors."""
    parts, start = [], 0
    for name, weight in model.named_parameters():
        if name in names:
            parts.append(mask[start : start + weight.numel()])
            start += weight.numel()
        elif weight.requires_grad:
            parts.append(torch.zeros(weight.numel(), dtype=torch.bool))
    return torch.cat(parts)
