"""Predictions of each training datum from all the others, without refitting, and what each datum does to the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood, Spread
from lapwing.bayes.likelihoods.interface import counted
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.interface import WeightPosterior
from lapwing.bayes.methods.outputs import OutputUncertainty
from lapwing.bayes.posterior.verification import covariance_times
from lapwing.bayes.predictive import Observation, Prediction
from lapwing.linalg.operators import LinearOperator

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior

Mean = Literal["linear", "network"]
NOT_AROUND = (
    "this posterior is that of Jθ alone, in which the network's own outputs have no place: leave it at mean='linear', "
    "or fit with curvature='network'"
)
BLOCK_ELEMENTS = 2**23  # of rows used at once
NO_NETWORK = "mean='network' is for a linearised network: this model is linear itself, so leave it at mean='linear'"


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What the posterior without datum i says about datum i, at the same precisions.

    With V = φ_i Σ φ_iᵀ, B = S Sᵀ the curvature of its likelihood and g the gradient of its log density in the outputs
    f = φ_i θ, leaving it out moves the outputs to f − V u, u = (I − BV)⁻¹ g, and their covariance to (I − VB)⁻¹ V. That
    is exact for Gaussian noise, with several outputs too, and one Newton step for other likelihoods. Where curvature
    was averaged over the posterior so are B and g, and what is left is the posterior without the Gaussian factor that
    stands for the datum, its cavity.
    """

    leverage: Tensor  # (n,), tr(VB): how much of its own prediction each datum makes
    mean: Tensor  # outputs' shape; logits of class labels
    epistemic_variance: Tensor  # outputs' shape
    log_density: Tensor  # (n,), of each datum's targets; jointly under Gaussian noise, summed over labels otherwise
    pull: Tensor  # (n, m), u: the mean of the weights is Σ φ_iᵀ u further from where it is without the datum
    distance: Tensor  # (n,), √(uᵀVu): how far that is, in posterior standard deviations (Cook's distance)
    prediction: Prediction  # of each datum without itself
    residual: Tensor | None = None  # targets − mean, of numbers

    def most_influential(self, count: int = 10) -> Tensor:  # (count,), long
        """The data that move the posterior most by being there, the strongest first."""
        return self.distance.argsort(descending=True)[: _positive(count)]

    def label_errors(self, count: int = 50) -> Tensor:  # (count,), long
        """The data whose targets all others find least likely, the most suspicious first."""
        return self.log_density.argsort()[: _positive(count)]


def left_out(posterior: Posterior, mean: Mean) -> LeaveOneOut:
    """One step away from the mean of the linear model, or from the network's own weights as if they were it."""
    model, source, outputs = _source(posterior, mean)
    of, shape = posterior.likelihood, outputs.shape
    n, m = len(model.targets), model.outputs
    covariance, before = _covariances(source, model.features, n, m)
    averaged = source.fit.averaged_root()
    if averaged is None:
        slope, root = of.gradient(outputs, model.targets, model.weights), _root(of, model, outputs)
    else:
        slope, root = _averaged_slope(of, model, outputs, covariance), averaged
    slope = slope.reshape(n, m, 1)
    known, complement = source.leverages(model), None
    if known is not None:  # without cancellation, so that leverages close to one do no harm
        complement = known.complement
        if known.residual is not None and mean == "linear":
            slope = root @ known.residual[:, :, None]
    step = step_out(covariance, slope, root, complement)
    without = outputs - step.shift.reshape(shape)
    prediction = _prediction(posterior, without, step.covariance, before)
    seen, numbers = prediction.observation, of.constant_curvature
    assert isinstance(seen, Observation)
    return LeaveOneOut(
        leverage=step.leverage,
        mean=without,
        epistemic_variance=step.covariance.diagonal(dim1=1, dim2=2).reshape(shape),
        log_density=of.joint_log_prob(seen.link, *seen.scaled, model.targets),
        pull=step.pull[:, :, 0],
        distance=(step.pull * step.shift).sum((1, 2)).clamp_min(0).sqrt(),
        prediction=prediction,
        residual=model.targets - without if numbers else None,
    )


@final
@dataclass(frozen=True, eq=False)
class StepOut:
    """What leaving a datum out does to its own outputs."""

    leverage: Tensor  # (n,), tr(VB)
    pull: Tensor  # (n, m, 1), u
    shift: Tensor  # (n, m, 1), V u: its outputs without it are this much lower
    covariance: Tensor  # (n, m, m), of its outputs without it


def step_out(covariance: Tensor, slope: Tensor, root: Tensor, complement: Tensor | None = None) -> StepOut:
    """One Newton step without each datum, from V, g and S of every one: (n, m, m), (n, m, 1), (n, m, m).

    By (I − BV)⁻¹ = I + S C⁻¹ SᵀV with C = I − SᵀVS, which may be given where it is known without cancellation.
    """
    m = root.shape[1]
    if complement is None:
        complement = torch.eye(m, dtype=torch.float64) - root.mT @ covariance @ root
    factor, failed = torch.linalg.cholesky_ex(complement)
    if bool(failed.any()):
        raise ValueError(
            "by the curvature of this posterior some data determine more than themselves (leverage above one): "
            "leave-one-out predictions need method=Exact()"
        )
    inner = torch.cholesky_solve(root.mT @ covariance, factor)
    pull = slope + root @ (inner @ slope)
    wider = covariance + covariance @ root @ inner
    leverage = m - complement.diagonal(dim1=1, dim2=2).sum(1)
    return StepOut(leverage, pull, covariance @ pull, (wider + wider.mT) / 2)


