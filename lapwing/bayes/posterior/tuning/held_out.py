"""A posterior tuned on held-out data, without the training data."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import Observed
from lapwing.bayes.modes.tangent import Tangent
from lapwing.bayes.outputs.links import Link
from lapwing.bayes.posterior.tuning import curves
from lapwing.bayes.predictive.axes import are_linked, as_rows
from lapwing.bayes.predictive.spreads import over_ratio
from lapwing.bayes.solving.structured import Approximate
from lapwing.bayes.statistics import Whitened
from lapwing.linalg.operators import as_tensor

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior

Temperature = float | Literal["tune"]


def tuned(posterior: Posterior, validation: Any, link: Link, temperature: Temperature, mode: bool) -> Posterior:
    """The posterior whose precision (and noise, unless it was given) does best on held-out data."""
    held, given = _observed(posterior, validation)
    inputs, targets = held.inputs, held.targets
    if given and (posterior.tangent is not None or posterior.given.noise_std is None):
        raise ValueError("validation=(inputs, targets, noise_std) is for Gaussian noise that was given per datum")
    if posterior.tangent is not None:
        return _by_labels(posterior, posterior.tangent, held, link, temperature, mode)
    features, tune_noise = posterior.features_of(inputs), posterior.given.noise_std is None
    variance = _noise_variance(posterior, targets, given)
    known, outputs = posterior.statistics, None if posterior.centre is None else posterior.centre.outputs_at(inputs)
    if isinstance(posterior.belief, Whitened) and not (isinstance(known, Approximate) and outputs is None):
        curve = curves.held_out(
            posterior.belief, posterior.evidence_problem(), features, targets, prior_noise=posterior.prior_noise(),
            noise_variance=variance, tune_noise=tune_noise, outputs=outputs,
            with_evidence=not isinstance(known, Approximate) or known.fits is None or known.fits.are_cheap,
            weights=held.weights,
        )  # fmt: skip
    else:
        curve = curves.by_solving(posterior.at_multiple, held, noise_std=given[0] if given else None)
    found = posterior.at_multiple(curve.best_precision, curve.best_noise, "held-out density")
    found.diagnostics.pop("network_leaves", None)  # the noise is now that around the network
    return replace(
        found, held_out_curve=curve.scaled(float(posterior.prior.precision[0])),
        diagnostics={**found.diagnostics, "edge_of_range": curve.edge},
    )  # fmt: skip


def _observed(posterior: Posterior, validation: Any) -> tuple[Observed, list[Any]]:
    """Held-out data as the likelihood takes them, and their noise where that was given per datum."""
    triple = isinstance(validation, tuple) and len(validation) == 3
    if not triple and posterior.centre is not None and posterior.centre.observed is not None:
        return posterior.centre.observed(validation), []
    inputs, targets, *given = validation
    return Observed(inputs, as_tensor(targets)), given


def _noise_variance(posterior: Posterior, targets: Any, given: list[Any]) -> Tensor | str:
    if given:
        return Gaussian(given[0]).std_of(as_tensor(targets).shape).square()
    return posterior.gaussian.variance_at(posterior.outputs)


def _by_labels(
    posterior: Posterior, tangent: Tangent, held: Observed, link: Link, temperature: Temperature, mode: bool
) -> Posterior:
    features, weights = posterior.features_of(held.inputs), held.weights
    centre = posterior.mean_at(features, held.inputs, "network").double()
    rows = as_rows(tangent.likelihood, centre)
    outputs = rows.reshape(tangent.outputs_shape(rows.shape, held.targets))
    labels = tangent.likelihood.checked(held.targets.reshape(tangent.targets_shape(outputs)), outputs.numel())
    if tangent.likelihood.has_classes:
        scaled = curves.scale_temperature(tangent.likelihood, outputs, labels, weights)
        rival = {"temperature_scaling": asdict(scaled)}
    elif temperature == 1.0:
        rival = {}
    else:
        raise ValueError("a temperature is for class labels: their logits are divided by it")
    if isinstance(posterior.belief, Whitened):
        spread = over_ratio(
            posterior.belief, features, tuple(rows.shape), posterior.prior_noise(), posterior.seed,
            full=are_linked(tangent.likelihood, centre),
        )  # fmt: skip
        curve, at_temperature = curves.held_out_labels(
            tangent.likelihood, link, outputs, labels, lambda ratio: spread(ratio).reshaped(tuple(outputs.shape)),
            posterior.evidence_problem(), temperature=temperature, weights=weights,
            with_evidence=tangent.is_cheap and tangent.likelihood.curvature == "Hessian",
        )  # fmt: skip
    elif temperature == "tune":
        raise ValueError("temperature='tune' takes a posterior by Exact() or Krylov(): CG and SGD solve one at a time")
    else:
        of_link, at_temperature = replace(posterior, link=link, temperature=temperature), temperature
        seen = replace(held, targets=labels)
        curve = curves.by_solving(lambda a, b: of_link.at_multiple(a, b, mode=False), seen)
    better = posterior.at_multiple(curve.best_precision, 1.0, "held-out density", mode)
    found = {
        "held_out": float(curve.held_out.max()) if curve.held_out is not None else None,
        **rival, "edge_of_range": curve.edge, "link": link, "validation_size": len(labels),
    }  # fmt: skip
    return replace(
        better, held_out_curve=curve.scaled(float(posterior.prior.precision[0])), link=link, temperature=at_temperature,
        diagnostics={**better.diagnostics, **found},
    )  # fmt: skip
