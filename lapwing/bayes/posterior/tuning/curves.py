"""Precision and noise over a whole curve: by evidence, or by the density of held-out data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.evidence import Precisions, Problem, at_ratios, objectives
from lapwing.bayes.evidence.indefinite import first_peak
from lapwing.bayes.likelihoods import Curved
from lapwing.bayes.linear_model import Observed
from lapwing.bayes.outputs.links import Link
from lapwing.bayes.outputs.spread import Spread
from lapwing.bayes.predictive.probabilities import checked
from lapwing.bayes.predictive.spreads import over_ratio, remaining
from lapwing.bayes.statistics import Whitened
from lapwing.linalg.operators import Diagonal, LinearOperator, as_tensor

POINTS = 81
LABEL_POINTS = 41  # where every point takes probabilities, or a mode
LEAST = -1e4  # a log density below counts as this: one impossible datum must not hide what the others say


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """Scores over the prior precision, with the noise precision used at each; both as multiples until `scaled`."""

    precision: Tensor  # (points,)
    noise: Tensor  # (points,), multiple of the noise precision
    log_evidence: Tensor  # (points,)
    held_out: Tensor | None  # (points,), mean log predictive density per datum
    best_precision: float
    best_noise: float

    @property
    def edge(self) -> Literal["stiffest", "widest"] | None:
        """The end of the range that held-out data chose, where they did: what they want lies beyond it."""
        if self.held_out is None:
            return None
        best, ends = int(self.held_out.argmax()), {0: "widest", len(self.held_out) - 1: "stiffest"}
        return ends.get(best)  # type: ignore[return-value]

    def scaled(self, precision: float) -> Curve:
        """The curve in units of the prior precision itself."""
        return replace(self, precision=self.precision * precision, best_precision=self.best_precision * precision)


def by_evidence(problem: Problem, tune_noise: bool, points: int = POINTS) -> Curve:
    """Log evidence over multiples of the precision."""
    return _curve(problem, tune_noise, None, points=points)


def held_out(
    whitened: Whitened, problem: Problem, features: LinearOperator, targets: Any,
    *, noise_variance: Tensor | str, tune_noise: bool, prior_noise: Tensor, outputs: Tensor | None = None,
    with_evidence: bool = True, weights: Tensor | None = None,
) -> Curve:  # fmt: skip
    """Held-out density and evidence over multiples of the precision.

    The predictive mean depends only on the ratio q of noise to prior precision, and the variances are
    (q v(q) + noise) / b for a multiple b of both, so the best b of each ratio is known in closed form. `outputs` are
    the predictive mean where it is a network's own.
    """
    if isinstance(noise_variance, str):
        raise ValueError(noise_variance)
    y = as_tensor(targets).double().reshape(-1)
    if len(y) != features.shape[0]:
        raise ValueError(f"validation has {features.shape[0]} outputs and {len(y)} targets")
    noise = noise_variance.reshape(-1).repeat(len(y) // noise_variance.numel())
    share = _shares(weights, len(y))
    if outputs is None:
        mean_at, variance = _over_ratio(whitened, features, prior_noise)
    else:
        fixed, shape = outputs.double().reshape(-1), tuple(outputs.shape)
        spread_at = over_ratio(whitened, features, shape, prior_noise, 0, full=False)
        mean_at, variance = lambda _: fixed, lambda ratio: spread_at(ratio).variance.reshape(-1) / ratio

    def density(ratio: float) -> tuple[float, float]:
        mean = mean_at(ratio)
        spread = ratio * variance(ratio) + noise
        errors = (y - mean).square() / spread
        b = float(1 / (share @ errors)) if tune_noise else 1.0
        return float(-0.5 * share @ (b * errors + (2 * np.pi * spread / b).log())), b

    return _curve(problem, tune_noise, density, with_evidence=with_evidence)


@final
@dataclass(frozen=True)
class TemperatureScaling:
    """The rival that any posterior must be compared with: the network's logits divided by one number."""

    temperature: float
    held_out: float  # mean log probability of the held-out labels at it
    held_out_plain: float  # the same at temperature one


def scale_temperature(
    likelihood: Curved, outputs: Tensor, targets: Tensor, weights: Tensor | None = None
) -> TemperatureScaling:
    """The temperature that maximises the probability of held-out labels."""
    count = len(targets) if weights is None else float(weights.sum())

    def score(log_temperature: float) -> float:
        return float(likelihood.log_prob(outputs * np.exp(-log_temperature), targets, weights)) / count

    found = scipy.optimize.minimize_scalar(lambda x: -score(x), bounds=(-4, 6), method="bounded")
    return TemperatureScaling(float(np.exp(found.x)), score(found.x), score(0.0))


def held_out_labels(
    likelihood: Curved, link: Link, outputs: Tensor, targets: Tensor, spread: Callable[[float], Spread],
    problem: Problem, *, with_evidence: bool, temperature: float | Literal["tune"], weights: Tensor | None = None,
) -> tuple[Curve, float]:  # fmt: skip
    """Held-out log probability over multiples of the precision, and the temperature at its best.

    `spread` is that of the held-out outputs as a function of the ratio of the old precision to the new one.
    """

    def cooled(ratio: float, log_temperature: float) -> float:
        cool, known = float(np.exp(-log_temperature)), spread(ratio)
        predictive = likelihood.predictive(checked(likelihood, link), cool * outputs, known.scaled(cool))
        found = predictive.log_prob(targets).nan_to_num(nan=LEAST).clamp_min(LEAST)
        each = found.reshape(len(targets), -1).sum(1).double()
        return float(_shares(weights, len(targets)) @ each)

    def density(ratio: float) -> tuple[float, float]:
        if temperature != "tune":
            return cooled(ratio, np.log(temperature)), 1.0
        best = scipy.optimize.minimize_scalar(
            lambda x: -cooled(ratio, x), bounds=(-2, 4), method="bounded", options={"xatol": 1e-3}
        )
        return -float(best.fun), 1.0

    curve = _curve(problem, False, density, with_evidence=with_evidence, points=LABEL_POINTS)
    if temperature != "tune":
        return curve, temperature
    ratio = 1 / curve.best_precision
    found = scipy.optimize.minimize_scalar(lambda x: -cooled(ratio, x), bounds=(-2, 4), method="bounded")
    return curve, float(np.exp(found.x))


