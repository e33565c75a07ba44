"""A posterior tuned on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood, Spread
from lapwing.bayes.likelihoods.spread import Link
from lapwing.bayes.linear_model import Observed
from lapwing.bayes.posterior import curves
from lapwing.bayes.posterior.alternatives import Alternative, Itself, OtherGaussian, ScaledNetwork, averaged
from lapwing.bayes.posterior.curves import PrecisionCurve
from lapwing.linalg.operators import LinearOperator, as_tensor

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior

Temperature = float | Literal["tune"]
OverRatio = Callable[[float], tuple[Tensor, Spread]]  # of the ratio of the present precision to another
NETWORK, SCALED = "raw network", "temperature scaling"  # candidates for the probabilities of new observations
OWN, HELD_OUT = "posterior", "posterior, precision by held-out data"
LAPLACE = "Laplace around the network, precision by held-out data"
TEMPERATURES = 0.2, 20.0  # between which one is looked for: few data would choose any
SMALLEST_SHARE = 0.01  # of a candidate beside the best one, below which it is left out
COST = 0.03  # nats
ROUNDS = 4  # of tuning, where a Krylov space grows for the precision that was found
MOST_RAISED = 40.0  # in log precision: no posterior is wider than its network then
LEAST = -1e4  # a log density below counts as this: one impossible datum must not hide what the others say


@final
@dataclass(frozen=True)
class TemperatureScaling:
    """The rival that any posterior must be compared with: the network's logits divided by one number."""

    temperature: float
    held_out: float  # mean log probability of the held-out labels at it
    held_out_plain: float  # the same at temperature one


