"""How well a score tells two sets apart: `inside` are scores of familiar inputs, `outside` of others.

High scores mean out-of-distribution: entropy, mutual information, minus the largest probability, novelty. For finding
mistakes rather than such inputs, split the scores by whether the prediction was right.
"""

from __future__ import annotations

from math import ceil, sqrt

import torch
from torch import Tensor

from lapwing.metrics.checks import Values, check_count, check_level, check_numbers


def auroc(inside: Values, outside: Values) -> float:
    """The chance that an out-of-distribution input scores above a familiar one, ties counting half; 0.5 is guessing.

    Parameters
    ----------
    inside : Tensor or array
        Scores of familiar inputs, (n,).
    outside : Tensor or array
        Scores of out-of-distribution inputs, (m,).

    Returns
    -------
    float
        Between 0 and 1; higher is better.

    Raises
    ------
    ValueError
        If a score is missing or not a number.

    Examples
    --------
    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9]))
    0.75
    """
    return float(_placements(*_scores(inside, outside)).mean())


def auroc_error(inside: Values, outside: Values) -> float:
    """The standard error of auroc over both sets (DeLong, DeLong & Clarke-Pearson 1988).

    Parameters
    ----------
    inside : Tensor or array
        Scores of familiar inputs, (n,).
    outside : Tensor or array
        Scores of out-of-distribution inputs, (m,).

    Returns
    -------
    float
        The standard error.

    Raises
    ------
    ValueError
        If there are fewer than two scores on a side.

    Examples
    --------
    >>> round(auroc_error(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])), 4)
    0.2887
    """
    familiar, unfamiliar = _scores(inside, outside)
    check_count(min(len(familiar), len(unfamiliar)), "the number of scores on each side", 2)
    of_unfamiliar, of_familiar = _placements(familiar, unfamiliar), _placements(-unfamiliar, -familiar)
    return sqrt(float(of_unfamiliar.var()) / len(unfamiliar) + float(of_familiar.var()) / len(familiar))


def aupr(inside: Values, outside: Values) -> float:
    """Average precision in finding out-of-distribution inputs: Σ_t (recall_t − recall_{t−1}) precision_t.

    Guessing gives the share of those inputs, so compare it only between sets of the same sizes.

    Parameters
    ----------
    inside : Tensor or array
        Scores of familiar inputs, (n,).
    outside : Tensor or array
        Scores of out-of-distribution inputs, (m,).

    Returns
    -------
    float
        Between 0 and 1; higher is better.

    Raises
    ------
    ValueError
        If a score is missing or not a number.

    Examples
    --------
    >>> round(aupr(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])), 4)
    0.75
    """
    familiar, unfamiliar = _scores(inside, outside)
    thresholds = unfamiliar.unique()
    caught, alarms = _above(unfamiliar, thresholds), _above(familiar, thresholds)
    recall = torch.cat([caught, caught.new_zeros(1)]) / len(unfamiliar)
    return float(((recall[:-1] - recall[1:]) * caught / (caught + alarms)).sum())


def fpr95(inside: Values, outside: Values, *, recall: float = 0.95) -> float:
    """The share of familiar inputs flagged at the highest threshold that flags 95 % (`recall`) of the others.

    Some authors count the other way, the share of the others that pass where 95 % of the familiar ones do: that is
    fpr95(-outside, -inside).

    Parameters
    ----------
    inside : Tensor or array
        Scores of familiar inputs, (n,).
    outside : Tensor or array
        Scores of out-of-distribution inputs, (m,).
    recall : float
        Share of out-of-distribution inputs that are to be flagged.

    Returns
    -------
    float
        Between 0 and 1; lower is better.

    Raises
    ------
    ValueError
        If `recall` is not between 0 and 1, or a score is not a number.

    Examples
    --------
    >>> round(fpr95(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])), 4)
    0.6667
    """
    check_level(recall)
    familiar, unfamiliar = _scores(inside, outside)
    needed = ceil(round(recall * len(unfamiliar), 9))  # 0.95 · 20 is 19, whatever its last bit
    threshold = unfamiliar.sort(descending=True).values[needed - 1]
    return float((familiar >= threshold).double().mean())


def _scores(inside: Values, outside: Values) -> tuple[Tensor, Tensor]:
    return check_numbers(inside, "inside", dims=1), check_numbers(outside, "outside", dims=1)


def _placements(familiar: Tensor, unfamiliar: Tensor) -> Tensor:
    """For each unfamiliar score, the share of familiar ones below it, ties counting half: (unfamiliar,)."""
    ordered = familiar.sort().values
    below, up_to = (torch.searchsorted(ordered, unfamiliar, right=right) for right in (False, True))
    return (below + up_to).double() / (2 * len(ordered))


def _above(scores: Tensor, thresholds: Tensor) -> Tensor:
    """How many scores reach each threshold."""
    return (len(scores) - torch.searchsorted(scores.sort().values, thresholds)).double()
