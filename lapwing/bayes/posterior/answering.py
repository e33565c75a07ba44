"""Answer only where mistakes stay rare: a threshold on confidence with a guarantee, by conformal risk control.

An input costs 1 where it is answered, wrongly, and 0 otherwise: at a higher threshold never more. With k wrong answers
among n validation examples the threshold is the lowest with (k + 1) / (n + 1) ≤ risk. Then a new input like them is
answered wrongly with probability at most `risk`, and at least risk − 2 / (n + 1) unless everything may be answered
(Angelopoulos, Bates, Fisch, Lei & Schuster 2024, theorems 1 and 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor

from lapwing.bayes.predictive import Prediction
from lapwing.metrics import risk_threshold


class Predicts(Protocol):
    """What a threshold is put on."""

    def predict(self, inputs: Any) -> Prediction:
        """Class probabilities, for one."""


@final
@dataclass(frozen=True, eq=False)
class Answers:
    """Class numbers for some inputs, and which of them are given."""

    labels: Tensor  # (n,), the most probable class
    answered: Tensor  # (n,), bool
    confidence: Tensor  # (n,), its probability

    def __repr__(self) -> str:
        return (
            f"Answers: {int(self.answered.sum())} of {len(self.labels)} inputs answered; labels, answered, confidence"
        )


@final
@dataclass(frozen=True, eq=False)
class Answering:
    """Something that predicts, and the confidence above which it answers."""

    base: Predicts
    threshold: float
    risk: float  # probability of a wrong answer, at most
    validation_size: int
    coverage: float  # share of the validation examples that are answered

    def __call__(self, inputs: Any) -> Answers:
        """Answers at new inputs."""
        confidence, labels = self.base.predict(inputs).probs.max(-1)
        return Answers(labels, confidence > self.threshold, confidence)

    def __repr__(self) -> str:
        return (
            f"answers above a confidence of {self.threshold:.3f}: {self.coverage:.0%} of {self.validation_size} "
            f"validation examples\na new input is answered wrongly with probability {self.risk:g} at most"
        )


def answering(base: Predicts, risk: float, validation: Any) -> Answering:
    """The lowest threshold that keeps to the risk."""
    if not 0 < risk < 1:
        raise ValueError(f"risk must lie between 0 and 1, got {risk}")
    inputs, labels = _pair(validation)
    found = base.predict(inputs)
    if not found.likelihood.exclusive_classes:
        raise ValueError(
            f"answer_when is for class labels, with Categorical(), not {type(found.likelihood).__name__}: for numbers "
            "answer where prediction.interval() is narrow enough"
        )
    confidence, predicted = found.probs.max(-1)
    if labels.shape != predicted.shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)}: expected one class number for each input")
    threshold = risk_threshold(confidence, predicted != labels.to(predicted.device), risk)
    coverage = float((confidence > threshold).double().mean())
    return Answering(base, threshold, risk, len(labels), coverage)


def _pair(validation: Any) -> tuple[Any, Tensor]:
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError(f"validation is {type(validation).__name__}: expected a pair (inputs, labels)")
    return validation[0], torch.as_tensor(validation[1])