@final
@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out targets, and how outputs at their inputs are scored."""

    likelihood: Likelihood  # with its noise
    link: Link
    targets: Tensor
    shape: tuple[int, ...]  # in which the likelihood takes outputs
    shares: Tensor  # (targets,), the part that each has in a mean
    tunes_noise: bool
    size: float = 0.0  # targets, their weights counted

    def density(self, mean: Tensor, spread: Spread, temperature: float = 1.0) -> tuple[float, float]:
        """The mean log density of the targets, at the best multiple of noise and prior precision; and that."""
        outputs = mean.reshape(self.shape) / temperature
        known = spread.reshaped(self.shape).scaled(1 / temperature)
        of, multiple = self.likelihood, 1.0
        if self.tunes_noise:
            multiple = of.best_noise_multiple(outputs, known, self.targets, self.shares)
            of = of.with_variance_times(1 / multiple)
            known = known.scaled(multiple**-0.5)
        found = of.predictive(of.checked_link(self.link), outputs, known).log_prob(self.targets)
        each = found.double().nan_to_num(nan=LEAST).clamp_min(LEAST).reshape(-1)
        return float(self.shares @ each), multiple

    def each(self, mean: Tensor, spread: Spread, temperature: float = 1.0, multiple: float = 1.0) -> Tensor:
        """The log density (targets,) of every target, where noise and prior have this multiple of their precision."""
        outputs = mean.reshape(self.shape) / temperature
        known = spread.reshaped(self.shape).scaled(multiple**-0.5 / temperature)
        of = self.likelihood.with_variance_times(1 / multiple)
        found = of.predictive(of.checked_link(self.link), outputs, known).log_prob(self.targets)
        return found.double().nan_to_num(nan=LEAST).clamp_min(LEAST).reshape(-1)

    def best_temperature(self, mean: Tensor, spread: Spread, xatol: float = 1e-5) -> tuple[float, float]:
        """The temperature of largest density, and that density."""
        found = scipy.optimize.minimize_scalar(
            lambda x: -self.density(mean, spread, float(np.exp(x)))[0], bounds=(-2, 4), method="bounded",
            options={"xatol": xatol},
        )  # fmt: skip
        return float(np.exp(found.x)), -float(found.fun)


def tuned(posterior: Posterior, validation: Any, link: Link, temperature: Temperature) -> Posterior:
    """The posterior whose precision (and noise, unless it was given) does best on held-out data."""
    held, noise_std = _observed(posterior, validation)
    of = posterior.likelihood
    if not of.has_classes and temperature != 1.0:
        raise ValueError("a temperature is for class labels: their logits are divided by it")
    features = posterior.map.features(held.inputs)
    if noise_std is not None:
        of = of.with_noise_at(noise_std, as_tensor(held.targets).shape)
    elif of.constant_curvature:
        _check_noise(of, posterior.map.outputs)
    outputs = posterior.map.network_outputs(of, held.inputs)
    known = _held_out(posterior, of, held, link, features, outputs)
    around = None if posterior.map.centre == "linear" else outputs
    curve, at_temperature = _curve(posterior, known, features, held, around, temperature)
    found = posterior.at_multiple(curve.best_precision, curve.best_noise, "held-out density")
    scale = float(posterior.prior.precision[0])
    rival = _rival(posterior, known, features, held) if of.has_classes else None
    diagnostics = replace(
        found.diagnostics, edge_of_range=curve.edge, link=link, validation_size=len(known.targets),
        held_out=None if curve.held_out is None else float(curve.held_out.max()),
        temperature_scaling=None if rival is None else asdict(rival),
    )  # fmt: skip
    found = replace(
        found, held_out_curve=curve.scaled(scale), link=link, temperature=at_temperature, diagnostics=diagnostics,
        network_residual_rms=None,  # the noise is now that around the network
    )  # fmt: skip
    if outputs is None or not of.is_discrete or temperature != 1.0:
        return found
    candidates = _on_curve(posterior, found)
    candidates |= _of_network(known, outputs, rival)
    candidates |= _around_network(posterior, known, features, held, outputs)
    return _chosen(posterior, found, candidates, known)


def tuned_until_known(posterior: Posterior, validation: Any) -> Posterior:
    """Tuned on held-out data, again where the Krylov space had to grow for the precision that was found."""
    for _ in range(ROUNDS):
        before, posterior = posterior, posterior.tune(validation)
        if posterior.gaussian.knows_as_much_as(before.gaussian):
            break
    return posterior


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """Something that could predict new labels, and the mean log density of the held-out ones under it."""

    score: float
    tuned: int  # numbers that were chosen on the same held-out data
    alternative: Alternative


def shares_of(scores: Mapping[str, float], tuned: Mapping[str, int], size: float) -> dict[str, float]:
    """What each candidate has of an average over them, the best first: e^(−AIC/2) of the held-out data (Akaike 1978).

    The log density of all held-out targets, less one nat for every number that was chosen on them, is what new data of
    the same size can be expected to have. Shares below a hundredth of the largest are left out.
    """
    names = sorted(scores, key=lambda name: -scores[name])
    totals = np.array([size * scores[name] - tuned[name] for name in names])
    shares = np.exp(totals - totals.max())
    shares[shares < SMALLEST_SHARE] = 0
    return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))


def _chosen(before: Posterior, found: Posterior, candidates: dict[str, Candidate], known: HeldOut) -> Posterior:
    """The posterior, with what predicts new labels: an average over the candidates, or for counts the best of them.

    Where the best is not the posterior at the precision by held-out data, the one that ranks inputs is at its own.
    """
    scores = {name: candidate.score for name, candidate in candidates.items()}
    tuned = {name: candidate.tuned for name, candidate in candidates.items()}
    winner = max(scores, key=lambda name: scores[name])
    shares = {winner: 1.0}
    if known.likelihood.has_classes:
        shares = shares_of(scores, tuned, known.size)
    kept, ranks = (before, OWN) if OWN in candidates and winner != HELD_OUT else (found, HELD_OUT)
    alternatives = {name: candidate.alternative for name, candidate in candidates.items()}
    predicting = averaged({**alternatives, ranks: Itself()}, shares)
    told = replace(found.diagnostics, candidate=winner, candidates=scores, shares=shares)
    if kept is before:  # the curve's own best, and whether that lies at its edge, is not what is used
        told = replace(told, tuned_by=before.diagnostics.tuned_by, edge_of_range=None)
    return replace(
        kept, diagnostics=told, alternative=predicting, link=found.link, held_out_curve=found.held_out_curve,
        network_residual_rms=None,
    )  # fmt: skip


def _on_curve(before: Posterior, found: Posterior) -> dict[str, Candidate]:
    """The posterior at the precision of the curve that is best, and at its own where a bound chose that."""
    curve, centre = found.held_out_curve, found.map.centre
    assert curve is not None
    assert curve.held_out is not None
    best = Candidate(float(curve.held_out.max()), 1, OtherGaussian(found.gaussian, found.link, centre))
    if not before.gaussian.moves:
        return {HELD_OUT: best}
    return {OWN: Candidate(curve.at_own, 0, OtherGaussian(before.gaussian, found.link, centre)), HELD_OUT: best}


def _of_network(known: HeldOut, outputs: Tensor, rival: TemperatureScaling | None) -> dict[str, Candidate]:
    """The raw network, and for classes its logits over a temperature."""
    certain = Spread(torch.zeros_like(outputs), None)
    plain = replace(known, link="probit" if "probit" in known.likelihood.links else known.link)
    raw = {NETWORK: Candidate(plain.density(outputs, certain)[0], 0, ScaledNetwork(1.0))}
    if rival is None:
        return raw
    return {**raw, SCALED: Candidate(rival.held_out, 1, ScaledNetwork(rival.temperature))}


def _around_network(
    posterior: Posterior, known: HeldOut, features: LinearOperator, held: Observed, outputs: Tensor
) -> dict[str, Candidate]:
    """Laplace's approximation around the network at its best precision, where the posterior is not that itself."""
    if posterior.model is None or not posterior.gaussian.moves:
        return {}
    fit = posterior.gaussian.fit.around_network()
    if fit is None:
        return {}
    link = known.likelihood.links[0]
    laplace = posterior.with_gaussian(posterior.gaussian.with_fit(fit))
    curve, _ = _curve(laplace, replace(known, link=link), features, held, outputs, 1.0)
    assert curve.held_out is not None
    gaussian = laplace.at_multiple(curve.best_precision, 1.0).gaussian
    return {LAPLACE: Candidate(float(curve.held_out.max()), 1, OtherGaussian(gaussian, link, "network"))}


