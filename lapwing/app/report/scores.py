"""Numbers of a record: what every method scores on every evaluation set, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr, ndtri

import lapwing.metrics as metrics
from lapwing.app.records import LEFT_OUT, OURS, Evaluation, Measured, Predictions, Record

BINS = 15
FARTHEST = 1e-12  # a probability that stands for none
HIGHER_IS_BETTER = frozenset({"accuracy"})
UNSCORED = frozenset({"confidence", "mean std", "coverage of 90 %", "rms z"})  # neither more nor less is better


def scored(record: Record) -> Record:
    """The record with the metrics of every method on every set that has targets.

    >>> from lapwing.app import records
    >>> test = records.classification("test", [0, 1], {"MAP": [[0.8, 0.2], [0.4, 0.6]]})
    >>> scored(Record("coins", "classification", (test,))).evaluations[0].method("MAP").metrics["accuracy"].value
    1.0
    """
    return replace(record, evaluations=tuple(_scored(evaluation) for evaluation in record.evaluations))


def _scored(evaluation: Evaluation) -> Evaluation:
    targets = evaluation.targets
    if targets is None:
        return evaluation
    found, own = (
        tuple(one if one.metrics else replace(one, metrics=of_method(one, targets)) for one in part)
        for part in (evaluation.predictions, evaluation.members)
    )
    return replace(evaluation, predictions=found, members=own)


def of_method(one: Predictions, targets: np.ndarray) -> dict[str, Measured]:
    """The metrics of one method."""
    if one.probs is not None:
        return _of_classifier(one.probs, targets)
    return _of_regression(one, targets)


def spread(one: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a regression."""
    if one.mean is None or one.std is None:
        raise ValueError(f"{one.method}: neither probabilities nor a mean with its standard deviation")
    return one.mean, one.std


def _of_classifier(probs: np.ndarray, targets: np.ndarray) -> dict[str, Measured]:
    right = (probs.argmax(1) == targets).astype(float)
    error = metrics.ece_error(probs, targets, bins=BINS, resamples=50, generator=seeded())
    return {
        "accuracy": mean_of(right),
        "NLL": mean_of(metrics.nll_each(probs, targets)),
        "Brier": mean_of(metrics.brier_each(probs, targets)),
        "ECE": Measured(metrics.ece(probs, targets, bins=BINS), error),
        "confidence": mean_of(probs.max(1)),
    }


def _of_regression(one: Predictions, targets: np.ndarray) -> dict[str, Measured]:
    mean, std = spread(one)
    squares = mean_of(((targets - mean) ** 2).mean(1))
    rmse = math.sqrt(squares.value)
    known = {} if one.cdf is not None else {"CRPS": mean_of(metrics.crps_each(mean, std, targets).mean(1))}
    return {
        "NLL": mean_of(losses(one, targets)),
        **known,  # of a Gaussian
        "RMSE": Measured(rmse, squares.standard_error / (2 * rmse) if rmse else 0.0),
        "coverage of 90 %": mean_of(inside(one, targets, 0.9).mean(1)),
        "mean std": mean_of(std.mean(1)),
        "rms z": width_of(normal_scores(one, targets)),
    }


def cumulative(one: Predictions, targets: np.ndarray) -> np.ndarray:  # (n, outputs)
    """The predicted probability of less than was observed."""
    mean, std = spread(one)
    return np.asarray(ndtr((targets - mean) / std)) if one.cdf is None else one.cdf


def inside(one: Predictions, targets: np.ndarray, level: float) -> np.ndarray:  # (n, outputs), bool
    """Which targets are inside their central interval.

    >>> inside(Predictions("a", mean=np.zeros((2, 1)), std=np.ones((2, 1))), np.array([[1.6], [-1.7]]), 0.9).tolist()
    [[True], [False]]
    """
    return np.asarray(np.abs(2 * cumulative(one, targets) - 1) < level)


def normal_scores(one: Predictions, targets: np.ndarray) -> np.ndarray:  # (n, outputs)
    """Errors in predicted standard deviations, or what they would be, were the predicted distributions Gaussian."""
    if one.cdf is None:
        mean, std = spread(one)
        return np.asarray((targets - mean) / std)
    return np.asarray(ndtri(np.clip(one.cdf, FARTHEST, 1 - FARTHEST)))


def interval(one: Predictions) -> tuple[np.ndarray, np.ndarray, str]:
    """The ends of central 90 % intervals, or what stands for them, and what they are called."""
    if one.lower_90 is not None and one.upper_90 is not None:
        return one.lower_90, one.upper_90, "90 % intervals"
    mean, std = spread(one)
    name = "90 % intervals" if one.cdf is None else "1.645 predicted standard deviations to either side"
    return mean - 1.6448536 * std, mean + 1.6448536 * std, name


