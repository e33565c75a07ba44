"""What a method is judged by, the same for all: from its prediction, and from its draws where it has them."""

from __future__ import annotations

from math import log, nan
from typing import Any

import torch
from torch import Generator, Tensor

from lapwing import metrics
from lapwing.bayes.predictive import Prediction

LEVEL = 0.9
GROUPS = 500


def of_numbers(found: Prediction, targets: Tensor, unit: float = 1.0) -> dict[str, float]:
    """Scores of a regression in the targets' own units, where targets were divided by `unit` before training.

    `nll` is of the Gaussian with the prediction's mean and variance; `mixture_nll` of the average density over draws,
    the same but for the shape; `joint_nll` per datum of ten draws from two inputs at a time.
    """
    mean, std, y = (part.double() for part in (found.mean, found.std, targets.reshape(found.mean.shape)))
    low, high = (end.double() for end in found.interval(LEVEL))
    scores = {
        "nll": metrics.gaussian_nll(mean, std, y) + log(unit),
        "rmse": unit * metrics.rmse(mean, y),
        "crps": unit * metrics.crps(mean, std, y),
        "coverage": metrics.coverage(low, high, y),
        "width": unit * metrics.width(low, high),
    }
    if found.draws is None or len(found.draws) < 2:
        return {**scores, "mixture_nll": scores["nll"], "joint_nll": nan}
    density = torch.distributions.Normal(found.draws.double(), found.aleatoric_variance.double().sqrt())
    terms = density.log_prob(y).reshape(len(found.draws), len(y), -1).sum(2) - log(unit) * mean[0].numel()
    groups = metrics.dyads(len(y), GROUPS, generator=Generator().manual_seed(0))
    singles = torch.arange(len(y))[:, None]
    return {
        **scores, "mixture_nll": metrics.joint_nll(terms, singles), "joint_nll": metrics.joint_nll(terms, groups),
    }  # fmt: skip


def of_classes(found: Prediction, labels: Tensor) -> dict[str, float]:
    """Scores of a classification."""
    probs = found.probs.double()
    probs = probs / probs.sum(1, keepdim=True)
    wrong = (probs.argmax(1) != labels).double()
    return {
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "accuracy": metrics.accuracy(probs, labels),
        "brier": metrics.brier(probs, labels),
        "equal_mass_ece": metrics.ece(probs, labels, binning="mass"),
        "classwise_ece": metrics.classwise_ece(probs, labels),
        "confidence": metrics.confidence(probs),
        "selective_risk": metrics.risk_coverage(metrics.entropy(probs), wrong).area,
    }


def of_foreign(inside: Prediction, outside: Prediction) -> dict[str, float]:
    """How well several scores tell unfamiliar inputs from familiar ones; high scores mean unfamiliar."""
    found: dict[str, float] = {}
    for name, score in FOREIGN.items():
        try:
            familiar, foreign = score(inside), score(outside)
        except ValueError:  # no prior, so no novelty
            continue
        if float(familiar.std()) == 0 and float(foreign.std()) == 0:  # one network alone has no spread
            continue
        found |= {
            f"auroc_{name}": metrics.auroc(familiar, foreign),
            f"aupr_{name}": metrics.aupr(familiar, foreign),
            f"fpr95_{name}": metrics.fpr95(familiar, foreign),
        }
    return found


FOREIGN: dict[str, Any] = {
    "entropy": lambda found: found.entropy,
    "max_probability": lambda found: -found.probs.amax(1),
    "mutual_information": lambda found: found.mutual_information,
    "variance": lambda found: found.score_variance,
    "novelty": lambda found: found.novelty,
}


def validation_nll(found: Any, data: tuple[Tensor, Tensor]) -> float:
    """The held-out NLL by which settings of a method are chosen."""
    inputs, targets = data
    prediction: Prediction = found.predict(inputs)
    return -float(prediction.log_prob(targets.reshape(prediction.target_shape)).double().mean())
