"""A classifier: which digits to answer, and which to leave to a person."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, final

import torch
from rich.table import Table
from torch import Tensor, nn

from lapwing import metrics
from lapwing.app import recording, records
from lapwing.app.demo.digits import Pair, rotated, shuffled, trained
from lapwing.app.demo.words import standing
from lapwing.bayes.likelihoods import Categorical
from lapwing.bayes.mixtures import Mixture
from lapwing.bayes.posterior import Posterior
from lapwing.facade import fit

OURS, RAW, SCALED = "lapwing", "the raw network", "temperature scaling"
AVERAGED, SEVERAL = "three networks averaged", "lapwing of three networks"
TRAINED, HELD_OUT, TESTED, NETWORKS, DEGREES = 100, 150, 500, 3, 45
THRESHOLDS = 0.5, 0.8, 0.9, 0.95
ANSWERING = 0.9


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Digits to train on, to tune on and to test on, the last also rotated."""

    train: Pair
    validation: Pair
    test: Pair
    rotated: Pair


@final
@dataclass(frozen=True, eq=False)
class ClassifierScene:
    """Probabilities (n, 10) of every method for the test digits, upright and rotated."""

    labels: Tensor  # (n,)
    upright: dict[str, Tensor]
    rotated: dict[str, Tensor]
    record: records.Record  # of one network's posterior beside the raw network and temperature scaling

    title = "A classifier: which digits to answer, and which to leave to a person?"
    picture = "classifier.png"
    panels = 1, 2

    @property
    def sentence(self) -> str:
        """What the figures say."""
        losses = {name: metrics.nll_each(probs, self.labels) for name, probs in self.upright.items()}
        return (
            f"By NLL ({float(losses[OURS].mean()):.3f}) lapwing {standing(losses, OURS)}. "
            f"{self.when_confident} {self.under_rotation}"
        )

    @property
    def when_confident(self) -> str:
        """What is answered above a threshold, beside as many answers of the cheapest rival."""
        (answered, wrong), (others, mistaken) = (
            metrics.answered(self.upright[name], self.labels, ANSWERING) for name in (OURS, SCALED)
        )
        among = wrong_among_surest(self.upright[SCALED], self.labels, answered)
        return (
            f"At {ANSWERING:.0%} confidence it answers {answered} of {len(self.labels)} digits, {wrong} wrong; "
            f"temperature scaling answers {others}, {mistaken} wrong ({among} among its {answered} surest)."
        )

    @property
    def under_rotation(self) -> str:
        """How confident, and how often right, two methods are on rotated digits."""
        (sure, right), (other, others) = (self.confidence(self.rotated[name]) for name in (OURS, SCALED))
        still = "still overconfident" if sure - right > 0.05 else "about as confident as it is right"
        return (
            f"Rotated by {DEGREES}°, lapwing is {sure:.0%} confident and {right:.0%} right, {still}; temperature "
            f"scaling {other:.0%} and {others:.0%}."
        )

    def confidence(self, probs: Tensor) -> tuple[float, float]:
        """The mean confidence, and the share that is right."""
        return metrics.confidence(probs), metrics.accuracy(probs, self.labels)

    @property
    def tables(self) -> list[Table]:
        """The figures: scores, and how many digits are answered above a threshold, how many of them wrongly."""
        scores = Table("", "accuracy", "NLL", "ECE", f"NLL, rotated {DEGREES}°")
        for name, probs in self.upright.items():
            found = metrics.nll(probs, self.labels), metrics.ece(probs, self.labels)
            rotated = metrics.nll(self.rotated[name], self.labels)
            accuracy = f"{metrics.accuracy(probs, self.labels):.1%}"
            scores.add_row(name, accuracy, *(f"{score:.3f}" for score in found), f"{rotated:.2f}")
        abstention = Table("answered, and wrong", *self.upright)
        for threshold in THRESHOLDS:
            counts = [metrics.answered(probs, self.labels, threshold) for probs in self.upright.values()]
            abstention.add_row(f"above {threshold:.0%}", *(f"{answered}, {wrong}" for answered, wrong in counts))
        return [scores, abstention]

    def draw(self, panels: Any) -> None:
        """Left: mistakes over how many are answered. Right: confidence and accuracy on rotated digits."""
        left, right = panels.flat
        for name, probs in self.upright.items():
            confidence, predicted = probs.max(1)
            mistakes = (predicted != self.labels)[confidence.argsort(descending=True)].cumsum(0)
            left.plot(range(1, len(mistakes) + 1), mistakes, label=name)
        left.set(xlabel="digits answered, the most confident first", ylabel="of them wrong")
        left.legend(fontsize=8)
        for place, probs in enumerate(self.rotated.values()):
            sure, good = self.confidence(probs)
            right.bar(place - 0.2, sure, 0.4, color="#9ecae1", label="mean confidence" if not place else None)
            right.bar(place + 0.2, good, 0.4, color="#08519c", label="share right" if not place else None)
        right.set_xticks(range(len(self.rotated)), [textwrap.fill(name, 12) for name in self.rotated], fontsize=8)
        right.set(title=f"digits rotated by {DEGREES}°", ylim=(0, 1))
        right.legend(fontsize=8)