def influence(posterior: Posterior, inputs: Any, mean: Mean) -> Tensor:  # (n, *outputs)
    """f(x) − f₋ᵢ(x) at new inputs x for every training datum i: φ Σ φ_iᵀ u_i, or to first order φ Σ φ_iᵀ g_i."""
    gaussian = posterior.gaussian
    if mean == "linear" and gaussian.has_residuals and not gaussian.knows_leverages:
        return _by_output(posterior, _first_order(posterior, inputs))
    found = left_out(posterior, mean)
    model, source, _ = _source(posterior, mean)
    features = posterior.map.features(inputs)
    solved = source.covariance_times(features.rows(0, features.shape[0]).double())
    parts = [
        torch.einsum("bm,bmr->br", found.pull[data], rows @ solved)
        for data, rows in _data(model.features, len(found.pull))
    ]
    return _by_output(posterior, torch.cat(parts))


def _first_order(posterior: Posterior, inputs: Any) -> Tensor:  # (n, r)
    """By one solve for each output at the inputs and one pass over the data, without a leverage."""
    model, of = posterior.training_model("influence"), posterior.likelihood
    features = posterior.map.features(inputs)
    solved, _ = covariance_times(posterior, features.rows(0, features.shape[0]).double())
    slope = of.gradient(_outputs_at_mean(posterior, posterior.gaussian), model.targets, model.weights)
    shares = (model.features @ solved.to(model.features.like)).double()  # (n · m, r)
    return (shares * slope.reshape(-1, 1)).unflatten(0, (len(model.targets), -1)).sum(1)


def _by_output(posterior: Posterior, change: Tensor) -> Tensor:  # (n, r) -> (n, *outputs)
    outputs = posterior.map.outputs
    return change if outputs is None else change.unflatten(1, (-1, outputs))


def _source(posterior: Posterior, mean: Mean) -> tuple[LinearModel, WeightPosterior, Tensor]:
    """The model, the posterior whose covariance is taken, and the outputs that a step is made from."""
    gaussian = posterior.gaussian
    gaussian.check_leverages(linear=mean == "linear")
    model = posterior.training_model("leave-one-out predictions")
    if mean == "network":
        if model.point is None:
            raise ValueError(NO_NETWORK)
        if model.point.through_zero:
            raise ValueError(NOT_AROUND)
        return model, gaussian, posterior.likelihood.reshape_outputs(model.outputs_at_point(), model.targets)
    return model, gaussian.with_curvature_at_mean(), _outputs_at_mean(posterior, gaussian)


def _outputs_at_mean(posterior: Posterior, gaussian: WeightPosterior) -> Tensor:
    """Those of the linear model at its training data."""
    model = posterior.training_model("leave-one-out predictions")
    flat = (model.features @ gaussian.mean.to(model.features.like)).double()
    if model.offset is not None:
        flat = flat + model.offset.double()
    return posterior.likelihood.reshape_outputs(flat, model.targets)


def _covariances(source: WeightPosterior, features: LinearOperator, n: int, m: int) -> tuple[Tensor, OutputUncertainty]:
    """The covariance (n, m, m) of the outputs of every datum, and what else is known of them."""
    found = source.spread(features, (n, m), full=True)
    covariance = found.spread.covariance
    if covariance is None:
        covariance = torch.diag_embed(found.spread.variance)
    return covariance.double(), found


def _root(of: Likelihood, model: LinearModel, outputs: Tensor) -> Tensor:  # (n, m, m)
    """S of every datum, with S Sᵀ = B."""
    n, m = len(model.targets), model.outputs
    units = torch.eye(m, dtype=torch.float64).expand(n, m, m).reshape(*outputs.shape, m)
    return of.hessian_root(outputs, units, model.weights, model.targets).reshape(n, m, m)


def _averaged_slope(
    of: Likelihood, model: LinearModel, outputs: Tensor, covariance: Tensor
) -> Tensor:  # outputs' shape
    """The gradient of log p averaged over the outputs with their covariance (n, m, m)."""
    wide = covariance[:, 0, 0] if outputs.ndim == 1 else covariance
    return counted(of.expected(outputs, wide, model.targets).gradient, model.weights)


def _prediction(posterior: Posterior, outputs: Tensor, covariance: Tensor, known: OutputUncertainty) -> Prediction:
    of, shape = posterior.likelihood, outputs.shape
    variance = covariance.diagonal(dim1=1, dim2=2).reshape(shape)
    linked, prior = covariance if len(shape) > 1 else None, known.prior_variance.double()
    spread = Spread(variance, linked, seed=posterior.seed, centred_prior=known.spread.centred_prior)
    return Prediction(
        mean=of.observed(outputs), epistemic_variance=of.observed(variance), seed=posterior.seed,
        prior_variance=of.observed(prior.reshape(shape)),
        observation=Observation(of, posterior.link, spread, outputs, posterior.temperature),
    )  # fmt: skip


def _data(features: LinearOperator, n: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a few data at a time: (b, m, q), float64."""
    m = features.shape[0] // n
    batch = max(1, BLOCK_ELEMENTS // (m * features.shape[1]))
    for start in range(0, n, batch):
        stop = min(start + batch, n)
        yield slice(start, stop), features.rows(start * m, stop * m).double().reshape(stop - start, m, -1)


def _positive(count: int) -> int:
    if count < 1:
        raise ValueError(f"count is {count}, expected at least 1")
    return count
