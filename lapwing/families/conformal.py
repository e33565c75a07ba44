"""Split conformal prediction: intervals and sets that hold the truth as often as they say, whatever the model.

The promise is about the average over inputs like the held-out ones (exchangeable with them), not about any one input,
and it holds for finite data: the coverage is at least the level, and above it by at most 1 / (held-out data + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes.predictive import Prediction
from lapwing.families.networks import BATCH, Predictive
from lapwing.network.shuffling import Source

__all__ = ["Conformal", "fit"]

Score = Literal["scaled", "absolute", "probability", "adaptive"]


@final
@dataclass(frozen=True, eq=False)
class Conformal:
    """Something that predicts, with the scores of its held-out data.

    Parameters
    ----------
    base : Posterior or any other with `predict`
        What predicts.
    score : str, optional
        "scaled" or "absolute" for numbers, "probability" or "adaptive" for classes.
    scores : Tensor
        Of the validation data, sorted.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> from lapwing.families import point
    >>> x = torch.zeros(9, 1)
    >>> network = point.fit(torch.nn.Linear(1, 1, bias=False).eval(), (x, x), Gaussian(1.0))
    >>> [float(end) for end in fit(network, (x, x + 2)).interval(x[:1], level=0.8)]
    [-2.0, 2.0]
    """

    base: Predictive
    score: Score
    scores: Tensor  # (held-out data[, outputs]), sorted along the first axis

    def predict(self, inputs: Any) -> Prediction:
        """The prediction as it was: conformal prediction adds intervals or sets to it and changes nothing else."""
        return self.base.predict(inputs)

    def threshold(self, level: float) -> Tensor:  # () or (outputs,)
        """The ⌈(n + 1) · level⌉-th smallest score; infinite where n is too small for the level.

        Parameters
        ----------
        level : float
            Probability between 0 and 1.

        Returns
        -------
        Tensor
            One, or one for each output.

        Raises
        ------
        ValueError
            If the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        rank = ceil(round((len(self.scores) + 1) * level, 9))
        if rank > len(self.scores):
            return torch.full_like(self.scores[0], torch.inf)
        return self.scores[rank - 1]

    def interval(self, inputs: Any, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, for each output by itself: mean ± threshold · std, or mean ± threshold.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.
        level : float
            Probability between 0 and 1.

        Returns
        -------
        tuple of Tensor
            Lower and upper ends.

        Raises
        ------
        ValueError
            For class labels, or if the level is not between 0 and 1.
        """
        if self.score not in ("scaled", "absolute"):
            raise ValueError("class labels have no interval: use sets(inputs, level)")
        found = self.base.predict(inputs)
        unit = found.std if self.score == "scaled" else torch.ones_like(found.mean)
        half = self.threshold(level).to(found.mean) * unit
        return found.mean - half, found.mean + half

    def sets(self, inputs: Any, level: float = 0.9) -> Tensor:  # (n, classes), bool
        """Which classes are in the set of each input; a set may be empty with score="probability".

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.
        level : float
            Probability between 0 and 1.

        Returns
        -------
        Tensor
            True for the classes in each set, (n, classes).

        Raises
        ------
        ValueError
            For numbers, or if the level is not between 0 and 1.
        """
        if self.score not in ("probability", "adaptive"):
            raise ValueError("numbers have no sets: use interval(inputs, level)")
        return _of_classes(self.base.predict(inputs).probs, self.score) <= self.threshold(level)


def fit(base: Predictive, validation: Any, *, score: Score | None = None) -> Conformal:
    """Calibrate on held-out data that neither trained nor tuned the model.

    Scores: for numbers "scaled", |error| / std, which keeps the shape of the error bars, or "absolute", |error|. For
    classes "probability", 1 − p of the true class, which gives the smallest sets (Sadinle et al. 2019), or "adaptive",
    the probability of all classes at least as likely as the true one (Romano et al. 2020, without randomisation, so
    that sets are somewhat too large), whose sets grow where the model is unsure. The first of each is the default.

    Parameters
    ----------
    base : Posterior or any other with `predict`
        What predicts.
    validation : (inputs, targets), Dataset, DataLoader or list of batches
        Data that neither trained nor tuned the model.
    score : str, optional
        "scaled" or "absolute" for numbers, "probability" or "adaptive" for classes.

    Returns
    -------
    Conformal
        With `interval` or `sets`.

    Raises
    ------
    ValueError
        If the likelihood has neither, or the score is of another kind.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> from lapwing.families import point
    >>> x = torch.linspace(0, 1, 19)[:, None]
    >>> network = point.fit(torch.nn.Linear(1, 1, bias=False).eval(), (x, x), Gaussian(1.0))
    >>> low, high = fit(network, (x, network.predict(x).mean + x)).interval(x[:1], level=0.9)
    >>> round(float(high), 3)  # the 18th smallest of 19 errors
    0.944
    """
    found = [(base.predict(inputs), targets) for inputs, targets in Source.of(validation).pairs(BATCH)]
    score = _checked(found[0][0], score)
    scores = torch.cat([_scores(one, targets, score) for one, targets in found])
    return Conformal(base, score, scores.sort(0).values)


def _checked(found: Prediction, score: Score | None) -> Score:
    of = found.likelihood
    if not (of.exclusive_classes or of.constant_curvature):
        raise ValueError("conformal sets are for Categorical() and intervals for Gaussian(): Bernoulli() has neither")
    valid: tuple[Score, Score] = ("scaled", "absolute") if not of.has_classes else ("probability", "adaptive")
    if score is not None and score not in valid:
        raise ValueError(f"score is {score!r}, expected {valid[0]!r} or {valid[1]!r} for this likelihood")
    return valid[0] if score is None else score


def _scores(found: Prediction, targets: Tensor, score: Score) -> Tensor:
    if score in ("probability", "adaptive"):
        return _of_classes(found.probs, score).gather(1, targets.long()[:, None])[:, 0]
    errors = (targets.reshape(found.mean.shape).to(found.mean) - found.mean).abs()
    return errors / found.std if score == "scaled" else errors


def _of_classes(probs: Tensor, score: Score) -> Tensor:  # (n, c)
    """How far each class is from being the answer."""
    if score == "probability":
        return 1 - probs
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    return torch.empty_like(probs).scatter_(1, order, ordered.cumsum(1))