def width_of(z: np.ndarray) -> Measured:
    """The root mean square of standardised errors: below one, intervals are too wide.

    >>> width_of(np.array([[0.5], [-0.5]])).value
    0.5
    """
    squares = mean_of((z**2).mean(1))
    root = math.sqrt(squares.value)
    return Measured(root, squares.standard_error / (2 * root) if root else 0.0)


def mean_of(values: Any) -> Measured:
    """A mean over data and its standard error."""
    array = np.asarray(values, float)
    if len(array) < 2 or not np.isfinite(array).all():
        return Measured(float(array.mean()), 0.0 if len(array) > 1 else math.nan)
    return Measured(float(array.mean()), float(array.std(ddof=1)) / math.sqrt(len(array)))


def losses(one: Predictions, targets: np.ndarray) -> np.ndarray:  # (n,)
    """The negative log-likelihood of every datum."""
    if one.probs is not None:
        return metrics.nll_each(one.probs, targets).numpy()
    if one.log_density is not None:
        return np.asarray(-one.log_density.mean(1))
    return metrics.gaussian_nll_each(*spread(one), targets).mean(1).numpy()


def difference(one: Predictions, other: Predictions, targets: np.ndarray) -> metrics.Difference | None:
    """How much the first's NLL exceeds the second's on the same data, or None where that cannot be said."""
    first, second = losses(one, targets), losses(other, targets)
    if len(first) < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    return metrics.paired(first, second)


def chance(confidences: np.ndarray, quantile: float = 0.95, draws: int = 200) -> float:
    """The calibration error that a perfectly calibrated classifier exceeds with a chance of 1 − quantile."""
    rng, n = np.random.default_rng(0), len(confidences)
    bins = np.clip(np.ceil(confidences * BINS).astype(int) - 1, 0, BINS - 1)
    found = []
    for _ in range(draws):
        right = rng.random(n) < confidences
        found.append(np.abs(np.bincount(bins, right - confidences, minlength=BINS)).sum() / n)
    return float(np.quantile(found, quantile))


def uncertainties(one: Predictions) -> dict[str, np.ndarray]:
    """Scores of each input that are larger where the method is less certain: (n,) each."""
    if one.probs is not None:
        base = {"entropy": metrics.entropy(one.probs).numpy()}
    elif one.std is not None:
        base = {"standard deviation": one.std.mean(1)}
    else:
        base = {}
    return base | one.scores


def kind(evaluation: Evaluation) -> str:
    """Whether a set tested the predictions, or also tuned or trained them."""
    if evaluation.name == LEFT_OUT:
        return "training"
    return "validation" if evaluation.name.startswith("validation data") else "test"


def main(evaluation: Evaluation) -> Predictions:
    """The method that a page is about: ours where it is among them, else the first."""
    return next((one for one in evaluation.predictions if one.method == OURS), evaluation.predictions[0])


def ordered(evaluation: Evaluation) -> list[Predictions]:
    """All methods, the one that the page is about first."""
    first = main(evaluation)
    return [first, *(one for one in evaluation.predictions if one is not first)]


def best(values: Mapping[str, Measured | None], metric: str) -> str | None:
    """Who has the best value of a metric; None where better has no meaning."""
    known = {name: value.value for name, value in values.items() if value is not None and math.isfinite(value.value)}
    if metric in UNSCORED or len(known) < 2:
        return None
    return (max if metric in HIGHER_IS_BETTER else min)(known, key=known.__getitem__)


def winner(found: Mapping[str, Predictions], metric: str, targets: np.ndarray | None) -> str | None:
    """Who is best by a metric and ahead of all others beyond chance; None where there is a tie.

    On the same targets NLLs are compared point by point, everything else by standard errors.
    """
    first = best({name: one.metrics.get(metric) for name, one in found.items()}, metric)
    if first is None:
        return None
    others = [one for name, one in found.items() if name != first and metric in one.metrics]
    return first if all(_ahead(found[first], other, metric, targets) for other in others) else None


def _ahead(leader: Predictions, other: Predictions, metric: str, targets: np.ndarray | None) -> bool:
    if metric == "NLL" and targets is not None:
        apart = difference(other, leader, targets)
        return apart is not None and apart.z >= 2
    one, two = leader.metrics[metric], other.metrics[metric]
    return abs(one.value - two.value) > 2 * math.hypot(one.standard_error, two.standard_error)


def renamed(record: Record) -> Record:
    """A record of an earlier version, which called the raw network MAP, in today's words."""

    def of(evaluation: Evaluation) -> Evaluation:
        predictions = (
            replace(one, method="raw network") if one.method == "MAP" else one for one in evaluation.predictions
        )
        return replace(evaluation, predictions=tuple(predictions))

    return replace(record, evaluations=tuple(map(of, record.evaluations)))


def seeded() -> torch.Generator:
    """A generator that always starts alike, so that a page does not change when it is made again."""
    return torch.Generator().manual_seed(0)