def by_solving(at: Callable[[float, float], Any], held: Observed, points: int = 9, noise_std: Any = None) -> Curve:
    """Held-out density over multiples of the precision at the tuned noise, one posterior solved for each."""
    multiples = np.logspace(-2, 2, points)
    posteriors = [at(float(multiple), 1.0) for multiple in multiples]
    predictions = [posterior.predict(held.inputs) for posterior in posteriors]
    if noise_std is not None:
        predictions = [prediction.with_noise(noise_std) for prediction in predictions]

    def score(found: Any) -> float:
        each = found.log_prob(held.targets.reshape(found.target_shape)).double().reshape(-1)
        return float(_shares(held.weights, len(each)) @ each)

    scores = [score(prediction) for prediction in predictions]
    evidences = torch.tensor([posterior.log_evidence.value for posterior in posteriors], dtype=torch.float64)
    precision, ones = torch.from_numpy(multiples), torch.ones(points, dtype=torch.float64)
    held_out = torch.tensor(scores, dtype=torch.float64)
    return Curve(precision, ones, evidences, held_out, float(multiples[int(np.argmax(scores))]), 1.0)


def _shares(weights: Tensor | None, count: int) -> Tensor:  # (count,)
    """The part that each of so many targets has in a mean; `weights` are one per target or one per datum."""
    each = torch.ones(count, dtype=torch.float64) if weights is None else weights.double().reshape(-1)
    return (each / each.sum()).repeat_interleave(count // len(each)) * (len(each) / count)


def _over_ratio(
    whitened: Whitened, features: LinearOperator, prior_noise: Tensor
) -> tuple[Callable[[float], Tensor], Callable[[float], Tensor]]:
    """Mean and variance, in units of the prior's, of the outputs at each ratio of noise to prior precision."""
    projected, k = whitened.project(features), whitened.values
    variance = _variance_over_ratio(whitened, features, projected, prior_noise)
    return lambda ratio: projected @ (ratio * k.sqrt() * whitened.statistics.targets / (1 + ratio * k)), variance


def _variance_over_ratio(
    whitened: Whitened, features: LinearOperator, projected: Tensor, prior_noise: Tensor
) -> Callable[[float], Tensor]:
    """The variance of the outputs, in units of the prior's, as a function of the ratio of noise to prior precision."""
    scaled, k = features @ Diagonal(whitened.std.to(features.like)), whitened.values
    if not whitened.exact:
        prior_draws = (scaled @ prior_noise.to(features.like)).double()
        return lambda ratio: (prior_draws + projected @ whitened.pull(ratio)).square().mean(1)
    prior, squares = None if whitened.spectrum.complete else scaled.row_squares().double(), projected.square()
    return lambda ratio: remaining(prior, squares.matmul, ratio * k, full=False)


def _curve(
    problem: Problem, tune_noise: bool, density: Callable[[float], tuple[float, float]] | None,
    *, with_evidence: bool = True, points: int = POINTS,
) -> Curve:  # fmt: skip
    """A grid of ratios, refined around the best one; an evidence that is left out is NaN."""
    problem = replace(problem, tune_noise=tune_noise)
    start = Precisions(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    def score(log_ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is maximised, the noise multiple and the log evidence at ratios of prior to noise precision."""
        ratios = torch.from_numpy(np.exp(log_ratios))
        if density is None:
            at = at_ratios(problem, start, ratios)
            values = objectives(problem, at).numpy()
            return values, at.noise[:, 0].numpy(), values
        values, b = np.array([density(float(1 / ratio)) for ratio in ratios]).T
        if not with_evidence:
            return values, b, np.full_like(values, np.nan)
        at = Precisions((ratios * torch.from_numpy(b))[:, None], torch.from_numpy(b.copy())[:, None])
        return values, b, objectives(problem, at).numpy()

    centre, lowest = np.log(max(problem.largest, 1.0)), np.log(max(1.001 * problem.positive_from, 1e-300))
    grid = np.linspace(max(min(-12.0, centre - 23), lowest), centre + 7, points)
    scores, noise, evidences = score(grid)
    best = int(np.argmax(scores))
    if density is None and problem.positive_from > 0:  # the evidence grows without bound at the lower end
        best = points - 1 - (first_peak(scores[::-1]) or 0)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = scipy.optimize.minimize_scalar(lambda x: -score(np.array([x]))[0][0], bounds=(low, high), method="bounded")
    top = float(score(np.array([found.x]))[1][0])
    return Curve(
        torch.from_numpy(np.exp(grid) * noise), torch.from_numpy(noise.copy()), torch.from_numpy(evidences.copy()),
        None if density is None else torch.from_numpy(scores.copy()),
        best_precision=float(np.exp(found.x) * top), best_noise=top,
    )  # fmt: skip