def no_wider_than_training_allows(posterior: Posterior) -> Posterior:
    """A posterior around a network's own outputs whose training labels are no less likely than the network has them.

    By evidence such a posterior is often far too wide for class labels. So its precision is raised until averaging over
    it costs its own training labels at most `COST` nats each.
    """
    model, point = posterior.model, posterior.map.point
    if point is None or posterior.map.centre == "linear" or model is None:
        return posterior
    of = posterior.likelihood
    outputs = of.reshape_outputs(model.outputs_at_point(), model.targets)
    shares = _shares(model.weights, model.targets.numel())
    known = HeldOut(of, posterior.link, model.targets, tuple(outputs.shape), shares, False)
    full = posterior.map.are_linked(of, tuple(outputs.shape))
    over = posterior.gaussian.over_ratio(model.features, tuple(outputs.shape), full=full, around=outputs)
    if over is None:
        return posterior
    alone = replace(known, link="probit").density(outputs, Spread(torch.zeros_like(outputs), None))[0]

    def cost(log_multiple: float) -> float:
        return alone - known.density(*over(float(np.exp(-log_multiple))))[0]

    if cost(0.0) <= COST:
        return posterior
    raised = scipy.optimize.brentq(lambda x: cost(x) - COST, 0.0, MOST_RAISED, xtol=1e-2)
    return posterior.at_multiple(float(np.exp(raised)), 1.0, "evidence, raised so that training labels stay likely")


