"""A classifier: which digits to answer, and which to leave to a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from rich.table import Table
from torch import Tensor

from lapwing import metrics
from lapwing.app import recording, records
from lapwing.app.demo.digits import Pair, rotated, shuffled, trained
from lapwing.app.demo.words import standing
from lapwing.bayes.likelihoods import Categorical
from lapwing.bayes.posterior import Posterior
from lapwing.facade import fit

OURS, RAW, SCALED, SEVERAL = "lapwing", "the raw network", "temperature scaling", "lapwing of three networks"
TRAINED, HELD_OUT, NETWORKS, DEGREES = 100, 200, 3, 45
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
    turned: dict[str, Tensor]
    posterior: Posterior
    data: Split

    title = "A classifier: which digits to answer, and which to leave to a person?"
    picture = "classifier.png"
    panels = 1, 2

    @property
    def sentence(self) -> str:
        """What the figures say."""
        losses = {name: metrics.nll_each(probs, self.labels) for name, probs in self.upright.items()}
        answered, wrong = metrics.answered(self.upright[OURS], self.labels, ANSWERING)
        others, mistaken = metrics.answered(self.upright[SCALED], self.labels, ANSWERING)
        return (
            f"By NLL ({float(losses[OURS].mean()):.3f}) lapwing {standing(losses, OURS)}. Above {ANSWERING:.0%} "
            f"confidence it answers {answered} of {len(self.labels)} digits, {wrong} of them wrong; temperature scaling "
            f"answers {others}, {mistaken} wrong, and of its {answered} surest "
            f"{wrong_among_surest(self.upright[SCALED], self.labels, answered)} wrong. {self.under_rotation}"
        )

    @property
    def under_rotation(self) -> str:
        """How confident, and how often right, two methods are on rotated digits."""
        (sure, right), (other, others) = (self.confidence(self.turned[name]) for name in (OURS, SCALED))
        still = "still overconfident" if sure - right > 0.05 else "about as confident as it is right"
        return (
            f"Rotated by {DEGREES}°, lapwing is {sure:.0%} confident and {right:.0%} right, {still}; temperature "
            f"scaling {other:.0%} and {others:.0%}."
        )

    def confidence(self, probs: Tensor) -> tuple[float, float]:
        """The mean confidence, and the share that is right."""
        return metrics.confidence(probs), metrics.accuracy(probs, self.labels)

    @property
    def table(self) -> Table:
        """The figures: scores, and how many are answered above a threshold, how many of them wrong."""
        columns = [f"above {threshold:.0%}" for threshold in THRESHOLDS]
        found = Table("", "accuracy", "NLL", *columns, f"rotated {DEGREES}°: NLL", caption=CAPTION)
        for name, probs in self.upright.items():
            counts = [metrics.answered(probs, self.labels, threshold) for threshold in THRESHOLDS]
            scores = f"{metrics.accuracy(probs, self.labels):.1%}", f"{metrics.nll(probs, self.labels):.3f}"
            shown = [f"{answered}, {wrong}" for answered, wrong in counts]
            found.add_row(name, *scores, *shown, f"{metrics.nll(self.turned[name], self.labels):.2f}")
        return found

    def draw(self, panels: Any) -> None:
        """Left: mistakes over how many are answered. Right: confidence and accuracy on rotated digits."""
        left, right = panels.flat
        for name, probs in self.upright.items():
            confidence, predicted = probs.max(1)
            mistakes = (predicted != self.labels)[confidence.argsort(descending=True)].cumsum(0)
            left.plot(range(1, len(mistakes) + 1), mistakes, label=name)
        left.set(xlabel="digits answered, the most confident first", ylabel="of them wrong")
        left.legend(fontsize=8)
        for place, probs in enumerate(self.turned.values()):
            sure, good = self.confidence(probs)
            right.bar(place - 0.2, sure, 0.4, color="#9ecae1", label="mean confidence" if not place else None)
            right.bar(place + 0.2, good, 0.4, color="#08519c", label="share right" if not place else None)
        right.set_xticks(range(len(self.turned)), [name.replace(" ", "\n", 1) for name in self.turned], fontsize=8)
        right.set(title=f"digits rotated by {DEGREES}°", ylim=(0, 1))
        right.legend(fontsize=8)

    def record(self) -> records.Record:
        """For the page: one network's posterior beside the raw network and temperature scaling."""
        sets = [
            recording.evaluation("upright digits", self.posterior, *self.data.test),
            recording.evaluation(f"digits rotated by {DEGREES}°", self.posterior, *self.data.rotated),
        ]
        sizes = {"train": TRAINED, "validation": HELD_OUT, "test": len(self.labels)}
        classes = tuple(str(digit) for digit in range(10))
        data = records.Data(
            "scikit-learn's digits", sizes=sizes, inputs="8 × 8 pixels", target="digit", classes=classes
        )
        weights = self.posterior.map.weights
        return recording.record(
            "Handwritten digits, the demo", self.posterior, sets, inputs=self.data.test[0], command="lapwing demo",
            data=data, network=records.Network("an MLP with 32 hidden units", weights, weights),
        )  # fmt: skip


CAPTION = "above 90%: how many digits are answered with that confidence, how many of the answers are wrong"


def split() -> Split:
    """The digits in a fixed order, in three parts."""
    x, y = shuffled()
    stop = TRAINED + HELD_OUT
    test = x[stop:], y[stop:]
    return Split(
        (x[:TRAINED], y[:TRAINED]), (x[TRAINED:stop], y[TRAINED:stop]), test, (rotated(test[0], DEGREES), test[1])
    )


def run() -> ClassifierScene:
    """Train three networks, fit one and all of them, and predict the test digits with every method."""
    data = split()
    networks = trained(data.train, NETWORKS)
    posterior = fit(networks[0], data.train, Categorical(), validation=data.validation, progress=False)
    mixture = fit(networks, data.train, Categorical(), validation=data.validation, progress=False)
    scaling = recording.temperature(posterior)
    assert scaling is not None  # there are held-out labels

    def probabilities(pictures: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = networks[0](pictures)
        return {
            RAW: logits.softmax(1),
            SCALED: (logits / scaling).softmax(1),
            OURS: posterior.predict(pictures).probs,
            SEVERAL: mixture.predict(pictures).probs,
        }

    return ClassifierScene(data.test[1], probabilities(data.test[0]), probabilities(data.rotated[0]), posterior, data)


def wrong_among_surest(probs: Tensor, labels: Tensor, count: int) -> int:
    """Mistakes among the most confident answers.

    >>> wrong_among_surest(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 0, 1]), 2)
    1
    """
    confidence, predicted = probs.max(1)
    surest = confidence.argsort(descending=True)[:count]
    return int((predicted != labels)[surest].sum())
