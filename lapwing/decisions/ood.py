"""Which inputs are out of distribution: the usual scores of a classifier, and one that is made of all of them.

The combination needs no out-of-distribution data. Each score is replaced by −log of the share of familiar inputs that
score as high; beyond their highest tenth that share is taken to fall exponentially, so that far inputs are still
told apart. An input is as unfamiliar as the most surprised of all scores says. On development pairs (digits 0–4
against 5–9, rotated, inverted and dim digits, noise) the largest was better than the mean, and than fewer scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, final

import torch
from torch import Tensor, nn

from lapwing.decisions.scores import SCORES, LastInputs, Scorer, TrainingFeatures
from lapwing.families.monitor import Alarms
from lapwing.network.batches import Inputs, as_batches
from lapwing.network.jacobian import Jacobian, Network
from lapwing.network.last_layer import LastLayer
from lapwing.network.parameters import last_layer
from lapwing.runtime.progress import Report, reporter

MOST_TRAINING = 10_000  # examples that scores are made from
TAIL = 0.1  # share of familiar inputs whose excess says how fast the share falls beyond


@final
@dataclass(frozen=True, eq=False)
class Surprise:
    """−log of the share of familiar inputs with a score as high."""

    known: Tensor  # (n,), sorted
    edge: float  # where the tail begins
    excess: float  # mean of what lies above it

    @staticmethod
    def of(scores: Tensor) -> Surprise:
        """From scores of familiar inputs."""
        known = scores.sort().values
        tail = max(2, round(TAIL * len(known)))
        edge = known[-tail]
        return Surprise(known, float(edge), float((known[-tail:] - edge).mean().clamp_min(1e-300)))

    def __call__(self, scores: Tensor) -> Tensor:  # (n,)
        """Of new inputs."""
        above = len(self.known) - torch.searchsorted(self.known, scores)
        inside = -((above + 1) / (len(self.known) + 1)).double().log()
        share = (len(self.known) - torch.searchsorted(self.known, self.edge) + 1) / (len(self.known) + 1)
        beyond = -log(share) + (scores - self.edge) / self.excess
        return torch.where(scores > self.edge, beyond, inside)


@final
@dataclass(frozen=True, eq=False)
class Detector(Alarms):
    """A classifier with the scores of familiar inputs: `scores`, `p_values`, `flags` and `drift` of new ones."""

    layer: LastLayer
    scorers: dict[str, Scorer]
    surprises: dict[str, Surprise]  # by name of the score
    score: str  # the one that alarms go by
    known: Tensor  # (familiar inputs,), sorted

    def scores(self, inputs: Any) -> Tensor:  # (n,)
        """How unfamiliar each input is, by the chosen score."""
        return self.table(inputs)[self.score]

    def table(self, inputs: Any) -> dict[str, Tensor]:  # (n,) each
        """Every score of each input, and their combination."""
        return _table(seen(self.layer, _batches(inputs)), self.scorers, self.surprises)

    def __repr__(self) -> str:
        return f"Detector by the score {self.score!r}, {len(self.known)} familiar inputs: flags, p_values, drift, table"


def ood(
    model: nn.Module, data: Any, *, familiar: Any, score: str = "combined", progress: bool | Report | None = None
) -> Detector:
    """Alarms at a known rate for inputs that are unlike the training data of a classifier.

    Scores: "max_probability", "entropy", "energy", "gen", "knn", "relative_mahalanobis", "vim", "fdbd", "leverage"
    (posterior over prior variance of the last layer), and "combined", the most surprised of them all, which needs
    no out-of-distribution data.

    Parameters
    ----------
    model : nn.Module
        A trained classifier in eval mode that returns logits and ends in a linear layer.
    data : (inputs, labels), Dataset, DataLoader or list of batches
        Its training data; at most 10,000 are used.
    familiar : Tensor or any input of the network
        Inputs that did not train it, without labels. Half of them calibrate the combination, half the alarms.
    score : str
        What alarms go by.
    progress : bool or callable, optional
        Whether to show progress. By default only on a terminal.

    Returns
    -------
    Detector
        With `flags(inputs, alarm_rate=…)`, `p_values`, `drift`, `scores`, and `table`, which has every score.

    Raises
    ------
    ValueError
        If the score is not known, the network does not end in a linear layer, or there are too few familiar inputs.

    Examples
    --------
    >>> from lapwing import Categorical
    >>> from lapwing.training import train
    >>> x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> with torch.random.fork_rng():
    ...     network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> network = train(network, (x[:100], y[:100]), Categorical(), epochs=30, progress=False)
    >>> detector = ood(network, (x[:100], y[:100]), familiar=x[100:])
    >>> detector.flags(torch.tensor([[0.1, 0.2], [0.1, 30.0]]), alarm_rate=0.05)
    tensor([False,  True])
    """
    if score != "combined" and score not in SCORES:
        raise ValueError(f"score is {score!r}, expected one of {', '.join(['combined', *SCORES])}")
    report = reporter(progress)
    report("features of the training data")
    layer, trained = _trained(model, data)
    report("features of familiar inputs")
    held_out = seen(layer, _batches(familiar))
    if len(held_out.logits) < 20:
        raise ValueError(f"there are {len(held_out.logits)} familiar inputs: expected 20 at least, better hundreds")
    report("scores")
    scorers = {name: make(trained) for name, make in SCORES.items()}
    first, second = _halves(held_out)
    surprises = {name: Surprise.of(scorer(first)) for name, scorer in scorers.items()}
    known = _table(second, scorers, surprises)[score]
    report("")
    return Detector(layer, scorers, surprises, score, known.sort().values)


def seen(layer: LastLayer, batches: Inputs) -> LastInputs:
    """What a last layer is given for some inputs, and the logits that it makes of it."""
    weight, bias = _weights(layer)
    parts = [layer.before.outputs(batch).reshape(len(batch), -1).double().cpu() for batch in batches]
    features = torch.cat(parts)
    return LastInputs(features, features @ weight.mT + bias)


def _trained(model: nn.Module, data: Any) -> tuple[LastLayer, TrainingFeatures]:
    batches = as_batches(data)
    network = Network.of(model, last_layer(model))
    inputs, labels, count = [], [], 0
    for batch, targets in batches:
        room = MOST_TRAINING - count
        inputs.append(batch[:room])
        labels.append(targets[:room])
        count += len(targets)
        if count >= MOST_TRAINING:
            break
    few = Inputs.of(inputs)
    layer = LastLayer.of(Jacobian(network, few, network.outputs(inputs[0][:1]).numel()))
    if layer is None:
        raise ValueError(
            "the network does not end in a linear layer whose outputs are the logits: these scores need one"
        )
    return layer, TrainingFeatures(seen(layer, few), torch.cat(labels).cpu(), *_weights(layer))


def _weights(layer: LastLayer) -> tuple[Tensor, Tensor]:
    weight = layer.layer.weight.detach().double().cpu()
    if layer.layer.bias is None:
        return weight, torch.zeros(len(weight), dtype=torch.float64)
    return weight, layer.layer.bias.detach().double().cpu()


def _batches(inputs: Any) -> Inputs:
    return as_batches(inputs, labelled=False).inputs


def _halves(both: LastInputs) -> tuple[LastInputs, LastInputs]:
    """Every second one, so that an order of the data does not matter."""
    return LastInputs(both.features[::2], both.logits[::2]), LastInputs(both.features[1::2], both.logits[1::2])


def _table(new: LastInputs, scorers: dict[str, Scorer], surprises: dict[str, Surprise]) -> dict[str, Tensor]:
    found = {name: scorer(new) for name, scorer in scorers.items()}
    surprise = [surprises[name](scores) for name, scores in found.items()]
    return {**found, "combined": torch.stack(surprise).amax(0)}
