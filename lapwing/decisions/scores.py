"""Scores of how unfamiliar an input is, from what the last layer of a classifier is given and what it makes of it.

Each score is a function of the training examples that returns a function of new ones; larger is less familiar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.decisions.layers import Mahalanobis

NEIGHBOUR = 50  # whose distance counts
POWER, LARGEST = 0.1, 100  # of GEN: exponent, and how many classes at most
ROW_BLOCK = 512
RIDGE = 1e-6  # of the mean variance, added to covariances so that they can be inverted


@final
@dataclass(frozen=True, eq=False)
class LastInputs:
    """Examples as the last layer sees them: its inputs (n, q) and the logits (n, c) that it makes of them.

    With numbers of the layers before, (n, k) for each part of the network.
    """

    features: Tensor
    logits: Tensor
    before: tuple[Tensor, ...] = ()

    def every(self, step: int, start: int) -> LastInputs:
        """Every so many examples, from one on."""
        chosen = slice(start, None, step)
        return LastInputs(self.features[chosen], self.logits[chosen], tuple(part[chosen] for part in self.before))


@final
@dataclass(frozen=True, eq=False)
class TrainingFeatures:
    """The training examples as the last layer sees them, their labels, and the layer."""

    seen: LastInputs
    labels: Tensor  # (n,)
    weight: Tensor  # (c, q)
    bias: Tensor  # (c,)


Scorer = Callable[[LastInputs], Tensor]


def max_probability(trained: TrainingFeatures) -> Scorer:  # noqa: ARG001
    """One minus the largest probability (Hendrycks & Gimpel 2017)."""
    return lambda new: 1 - new.logits.softmax(1).amax(1)


def entropy(trained: TrainingFeatures) -> Scorer:  # noqa: ARG001
    """−Σ p log p."""
    return lambda new: torch.special.entr(new.logits.softmax(1)).sum(1)


def energy(trained: TrainingFeatures) -> Scorer:  # noqa: ARG001
    """−log Σ exp(logit) (Liu et al. 2020)."""
    return lambda new: -new.logits.logsumexp(1)


def generalised_entropy(trained: TrainingFeatures) -> Scorer:  # noqa: ARG001
    """GEN, Σ pᵞ(1 − p)ᵞ over the largest probabilities, γ = 0.1 (Liu, Lochman & Zach 2023)."""

    def score(new: LastInputs) -> Tensor:
        probs = new.logits.softmax(1)
        largest = probs.topk(min(LARGEST, probs.shape[1]), dim=1).values
        return (largest * (1 - largest)).clamp_min(0).pow(POWER).sum(1)

    return score


def nearest_neighbour(trained: TrainingFeatures) -> Scorer:
    """KNN, the distance to the 50th nearest training example, of features of unit length (Sun et al. 2022)."""
    known = _unit(trained.seen.features)
    place = min(NEIGHBOUR, len(known))

    def score(new: LastInputs) -> Tensor:
        parts = _unit(new.features).split(ROW_BLOCK)
        return torch.cat([torch.cdist(part, known).kthvalue(place, dim=1).values for part in parts])

    return score


def relative_mahalanobis(trained: TrainingFeatures) -> Scorer:
    """The least squared Mahalanobis distance from a class, less that from all training examples (Ren et al. 2021)."""
    features = trained.seen.features
    present = trained.labels.unique()
    means = torch.stack([features[trained.labels == label].mean(0) for label in present])
    within = features - means[torch.searchsorted(present, trained.labels)]
    centre = features.mean(0)
    of_class, of_all = _whitening(within), _whitening(features - centre)

    def score(new: LastInputs) -> Tensor:
        whole = ((new.features - centre) @ of_all).square().sum(1)
        nearest = torch.cdist(new.features @ of_class, means @ of_class).square().amin(1)
        return nearest - whole

    return score


def virtual_logit(trained: TrainingFeatures) -> Scorer:
    """ViM: the norm of the features outside their principal subspace, as one more logit (Wang et al. 2022)."""
    origin = -torch.linalg.pinv(trained.weight) @ trained.bias
    shifted = trained.seen.features - origin
    _, directions = torch.linalg.eigh(shifted.mT @ shifted)
    outside = directions[:, : shifted.shape[1] - _principal(shifted.shape[1])]
    largest = trained.seen.logits.amax(1)
    scale = largest.mean() / (shifted @ outside).norm(dim=1).mean().clamp_min(1e-300)
    return lambda new: scale * ((new.features - origin) @ outside).norm(dim=1) - new.logits.logsumexp(1)


def boundary_distance(trained: TrainingFeatures) -> Scorer:
    """fDBD: minus the mean distance to decision boundaries, relative to that from the mean (Liu & Qin 2024)."""
    centre = trained.seen.features.mean(0)
    apart = torch.cdist(trained.weight, trained.weight)
    apart.fill_diagonal_(torch.inf)

    def score(new: LastInputs) -> Tensor:
        largest, predicted = new.logits.max(1)
        gaps = (largest[:, None] - new.logits) / apart[predicted]
        away = (new.features - centre).norm(dim=1).clamp_min(1e-300)
        return -gaps.sum(1) / (new.logits.shape[1] - 1) / away

    return score


def leverage(trained: TrainingFeatures) -> Scorer:
    """Posterior over prior variance of a last layer with unit curvature: φᵀ(ΦᵀΦ + αI)⁻¹φ α / φᵀφ.

    α is the mean eigenvalue of ΦᵀΦ over its examples, so that the prior counts as one example.
    """
    features = _with_ones(trained.seen.features)
    gram = features.mT @ features
    precision = gram.trace() / len(features)
    matrix = torch.linalg.inv(gram + precision * torch.eye(len(gram), dtype=gram.dtype))

    def score(new: LastInputs) -> Tensor:
        rows = _with_ones(new.features)
        return precision * ((rows @ matrix) * rows).sum(1) / rows.square().sum(1)

    return score


SCORES: dict[str, Callable[[TrainingFeatures], Scorer]] = {
    "max_probability": max_probability,
    "entropy": entropy,
    "energy": energy,
    "gen": generalised_entropy,
    "knn": nearest_neighbour,
    "relative_mahalanobis": relative_mahalanobis,
    "vim": virtual_logit,
    "fdbd": boundary_distance,
    "leverage": leverage,
}


def scorers_of(trained: TrainingFeatures) -> dict[str, Scorer]:
    """Every score by its name, and one for each part of the network before the last layer."""
    parts = {f"layers_{number + 1}": _of_part(trained, number) for number in range(len(trained.seen.before))}
    return {name: make(trained) for name, make in SCORES.items()} | parts


def _of_part(trained: TrainingFeatures, number: int) -> Scorer:
    distance = Mahalanobis.of(trained.seen.before[number])
    return lambda new: distance(new.before[number])


def _unit(features: Tensor) -> Tensor:
    return features / features.norm(dim=1, keepdim=True).clamp_min(1e-300)


def _with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], dim=1)


def _whitening(centred: Tensor) -> Tensor:  # (q, q)
    """L with L Lᵀ the inverse covariance, a little stabilised."""
    covariance = centred.mT @ centred / len(centred)
    ridge = RIDGE * covariance.diagonal().mean().clamp_min(1e-300)
    inverse = torch.linalg.inv(covariance + ridge * torch.eye(len(covariance), dtype=covariance.dtype))
    return torch.linalg.cholesky((inverse + inverse.mT) / 2)


def _principal(width: int) -> int:
    """The size of the principal subspace that the authors of ViM take."""
    if width >= 2048:
        return 1000
    if width >= 768:
        return 512
    return width // 2
