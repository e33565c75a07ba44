"""Which inputs to label next, so that their targets say most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor

from lapwing.decisions.information import Choice, Conditional, bald, batch_bald, entropies, largest, one_by_one
from lapwing.decisions.pool import Pool, pool_of
from lapwing.runtime.progress import Report, reporter

DRAWS = 512  # of the function, behind probabilities of labels
MOST = 4000  # outputs of the inputs that are weighed against each other: a covariance of 128 MB
BLOCK = 1024  # inputs whose draws are made at once
PAIRS = 64  # inputs whose joint covariance is made where only that of each is wanted


@final
@dataclass(frozen=True, eq=False)
class Acquisition:
    """Inputs of a pool in the order in which they were chosen.

    Parameters
    ----------
    places : Tensor
        Of the inputs in the pool, (count,).
    values : Tensor
        What each adds to those before it, by the score, (count,).
    score : str
        Its name.

    Examples
    --------
    >>> Acquisition(torch.tensor([7, 2]), torch.tensor([0.31, 0.12]), "batchbald")
    Acquisition by batchbald: 7, 2
    """

    places: Tensor  # (count,), long
    values: Tensor  # (count,)
    score: str

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.places[:10].tolist()))
        return f"Acquisition by {self.score}: {shown}{', …' if len(self.places) > 10 else ''}"


@final
@dataclass(frozen=True, eq=False)
class Wanted:
    """How many inputs of a pool are asked for, with what a score may need besides."""

    pool: Pool
    count: int
    seed: int
    report: Report


def acquire(
    posterior: Any, pool: Any, count: int = 10, *, score: str | None = None, seed: int = 0,
    progress: bool | Report | None = None,
) -> Acquisition:  # fmt: skip
    """Choose the inputs of a pool whose targets would say most, as a batch: the second knows that the first is chosen.

    For labels: "batchbald" (the default), the information that all labels of the batch have about the function, exact
    for small batches and by draws of labels beyond; "bald", the same of each label alone; "entropy", how unsure
    each label is. They come from 512 joint draws of the posterior, or from those that it has where it cannot make more.

    For numbers: "variance" (the default), by how much an observation would lower the mean variance of the pool;
    "batchbald", the information in the batch; "bald", that in each alone; "thompson" and "thompson-minimum", the
    largest or smallest output of a joint draw, one draw for each input: what to try next when looking for an optimum.
    Variances are conditioned exactly on what is chosen already, whatever its target will be.

    Where a pool has more than 4,000 outputs, the 4,000 with most information or variance of their own are candidates.

    Parameters
    ----------
    posterior : Posterior, Mixture, BayesianMLPClassifier or BayesianMLPRegressor
        A fitted model.
    pool : Tensor, or what the model takes
        Inputs without targets.
    count : int
        How many to choose.
    score : str, optional
        What they are chosen by.
    seed : int
        Of drawn labels and functions.
    progress : bool or callable, optional
        Whether to show progress. By default only on a terminal.

    Returns
    -------
    Acquisition
        With `places` in the pool, in the order of choice, and `values`, what each adds.

    Raises
    ------
    ValueError
        If the score is not one for these targets, the count exceeds the pool, or the model has no joint predictions.

    Examples
    --------
    >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
    >>> x, y = torch.tensor([[1.0, 0.0], [2.0, 0.1]]).double(), torch.tensor([1.0, 2.0]).double()
    >>> posterior = infer(LinearModel(x, y, Gaussian(0.1)), prior=Isotropic(1.0))
    >>> pool = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 1.1]]).double()
    >>> acquire(posterior, pool, 2).places
    tensor([2, 0])
    """
    found = pool_of(posterior, pool)
    if not 1 <= count <= len(found):
        raise ValueError(f"count is {count}: expected from 1 to the {len(found):,} inputs of the pool")
    scores = OF_LABELS if found.has_classes else OF_NUMBERS
    name = score or next(iter(scores))
    if name not in scores:
        what = "labels" if found.has_classes else "numbers"
        raise ValueError(f"score is {name!r}: for {what} expected one of {', '.join(scores)}")
    report = reporter(progress)
    choices = scores[name](Wanted(found, count, seed, report))
    report("")
    places, values = zip(*choices, strict=True)
    return Acquisition(torch.tensor(places), torch.tensor(values, dtype=torch.float64), name)


def _each_by(of: Callable[[Tensor], Tensor]) -> Callable[[Wanted], list[Choice]]:
    """Inputs by a score of each label alone, (draws, n, classes) -> (n,)."""

    def chosen(wanted: Wanted) -> list[Choice]:
        return _top(_of_blocks(wanted, of), wanted.count)

    return chosen


def _of_blocks(wanted: Wanted, of: Callable[[Tensor], Tensor]) -> Tensor:  # (n,)
    found: list[Tensor] = []
    for part in torch.arange(len(wanted.pool)).split(BLOCK):
        wanted.report(f"draws for {int(part[-1]) + 1:,} of {len(wanted.pool):,} inputs")
        found.append(of(wanted.pool.outputs(part, DRAWS)))
    return torch.cat(found)


def _top(scores: Tensor, count: int) -> list[Choice]:
    order = scores.argsort(descending=True, stable=True)[:count]
    return list(zip(order.tolist(), scores[order].tolist(), strict=True))


def _batch_of_labels(wanted: Wanted) -> list[Choice]:
    few = torch.arange(len(wanted.pool))
    if len(few) > MOST:
        few = _candidates(_of_blocks(wanted, bald), wanted, 1)
    probabilities = wanted.pool.outputs(few, DRAWS)
    return _placed(list(batch_bald(probabilities, wanted.count, wanted.seed, wanted.report)), few)


def _conditionally(score: Callable[[Conditional], Tensor]) -> Callable[[Wanted], list[Choice]]:
    """Inputs by a score of a joint Gaussian, conditioned on those before."""

    def chosen(wanted: Wanted) -> list[Choice]:
        wanted.report("variances")
        variances = wanted.pool.variances()
        few = _candidates(variances.sum(1), wanted, variances.shape[1])
        wanted.report(f"the covariance of {len(few):,} inputs")
        covariance = wanted.pool.covariance(few).reshape(len(few), variances.shape[1], len(few), -1)
        known = Conditional(covariance, wanted.pool.noise(few))
        return _placed(list(one_by_one(known, score, wanted.count, wanted.report)), few)

    return chosen


def _information(wanted: Wanted) -> list[Choice]:
    pool, found = wanted.pool, []
    for part in torch.arange(len(pool)).split(PAIRS):
        noise = pool.noise(part)
        covariance = pool.covariance(part).reshape(*noise.shape, *noise.shape)
        found.append(Conditional(covariance, noise).information())
    return _top(torch.cat(found), wanted.count)


def _candidates(scores: Tensor, wanted: Wanted, outputs: int) -> Tensor:
    """Places of the inputs of the largest scores, in their own order."""
    kept = max(wanted.count, MOST // outputs)
    return scores.argsort(descending=True, stable=True)[:kept].sort().values


def _placed(choices: list[Choice], places: Tensor) -> list[Choice]:
    return [(int(places[place]), value) for place, value in choices]


def _by_draws(sign: int) -> Callable[[Wanted], list[Choice]]:
    """The largest output of one joint draw for each input, or the smallest with sign −1."""

    def chosen(wanted: Wanted) -> list[Choice]:
        parts = torch.arange(len(wanted.pool)).split(BLOCK)
        drawn = torch.cat([wanted.pool.outputs(part, max(DRAWS, wanted.count)) for part in parts], dim=1)
        if drawn.shape[2] > 1:
            raise ValueError(f"a model of {drawn.shape[2]} outputs has no largest: Thompson sampling is for one output")
        order = torch.randperm(len(drawn), generator=Generator().manual_seed(wanted.seed))
        left, found = sign * drawn[:, :, 0], list[Choice]()
        for number in range(wanted.count):
            own = left[order[number % len(order)]]
            place = largest(own)
            found.append((place, sign * float(own[place])))
            left[:, place] = -torch.inf
        return found

    return chosen


Rule = Callable[[Wanted], list[Choice]]
OF_LABELS: dict[str, Rule] = {
    "batchbald": _batch_of_labels,
    "bald": _each_by(bald),
    "entropy": _each_by(lambda probabilities: entropies(probabilities.mean(0))),
}
OF_NUMBERS: dict[str, Rule] = {
    "variance": _conditionally(Conditional.reduction),
    "batchbald": _conditionally(Conditional.information),
    "bald": _information,
    "thompson": _by_draws(1),
    "thompson-minimum": _by_draws(-1),
}