def split() -> Split:
    """The digits in a fixed order, in three parts."""
    x, y = shuffled()
    stop = TRAINED + HELD_OUT
    test = x[stop : stop + TESTED], y[stop : stop + TESTED]
    return Split(
        (x[:TRAINED], y[:TRAINED]), (x[TRAINED:stop], y[TRAINED:stop]), test, (rotated(test[0], DEGREES), test[1])
    )


def run() -> ClassifierScene:
    """Train three networks, fit one and all of them, and predict the test digits with every method."""
    data = split()
    networks = trained(data.train, NETWORKS)
    posterior = fit(networks[0], data.train, Categorical(), validation=data.validation, progress=False)
    mixture = fit(networks, data.train, Categorical(), validation=data.validation, progress=False)
    upright, rotated = (recording.predict(posterior, pictures) for pictures, _ in (data.test, data.rotated))
    return ClassifierScene(
        data.test[1],
        probabilities(upright, posterior, networks, mixture, data.test[0]),
        probabilities(rotated, posterior, networks, mixture, data.rotated[0]),
        recorded(posterior, data, upright, rotated),
    )


def probabilities(
    found: recording.Predicted, posterior: Posterior, networks: list[nn.Module], mixture: Mixture, pictures: Tensor
) -> dict[str, Tensor]:
    """What every method says; `found` is what one network's posterior does."""
    scaling = recording.temperature(posterior)
    assert scaling is not None  # there are held-out labels
    with torch.no_grad():
        logits = torch.stack([network(pictures) for network in networks])
    return {
        RAW: logits[0].softmax(1),
        SCALED: (logits[0] / scaling).softmax(1),
        OURS: torch.from_numpy(found.probs),
        AVERAGED: logits.softmax(2).mean(0),
        SEVERAL: mixture.predict(pictures).probs,
    }


def recorded(
    posterior: Posterior, data: Split, upright: recording.Predicted, rotated: recording.Predicted
) -> records.Record:
    """For the page."""
    sets = [
        recording.of_predictions(name, found, labels.numpy(), pictures.numpy(), recording.temperature(posterior))
        for name, found, (pictures, labels) in (
            ("upright digits", upright, data.test),
            (f"digits rotated by {DEGREES}°", rotated, data.rotated),
        )
    ]
    sizes = {"train": TRAINED, "validation": HELD_OUT, "test": TESTED}
    about = records.Data(
        "scikit-learn's digits", sizes=sizes, inputs="8 × 8 pixels", target="digit",
        classes=tuple(str(digit) for digit in range(10)),
    )  # fmt: skip
    weights = posterior.map.weights
    return recording.record(
        "Handwritten digits, the demo", posterior, sets, inputs=data.test[0], command="lapwing demo", data=about,
        network=records.Network("an MLP with 16 hidden units", weights, weights),
    )  # fmt: skip


def wrong_among_surest(probs: Tensor, labels: Tensor, count: int) -> int:
    """Mistakes among the most confident answers.

    >>> wrong_among_surest(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 0, 1]), 2)
    1
    """
    confidence, predicted = probs.max(1)
    surest = confidence.argsort(descending=True)[:count]
    return int((predicted != labels)[surest].sum())
