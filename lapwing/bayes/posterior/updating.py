"""A posterior given more data, without starting over.

What is known of the data so far (a spectrum, a loss, a solution) is kept, the noise of every draw stays what it was and
that of new data takes the next rows of the same table. So under Gaussian noise the result is the posterior of all data
together, draw by draw: to round-off for Exact(), to their tolerance for the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearisationPoint, LinearModel, network_residual_rms
from lapwing.bayes.methods.interface import WeightPosterior
from lapwing.bayes.posterior.posterior import Posterior
from lapwing.linalg.operators import as_tensor

NO_DATA = "this posterior does not carry its training data, which that needs here: fit it again"


def updated(posterior: Posterior, data: Any, *, retune: bool) -> Posterior:
    """The posterior of the data so far and more; see `Posterior.update`."""
    posterior.gaussian.check_changeable()
    more = observed(posterior, data)
    whole = None if posterior.model is None else posterior.model.joined(more)
    gaussian, ledger = posterior.gaussian, posterior.ledger
    gaussian = gaussian.with_more(gaussian.fit.on_more(more, whole), more, ledger.rows)
    ledger = replace(ledger, rows=ledger.rows + more.features.shape[0])
    return finished(replace(posterior, model=whole, ledger=ledger), gaussian, retune=retune)


def finished(posterior: Posterior, gaussian: WeightPosterior, *, retune: bool) -> Posterior:
    """A posterior of other data than before; precisions stay or are found again by evidence."""
    told = posterior.diagnostics
    before = told.tuned_by.removesuffix(", before the update")
    tuned_by = before if before == "given" else f"{before}, before the update"
    given = posterior.given if posterior.model is None else posterior.model.likelihood
    if retune:
        gaussian = gaussian.retuned(posterior.given)
        tuned_by = "evidence"
    outputs = posterior.map.outputs or 1
    diagnostics = replace(
        told, tuned_by=tuned_by, updates=told.updates + 1, observations=posterior.ledger.observations(outputs),
        removed=outputs * len(posterior.ledger.removed), converged=gaussian.diagnostics.converged,
        error_bound=gaussian.diagnostics.error_bound, data_passes=gaussian.diagnostics.data_passes,
        candidate=None, candidates=None, shares=None,
    )  # fmt: skip
    gaussian.mean  # noqa: B018, looked for now, so that diagnostics can tell how
    diagnostics = replace(diagnostics, **gaussian.facts())
    result = replace(posterior.with_gaussian(gaussian), given=given, diagnostics=diagnostics)
    if result.model is None:
        return result
    if result.network_residual_rms is not None:
        result = replace(result, network_residual_rms=network_residual_rms(result.model))
    residuals = tuple(result.residuals().tolist())
    return replace(result, diagnostics=replace(diagnostics, residuals=residuals))


def observed(posterior: Posterior, data: Any) -> LinearModel:
    """Data as a linear model: of a pair of inputs and targets, of batches of such, or one that is there."""
    if isinstance(data, LinearModel):
        return posterior.map.centred(_checked(posterior, data))
    pair = isinstance(data, tuple) and len(data) == 2
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed, and may shuffle, so it is read once
        batches = data if pair else list(data)
    inputs = batches[0] if pair else batches
    targets = as_tensor(batches[1]) if pair else torch.cat([as_tensor(batch[1]) for batch in batches])
    features, point, of = posterior.map.features(inputs), posterior.map.point, posterior.given
    rows, m = features.shape[0], posterior.map.outputs
    shape = of.targets_shape(torch.Size((rows,) if m is None else (rows // m, m)))
    if targets.numel() != shape.numel():
        raise ValueError(f"targets of shape {tuple(targets.shape)} do not fit the {rows} outputs at these inputs")
    offset = None
    if point is not None:
        outputs = point.outputs_at(inputs).double()
        if outputs.ndim > 2 and not of.constant_curvature:
            raise ValueError(
                f"an update takes outputs (n,) or (n, c) under this likelihood, and these are {tuple(outputs.shape)}: "
                "fit all data together"
            )
        offset = outputs.reshape(-1) - (features @ point.weights.to(features.like)).double()
    return posterior.map.centred(LinearModel(features, targets.reshape(shape), of, offset=offset, point=point))


def _checked(posterior: Posterior, more: LinearModel) -> LinearModel:
    d, now = posterior.map.weights, posterior.likelihood
    if more.features.shape[1] != d:
        raise ValueError(f"the new data have {more.features.shape[1]} features, the model was fitted with {d}")
    if type(more.likelihood) is not type(now):
        raise ValueError(f"the new data have likelihood {more.likelihood!r}, the model was fitted with {now!r}")
    tuned = posterior.given.tunes_noise
    if more.likelihood.tunes_noise != tuned:
        raise ValueError(
            f"the noise of this model was {'tuned' if tuned else 'given'}, and that of the new data was not"
        )
    if not torch.equal(_weights(posterior.map.point), _weights(more.point)):
        raise ValueError("the new data were linearised at other weights: linearise the network that was fitted")
    return more


def _weights(point: LinearisationPoint | None) -> Tensor:
    """Those that a network was linearised at; none of a model without a network."""
    return torch.empty(0) if point is None else point.weights