def _check_noise(of: Likelihood, outputs: int | None) -> None:
    """Refuse a noise that is known at the training data alone."""
    like = torch.zeros((1,) if outputs is None else (1, outputs), dtype=torch.float64)
    found = of.noise_variance(like, Spread(like, None))
    if isinstance(found, str):
        raise ValueError(found)


def scale_temperature(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor | None = None
) -> TemperatureScaling:
    """The temperature that maximises the probability of held-out labels."""
    count = _size(weights, targets.numel())

    def score(log_temperature: float) -> float:
        return float(likelihood.log_prob(outputs * np.exp(-log_temperature), targets, weights)) / count

    found = scipy.optimize.minimize_scalar(lambda x: -score(x), bounds=np.log(TEMPERATURES), method="bounded")
    return TemperatureScaling(float(np.exp(found.x)), score(found.x), score(0.0))


def _observed(posterior: Posterior, validation: Any) -> tuple[Observed, Any]:
    """Held-out data as the likelihood takes them, and their noise where that was given per datum."""
    triple = isinstance(validation, tuple) and len(validation) == 3
    point = posterior.map.point
    if not triple and point is not None and point.read is not None:
        return point.read(validation), None
    inputs, targets, *given = validation
    if given and (posterior.given.tunes_noise or not posterior.given.constant_curvature):
        raise ValueError("validation=(inputs, targets, noise_std) is for Gaussian noise that was given per datum")
    return Observed(inputs, as_tensor(targets)), given[0] if given else None


