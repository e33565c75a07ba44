"""Leave-one-out predictions of likelihoods that are not Gaussian, and what every training datum does to new outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lapwing.bayes.modes.tangent import AtMode, Tangent
from lapwing.bayes.outputs.spread import Spread
from lapwing.bayes.posterior.leave_one_out.gaussian import LeaveOneOut
from lapwing.bayes.predictive import Labels, Prediction
from lapwing.bayes.statistics import Whitened
from lapwing.linalg.operators import LinearOperator

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior

Mean = Literal["linear", "network"]
LARGEST = 6000  # coordinates of the loss whose Hessian is factorised here
BLOCK_ELEMENTS = 2**23  # of rows used at once
NO_NETWORK = "mean='network' is for a linearised network: this model is linear itself, so leave it at mean='linear'"


def left_out_labels(posterior: Posterior, tangent: Tangent, mean: Mean) -> LeaveOneOut:
    """One Newton step away from the mode of the linear model, or from the network's own weights as if they were it."""
    of, model = tangent.likelihood, tangent.model
    outputs, covariance, prior = (_at_mode if mean == "linear" else _at_network)(posterior, tangent)
    shape, (n, m, _) = outputs.shape, covariance.shape
    units = torch.eye(m, dtype=torch.float64).expand(n, m, m).reshape(*shape, m)
    curvature = of.hessian_product(outputs, units, model.weights, model.targets).reshape(n, m, m)
    slope = of.gradient(outputs, model.targets, model.weights).reshape(n, m, 1)
    kept = torch.eye(m, dtype=torch.float64) - covariance @ curvature
    if not bool((torch.linalg.eigvals(kept).real > 0).all()):
        raise ValueError(
            "by the curvature of this posterior some data determine more than themselves (leverage above one): "
            "leave-one-out predictions need method=Exact()"
        )
    pull, wider = torch.linalg.solve(kept.mT, slope), torch.linalg.solve(kept, covariance)
    without, wider = outputs - (covariance @ pull).reshape(shape), (wider + wider.mT) / 2
    variance = wider.diagonal(dim1=1, dim2=2).reshape(shape)
    spread = Spread(variance, wider if len(shape) > 1 else None, seed=posterior.seed)
    prediction = Prediction(
        mean=of.observed(without), epistemic_variance=of.observed(variance), seed=posterior.seed,
        prior_variance=of.observed(prior.reshape(shape)), noise_variance=of.noise_variance(without, spread),
        labels=Labels(of, posterior.link, spread, posterior.temperature, without),
    )  # fmt: skip
    return LeaveOneOut(
        leverage=(covariance * curvature.mT).sum((1, 2)),
        mean=without,
        epistemic_variance=variance,
        log_density=prediction.log_prob(model.targets).reshape(n, -1).sum(1),
        pull=pull[:, :, 0],
        distance=(pull * (covariance @ pull)).sum((1, 2)).clamp_min(0).sqrt(),
        prediction=prediction,
    )


def influence(posterior: Posterior, inputs: Any, mean: Mean) -> Tensor:  # (n, *outputs)
    """f(x) − f₋ᵢ(x) at new inputs x for every training datum i: φ Σ φ_iᵀ u_i."""
    found, tangent = posterior.leave_one_out(mean=mean), posterior.tangent
    features = posterior.features_of(inputs)
    rows = features.rows(0, features.shape[0]).double()
    if tangent is None or mean == "network":
        model = posterior.training_model("influence") if tangent is None else tangent.model
        known, solved = model.features, _solved(posterior.closed_form(), rows)
    else:
        at = mode_of(posterior, tangent)
        scaled = rows * tangent.prior.scale
        inside = scaled if tangent.row_space is None else tangent.row_space.coordinates(scaled)
        known = tangent.loss(at.units).features
        solved = torch.cholesky_solve((at.units * inside).mT, _factor(tangent, at))
    parts = [
        torch.einsum("bm,bmr->br", found.pull[data], part @ solved) for data, part in _data(known, len(found.pull))
    ]
    change = torch.cat(parts)
    return change if posterior.outputs is None else change.unflatten(1, (-1, posterior.outputs))


def mode_of(posterior: Posterior, tangent: Tangent) -> AtMode:
    """The mode of the linear model at the precisions of a posterior, found now where it was left for later."""
    return posterior.at_mode or tangent.mode(posterior.prior.precision)


def _at_mode(posterior: Posterior, tangent: Tangent) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs at the mode, their covariance for the curvature there and their prior variance: (n, c, c), (n, c)."""
    at = mode_of(posterior, tangent)
    factor, covariances, prior = _factor(tangent, at), [], []
    for _, rows in _data(tangent.loss(at.units).features, len(tangent.model.targets)):
        b, m, q = rows.shape
        half = torch.linalg.solve_triangular(factor, rows.reshape(b * m, q).mT, upper=False).mT.reshape(b, m, q)
        covariances.append(half @ half.mT)
        prior.append(rows.square().sum(2))
    return at.mode.outputs, torch.cat(covariances), torch.cat(prior)


def _at_network(posterior: Posterior, tangent: Tangent) -> tuple[Tensor, Tensor, Tensor]:
    """The same at the network's own outputs, where the posterior has its curvature."""
    model = tangent.model
    if model.centre is None:
        raise ValueError(NO_NETWORK)
    flat = model.at_centre()
    flat = flat if model.offset is None else flat + model.offset.double()
    outputs = tangent.likelihood.shaped(flat, model.targets)
    seen = posterior.seen_at(model.features, outputs, None)
    covariance = seen.spread.covariance
    if covariance is None:
        covariance = torch.diag_embed(seen.spread.variance.reshape(len(outputs), -1))
    return outputs, covariance.double(), seen.prior_variance.double()


def _factor(tangent: Tangent, at: AtMode) -> Tensor:  # (q, q)
    """The Cholesky factor of the Hessian of the loss at its mode."""
    if at.mode.factor is not None:
        return at.mode.factor
    if tangent.design.shape[1] > LARGEST:
        raise ValueError(
            f"leave-one-out predictions at the linear mode factorise a Hessian of {tangent.design.shape[1]:,} "
            f"coordinates, more than {LARGEST:,}: use mean='network', or infer from fewer data or weights"
        )
    return tangent.loss(at.units).factor(at.mode.outputs)


def _solved(whitened: Whitened, rows: Tensor) -> Tensor:  # (r, d) -> (d, r)
    """The posterior covariance times rows."""
    basis, k, scaled = whitened.spectrum, whitened.values, rows * whitened.std
    inside = (k / (1 + k)) * basis.coordinates(scaled)
    return whitened.std[:, None] * (scaled.mT - basis.expand(inside.mT))


def _data(features: LinearOperator, n: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a few data at a time: (b, m, q), float64."""
    m = features.shape[0] // n
    batch = max(1, BLOCK_ELEMENTS // (m * features.shape[1]))
    for start in range(0, n, batch):
        stop = min(start + batch, n)
        yield slice(start, stop), features.rows(start * m, stop * m).double().reshape(stop - start, m, -1)
