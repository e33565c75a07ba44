"""Batches of inputs whose targets say most together, chosen one after the other.

Of labels: BatchBALD (Kirsch, van Amersfoort & Gal 2019), the mutual information of all labels of a batch with the
function. Its gain falls as the batch grows, so that an earlier gain is a bound and few inputs need a new one. Of
numbers: a Gaussian, conditioned on what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.runtime.progress import Report

CONFIGURATIONS = 1024  # of labels of a batch: all of them up to so many, else as many draws of them
AT_ONCE = 64  # inputs whose gains are worked out together
NOTHING = 1e-9  # nats

Choice = tuple[int, float]  # the place of an input, and what it adds


def entropies(probabilities: Tensor) -> Tensor:  # (…, classes) -> (…)
    """In nats."""
    return torch.special.entr(probabilities).sum(-1)


def bald(probabilities: Tensor) -> Tensor:  # (draws, n, classes) -> (n,)
    """The mutual information of each label with the function: entropy of the mean less mean entropy."""
    return (entropies(probabilities.mean(0)) - entropies(probabilities).mean(0)).clamp_min(0)


def largest(scores: Tensor) -> int:
    """The place of the largest, the first one of several."""
    return int((scores == scores.max()).nonzero()[0, 0])


@final
@dataclass(frozen=True, eq=False)
class Configurations:
    """Labels that a batch may have, how probable they are, and what the draws of the function are worth with each."""

    shares: Tensor  # (m,), of the configurations
    weights: Tensor  # (m, draws), sum to one
    origin: Tensor | None  # (m,), the draw that each was drawn from; None where they are all there are

    @staticmethod
    def empty(draws: int) -> Configurations:
        """Of no labels."""
        one = torch.ones(1, 1, dtype=torch.float64)
        return Configurations(one[0], one.expand(1, draws) / draws, None)

    def gains(self, probabilities: Tensor) -> Tensor:  # (draws, k, classes) -> (k,)
        """What one more label adds: its entropy given those of the batch, less its mean entropy under the draws."""
        draws, k, classes = probabilities.shape
        predicted = (self.weights @ probabilities.reshape(draws, -1)).reshape(-1, k, classes)
        return self.shares @ entropies(predicted) - entropies(probabilities).mean(0)

    def with_label(self, probabilities: Tensor, generator: Generator) -> Configurations:  # of (draws, classes)
        """Of a batch with one more input."""
        m, classes = len(self.shares), probabilities.shape[1]
        if self.origin is None and m * classes <= CONFIGURATIONS:
            joint = (self.weights[:, None] * probabilities.mT).flatten(0, 1)  # (m · classes, draws)
            found = joint.sum(1)
            return Configurations(self.shares.repeat_interleave(classes) * found, _normalised(joint), None)
        drawn = self if self.origin is not None else self._drawn(generator)
        assert drawn.origin is not None
        labels = torch.multinomial(probabilities[drawn.origin], 1, generator=generator)[:, 0]
        return Configurations(drawn.shares, _normalised(drawn.weights * probabilities[:, labels].mT), drawn.origin)

    def _drawn(self, generator: Generator) -> Configurations:
        """Drawn ones in the place of all: each draw of the function equally often, a configuration for each."""
        draws = self.weights.shape[1]
        count = max(CONFIGURATIONS, draws)
        origin = torch.arange(count) % draws
        of_draw = (self.shares[:, None] * self.weights).mT  # p(configuration, draw)
        chosen = torch.multinomial(of_draw[origin].clamp_min(1e-300), 1, generator=generator)[:, 0]
        return Configurations(torch.full((count,), 1 / count, dtype=torch.float64), self.weights[chosen], origin)


def batch_bald(probabilities: Tensor, count: int, seed: int, report: Report) -> Iterator[Choice]:
    """Inputs (draws, n, classes) one after the other, each with the information that it adds to those before it."""
    generator = Generator().manual_seed(seed)
    bounds = alone = bald(probabilities)
    known = Configurations.empty(len(probabilities))
    for number in range(count):
        report(f"input {number + 1} of {count}")
        place, bounds = _best(known, probabilities, bounds, alone)
        yield place, float(bounds[place].clamp_min(0))
        known = known.with_label(probabilities[:, place], generator)
        bounds = bounds.index_fill(0, torch.tensor([place]), -torch.inf)


def _best(known: Configurations, probabilities: Tensor, bounds: Tensor, alone: Tensor) -> tuple[int, Tensor]:
    """The input of the largest gain, and bounds on all gains: those that were worked out again, and those of before.

    Inputs that add nothing that these draws could tell are in the order of the information in each alone.
    """
    fresh = torch.zeros(len(bounds), dtype=torch.bool)
    while True:
        top = bounds.topk(min(AT_ONCE, len(bounds))).indices
        wanted = top[~fresh[top] & (bounds[top] > -torch.inf)]
        if fresh[largest(bounds)]:
            break
        bounds = bounds.index_copy(0, wanted, known.gains(probabilities[:, wanted]))
        fresh[wanted] = True
    if bounds.max() > NOTHING:
        return largest(bounds), bounds
    return largest(torch.where(bounds > -torch.inf, alone, -torch.inf)), bounds


def _normalised(rows: Tensor) -> Tensor:
    return rows / rows.sum(1, keepdim=True).clamp_min(1e-300)


@final
@dataclass(frozen=True, eq=False)
class Conditional:
    """A joint Gaussian of outputs of inputs, given observations of some of them."""

    covariance: Tensor  # (n, c, n, c)
    noise: Tensor  # (n, c), the variance of an observation around them

    def information(self) -> Tensor:  # (n,)
        """½ log det(1 + V N⁻¹) of each input: what an observation there would say."""
        v = self._own()
        scale = self.noise.rsqrt()
        inner = scale[:, :, None] * v * scale[:, None, :] + torch.eye(v.shape[1], dtype=v.dtype)
        return 0.5 * torch.linalg.slogdet(inner).logabsdet

    def reduction(self) -> Tensor:  # (n,)
        """By how much an observation of each input would lower the mean variance of all of them."""
        n, c = self.noise.shape
        rows = self.covariance.reshape(n, c, n * c)
        return torch.linalg.solve(self._observed(), rows @ rows.mT).diagonal(dim1=1, dim2=2).sum(1) / n

    def given(self, place: int) -> Conditional:
        """After an observation of an input: Σ − Σ_j (V_j + N_j)⁻¹ Σ_jᵀ."""
        n, c = self.noise.shape
        rows = self.covariance[place].reshape(c, n * c)
        taken = rows.mT @ torch.linalg.solve(self._observed()[place], rows)
        return Conditional(self.covariance - taken.reshape(n, c, n, c), self.noise)

    def _own(self) -> Tensor:  # (n, c, c)
        places = torch.arange(len(self.noise))
        return self.covariance[places, :, places]

    def _observed(self) -> Tensor:  # (n, c, c)
        return self._own() + torch.diag_embed(self.noise)


def one_by_one(
    known: Conditional, score: Callable[[Conditional], Tensor], count: int, report: Report
) -> Iterator[Choice]:
    """Inputs of the largest score, conditioned on each before the next is chosen."""
    free = torch.zeros(len(known.noise), dtype=torch.float64)
    for number in range(count):
        report(f"input {number + 1} of {count}")
        scores = score(known) + free
        place = largest(scores)
        yield place, float(scores[place])
        free[place] = -torch.inf
        known = known.given(place)
