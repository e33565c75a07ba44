"""Alarms with a known rate: which inputs are out of distribution, and whether a batch of them has drifted.

What is compared is a score of each input, by default novelty (posterior over prior variance), with those of held-out
inputs. No distribution is assumed: under the hypothesis that new inputs come like the held-out ones (exchangeable
with them) the rates hold for any model and any number of inputs, however badly the score tells what is unfamiliar.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes.predictive import Prediction
from lapwing.families.networks import Predictive

__all__ = ["Drift", "Monitor", "fit"]

Named = Literal["novelty", "epistemic_variance", "entropy", "mutual_information"]
Score = Named | Callable[[Prediction], Tensor]
NAMED: dict[str, Callable[[Prediction], Tensor]] = {
    "novelty": lambda found: found.novelty,
    "epistemic_variance": lambda found: found.score_variance,
    "entropy": lambda found: found.entropy,
    "mutual_information": lambda found: found.mutual_information,
}


@final
@dataclass(frozen=True)
class Drift:
    """Whether a batch differs from the held-out inputs, one side being enough.

    Parameters
    ----------
    p_value : float
        The chance of a batch at least as different, if nothing has changed.
    more_unfamiliar : float
        Standard deviations by which scores, the high ones above all, exceed what is expected.
    more_familiar : float
        The same for low scores.

    Examples
    --------
    >>> Drift(0.001, 4.2, -2.0).p_value < 0.01
    True
    """

    p_value: float  # the chance of a batch at least as different, if nothing has changed
    more_unfamiliar: float  # standard deviations by which scores, the high ones above all, are above what is expected
    more_familiar: float  # the same for low scores


class Alarms(ABC):
    """What has a score for inputs, and the scores of inputs that it should know: alarms at a known rate."""

    known: Tensor  # (held-out inputs,), sorted

    @abstractmethod
    def scores(self, inputs: Any) -> Tensor:  # (n,)
        """How unfamiliar each input is."""

    def p_values(self, inputs: Any) -> Tensor:  # (n,)
        """For each input the chance that a familiar one scores as high: (1 + held-out scores as high) / (n + 1).

        A score that is NaN counts as the most unfamiliar.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.

        Returns
        -------
        Tensor
            One for each input.
        """
        below = torch.searchsorted(self.known, self.scores(inputs))
        return (1 + len(self.known) - below).double() / (1 + len(self.known))

    def flags(self, inputs: Any, *, alarm_rate: float = 0.01) -> Tensor:  # (n,), bool
        """Which inputs are out of distribution; of familiar ones at most a share `alarm_rate` is flagged.

        A mean over held-out sets: the share for one set of n is Beta(k, n + 1 − k) with k = ⌊alarm_rate · (n + 1)⌋.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.
        alarm_rate : float
            Share of familiar inputs that may be flagged.

        Returns
        -------
        Tensor
            True where an input is flagged.

        Raises
        ------
        ValueError
            If there are too few known inputs for the rate.
        """
        if not 0 < alarm_rate < 1:
            raise ValueError(f"alarm_rate must lie between 0 and 1, got {alarm_rate}")
        size = len(self.known)
        if floor(round(alarm_rate * (size + 1), 9)) < 1:
            raise ValueError(
                f"an alarm_rate of {alarm_rate} needs at least {floor(1 / alarm_rate - 1e-9)} held-out inputs, and "
                f"there are {size}: give more of them, or a higher rate"
            )
        return self.p_values(inputs) <= alarm_rate + 1e-12

    def drift(self, inputs: Any, *, permutations: int = 999, seed: int = 0) -> Drift:
        """A test of whether a whole batch comes like the held-out inputs, by permuting which scores are whose.

        It looks at the mean of −log(share of scores as high) over the batch, which sees both a shift of all scores and
        a few extreme ones, and at the same from below. The p-value is valid for batches of any size; it is never below
        1 / (permutations + 1). Of many batches, each is at fault at its own rate: correct for their number. A score
        that is NaN counts as the most unfamiliar, which weighs as much as any other highest one.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.
        permutations : int
            Of the test.
        seed : int
            Of the permutations.

        Returns
        -------
        Drift
            With its p-value.
        """
        new = self.scores(inputs)
        whole = torch.cat([new, self.known.to(new)]).double()
        heights = torch.stack([_height(whole), _height(-whole)])  # (2, N)
        generator = torch.Generator().manual_seed(seed)
        spread, centre = heights.std(1, correction=0).clamp_min(1e-300), heights.mean(1)
        chosen = [torch.arange(len(new))]
        chosen += [torch.randperm(len(whole), generator=generator)[: len(new)] for _ in range(permutations)]
        unit = spread * (max(len(self.known), 1) / (len(whole) - 1) / len(new)) ** 0.5  # without replacement
        found = torch.stack([(heights[:, places].mean(1) - centre) / unit for places in chosen])
        largest = found.amax(1)
        as_large = int((largest[1:] >= largest[0] - 1e-9).sum())
        return Drift((1 + as_large) / (1 + permutations), float(found[0, 0]), float(found[0, 1]))


@final
@dataclass(frozen=True, eq=False)
class Monitor(Alarms):
    """Something that predicts, with the scores of inputs that it should know.

    Parameters
    ----------
    base : Posterior or any other with `predict`
        What predicts.
    score : str or callable
        "novelty", "epistemic_variance", "entropy" or "mutual_information", or a function of a `Prediction`.
    known : Tensor
        Scores of the inputs that it should know, sorted.

    Examples
    --------
    >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
    >>> x = torch.linspace(1, 2, 40, dtype=torch.float64)[:, None] ** torch.arange(3)
    >>> posterior = infer(LinearModel(x[::2], x[::2, 1], Gaussian(0.1)), prior=Isotropic(1.0))
    >>> monitor = fit(posterior, x[1::2])
    >>> beyond = torch.linspace(3, 4, 9, dtype=torch.float64)[:, None] ** torch.arange(3)
    >>> monitor.drift(x[1::2]).p_value > 0.5, monitor.drift(beyond).p_value
    (True, 0.001)
    """

    base: Predictive
    score: Score
    known: Tensor  # (held-out inputs,), sorted

    def scores(self, inputs: Any) -> Tensor:  # (n,)
        """How unfamiliar each input is, a mean over its outputs; one that is NaN counts as +∞, the most unfamiliar.

        Parameters
        ----------
        inputs : Tensor or any input of the network
            New inputs.

        Returns
        -------
        Tensor
            One for each input.
        """
        found = _scored(self.base.predict(inputs), self.score)
        return found.where(~found.isnan(), torch.inf)


def fit(base: Predictive, inputs: Any, *, score: Score = "novelty") -> Monitor:
    """Calibrate on inputs that neither trained nor tuned the model; their targets are not needed.

    `score` is the name of a quantity of predictions or a function of a `Prediction` that returns one number for each
    input. Novelty is the default where there is a prior; epistemic variance, which for classes is that of centred
    logits, ranks dull inputs as familiar.

    Parameters
    ----------
    base : Posterior or any other with `predict`
        What predicts.
    inputs : Tensor or any input of the network
        Inputs that neither trained nor tuned the model.
    score : str or callable
        "novelty", "epistemic_variance", "entropy" or "mutual_information", or a function of a `Prediction`.

    Returns
    -------
    Monitor
        With `p_values`, `flags` and `drift`.

    Raises
    ------
    ValueError
        If the score is not known, or those of these inputs are not finite.

    Examples
    --------
    >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
    >>> x = torch.linspace(1, 2, 40, dtype=torch.float64)[:, None] ** torch.arange(3)
    >>> posterior = infer(LinearModel(x[::2], x[::2, 1], Gaussian(0.1)), prior=Isotropic(1.0))
    >>> fit(posterior, x[1::2]).flags(torch.tensor([[1.0, 1.5, 2.25], [1.0, -9.0, 81.0]]), alarm_rate=0.1)
    tensor([False,  True])
    """
    if isinstance(score, str) and score not in NAMED:
        raise ValueError(f"score is {score!r}, expected one of {', '.join(NAMED)}, or a function of a Prediction")
    found = _scored(base.predict(inputs), score)
    if not len(found) or not bool(found.isfinite().all()):
        raise ValueError(f"held-out inputs need finite scores, at least one: got {len(found)} of them")
    return Monitor(base, score, found.sort().values)


def _scored(found: Prediction, score: Score) -> Tensor:  # (n,)
    values = NAMED[score](found) if isinstance(score, str) else score(found)
    return values.detach().reshape(len(values), -1).mean(1).double().cpu()


def _height(scores: Tensor) -> Tensor:  # (n,)
    """−log of the share of scores that are at least as high."""
    ordered = scores.sort().values
    return -((len(scores) - torch.searchsorted(ordered, scores)) / len(scores)).double().log()