def _held_out(
    posterior: Posterior, of: Likelihood, held: Observed, link: Link, features: LinearOperator, outputs: Tensor | None
) -> HeldOut:
    rows = torch.Size((features.shape[0],)) if outputs is None else outputs.shape
    if outputs is None and posterior.map.outputs is not None:
        rows = torch.Size((features.shape[0] // posterior.map.outputs, posterior.map.outputs))
    targets = as_tensor(held.targets).cpu()
    shape = torch.empty(rows, device="meta").reshape(of.outputs_shape(rows, targets)).shape
    expected = of.targets_shape(shape)
    if targets.numel() != expected.numel():
        raise ValueError(f"validation has {features.shape[0]} outputs and {targets.numel()} targets")
    labels = of.checked(targets.reshape(expected), shape.numel())
    count = labels.numel()
    shares = _shares(held.weights, count)
    size = _size(held.weights, count)
    return HeldOut(of, link, labels, tuple(shape), shares, posterior.given.tunes_noise, size)


def _curve(
    posterior: Posterior, known: HeldOut, features: LinearOperator, held: Observed, outputs: Tensor | None,
    temperature: Temperature,
) -> tuple[PrecisionCurve, float]:  # fmt: skip
    """The curve over the precision, and the temperature at its best."""
    gaussian, of = posterior.gaussian, posterior.likelihood
    shape = known.shape if outputs is None else tuple(outputs.shape)
    full = posterior.map.are_linked(of, shape)
    over = gaussian.over_ratio(features, shape, full=full, around=outputs)
    if over is None:
        return _by_solving(posterior, known, held, features, temperature)

    def density(ratio: float) -> tuple[float, float]:
        if temperature == "tune":
            return known.best_temperature(*over(ratio), 1e-3)[1], 1.0
        return known.density(*over(ratio), temperature)

    points = curves.POINTS if of.constant_curvature else curves.LABEL_POINTS
    cheap = gaussian.evidence_is_closed_form
    curve = curves.held_out(gaussian.problem_in_multiples(), density, points, with_evidence=cheap)
    if temperature != "tune":
        return curve, temperature
    return curve, known.best_temperature(*over(1 / curve.best_precision))[0]


def _by_solving(
    posterior: Posterior, known: HeldOut, held: Observed, features: LinearOperator, temperature: Temperature
) -> tuple[PrecisionCurve, float]:
    """One posterior for every precision: where mean and spread are not known over a whole curve."""
    alone = replace(known, tunes_noise=False)
    fast = _by_search(posterior, known, features)
    if temperature == "tune" and fast is None:
        raise ValueError("temperature='tune' takes a posterior by Exact() or Krylov(): CG and SGD solve one at a time")
    over = fast or _by_posteriors(posterior, held, features)

    def density(ratio: float) -> tuple[float, float]:
        if temperature == "tune":
            return alone.best_temperature(*over(ratio), 1e-3)[1], 1.0
        return alone.density(*over(ratio), temperature)

    curve = curves.climbed(density) if posterior.gaussian.moves else curves.by_solving(density)
    if temperature != "tune":
        return curve, temperature
    return curve, alone.best_temperature(*over(1 / curve.best_precision))[0]


def _by_search(posterior: Posterior, known: HeldOut, features: LinearOperator) -> OverRatio | None:
    """Held-out outputs at any precision by a search each, where curvature is averaged over the posterior."""
    if not posterior.gaussian.moves:
        return None
    fast = posterior.gaussian.fit.outputs_over_precision(features, known.shape)
    if fast is None:
        return None
    own, found = float(posterior.prior.precision[0]), fast

    def over(ratio: float) -> tuple[Tensor, Spread]:
        mean, covariance = found(own / ratio)
        variance = covariance.diagonal(dim1=1, dim2=2)
        return mean, Spread(variance.reshape(known.shape), covariance if len(known.shape) > 1 else None)

    return over


def _by_posteriors(posterior: Posterior, held: Observed, features: LinearOperator) -> OverRatio:
    """The same by a whole posterior for each."""

    def over(ratio: float) -> tuple[Tensor, Spread]:
        there = posterior.at_multiple(1 / ratio, 1.0)
        centre = there.outputs_at(features, held.inputs)
        return there.likelihood.as_rows(centre).double().cpu(), there.uncertainty_at(features, centre).spread

    return over


@final
@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What a posterior says of held-out data, over its precision, and what the raw network does."""

    known: HeldOut
    over: OverRatio
    network: Tensor | None  # its own outputs
    weights: Tensor | None  # of the held-out data


def rehearsed(posterior: Posterior, validation: Any, link: Link) -> Rehearsal:
    """The rehearsal of a posterior, whose precision stays what it is."""
    held, noise_std = _observed(posterior, validation)
    of = posterior.likelihood
    if noise_std is not None:
        of = of.with_noise_at(noise_std, as_tensor(held.targets).shape)
    features = posterior.map.features(held.inputs)
    network = posterior.map.network_outputs(of, held.inputs)
    known = _held_out(posterior, of, held, link, features, network)
    shape = known.shape if network is None else tuple(network.shape)
    full = posterior.map.are_linked(of, shape)
    around = None if posterior.map.centre == "linear" else network
    over = posterior.gaussian.over_ratio(features, shape, full=full, around=around)
    over = over or _by_search(posterior, known, features) or _by_posteriors(posterior, held, features)
    return Rehearsal(known, over, network, held.weights)


def _rival(posterior: Posterior, known: HeldOut, features: LinearOperator, held: Observed) -> TemperatureScaling:
    """Temperature scaling on the same data, of the network or of the linear model's own mean."""
    centre = posterior.outputs_at(features, held.inputs, "linear" if posterior.map.point is None else "network")
    outputs = known.likelihood.as_rows(centre).double().cpu().reshape(known.shape)
    return scale_temperature(known.likelihood, outputs, known.targets, held.weights)


def _size(weights: Tensor | None, count: int) -> float:
    """How many targets there are, counted by their weights: one per target or one per datum."""
    return float(count) if weights is None else float(weights.sum()) * (count / weights.numel())


def _shares(weights: Tensor | None, count: int) -> Tensor:  # (count,)
    """The part that each of so many targets has in a mean; `weights` are one per target or one per datum."""
    each = torch.ones(count, dtype=torch.float64) if weights is None else weights.double().reshape(-1)
    return (each / each.sum()).repeat_interleave(count // len(each)) * (len(each) / count)
