"""Scores of predicted class probabilities, and what their spread says."""

from __future__ import annotations

from math import log

import torch
from torch import Generator, Tensor

from lapwing.metrics.checks import Values, check_count, check_finite, check_labels, check_numbers, check_probs, tensor


def accuracy(probs: Values, labels: Values) -> float:
    """The share of rows whose most probable class is the label; of equals, the first class counts.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    predicted = check_probs(probs)
    target = check_labels(labels, *predicted.shape)
    return float((predicted.argmax(-1) == target).double().mean())


def nll_each(probs: Values, labels: Values, *, logits: bool = False) -> Tensor:
    """−log p(label) of every row: (n,); infinite where a label was given probability zero.

    With logits=True the first argument is logits (or log-probabilities), which stay finite where a float32 probability
    has long rounded to zero.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    logits : bool
        Whether `probs` holds logits or log-probabilities.

    Returns
    -------
    Tensor
        One number for each row, (n,).

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> nll_each(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1]))
    tensor([0.6931, 0.2231], dtype=torch.float64)
    """
    if logits:
        scores = check_finite(probs, "logits", dims=2)
        log_probs = scores.log_softmax(-1)
    else:
        log_probs = check_probs(probs).log()
    target = check_labels(labels, *log_probs.shape)
    return -log_probs.gather(1, target[:, None])[:, 0]


def nll(probs: Values, labels: Values, *, logits: bool = False) -> float:
    """The mean of −log p(label), in nats; see nll_each for logits=True.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    logits : bool
        Whether `probs` holds logits or log-probabilities.

    Returns
    -------
    float
        In nats; lower is better.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> round(nll(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1])), 4)
    0.4581
    """
    return float(nll_each(probs, labels, logits=logits).mean())


def brier_each(probs: Values, labels: Values) -> Tensor:
    """Σ_c (p_c − [c = label])² of every row, from 0 to 2: (n,).

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).

    Returns
    -------
    Tensor
        One number for each row, (n,).

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> brier_each(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1]))
    tensor([0.5000, 0.0800], dtype=torch.float64)
    """
    predicted = check_probs(probs)
    target = check_labels(labels, *predicted.shape)
    return (predicted - torch.nn.functional.one_hot(target, predicted.shape[1])).square().sum(1)


def brier(probs: Values, labels: Values) -> float:
    """The mean over data of the squared error summed over classes (Brier 1950): 0 to 2, so twice a two-class one.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).

    Returns
    -------
    float
        Between 0 and 2; lower is better.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> round(brier(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1])), 4)
    0.29
    """
    return float(brier_each(probs, labels).mean())


def confidence(probs: Values) -> float:
    """The mean of the largest probability; a calibrated classifier's accuracy equals it up to chance.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> round(confidence(torch.tensor([[0.5, 0.5], [0.2, 0.8]])), 4)
    0.65
    """
    return float(check_probs(probs).amax(-1).mean())


def entropy(probs: Values) -> Tensor:
    """−Σ_c p_c log p_c in nats of every row, 0 where one class has everything: (n,).

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).

    Returns
    -------
    Tensor
        In nats, (n,).

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> entropy(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    return torch.special.entr(check_probs(probs)).sum(-1)


def mutual_information(sampled_probs: Values) -> Tensor:
    """What the draws disagree about, the entropy of their mean minus their mean entropy: (draws, n, c) gives (n,).

    In nats, never negative; the plug-in estimate, which few draws bias downwards.

    Parameters
    ----------
    sampled_probs : Tensor or array
        Class probabilities by every draw, (draws, n, c).

    Returns
    -------
    Tensor
        In nats, (n,).

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> mutual_information(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]))
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    sampled = check_probs(sampled_probs, "sampled_probs", dims=3)
    of_mean = torch.special.entr(sampled.mean(0)).sum(-1)
    return (of_mean - torch.special.entr(sampled).sum(-1).mean(0)).clamp_min(0)


def dyads(data: int, groups: int, *, size: int = 10, generator: Generator) -> Tensor:
    """Groups of rows for joint_nll: each has `size` picks, with repetition, from two rows of its own: (groups, size).

    Repeats make the joint prediction depend on how far the draws agree with themselves, which plain batches of distant
    inputs hardly show (Osband et al. 2022, "Evaluating high-order predictive distributions in deep learning").

    Parameters
    ----------
    data : int
        How many rows there are to pick from.
    groups : int
        How many groups to make.
    size : int
        Picks in each group.
    generator : torch.Generator
        Source of the random numbers.

    Returns
    -------
    Tensor
        Row numbers, (groups, size).

    Raises
    ------
    ValueError
        If there are fewer than two rows, or no groups or picks.

    Examples
    --------
    >>> dyads(100, 2, size=5, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5])
    """
    check_count(data, "the number of data", 2)
    check_count(groups, "groups")
    check_count(size, "size")
    first = torch.randint(data, (groups,), generator=generator)
    second = (first + torch.randint(1, data, (groups,), generator=generator)) % data
    picks = torch.randint(2, (groups, size), generator=generator)
    return torch.where(picks == 0, first[:, None], second[:, None])


def joint_nll(log_likelihoods: Values, groups: Values) -> float:
    """−log of the mean over draws of a group's joint likelihood, per datum, averaged over groups.

    `log_likelihoods` is (draws, n), what each drawn function gives each datum; `groups` is (groups, size), rows of the
    data such as those of `dyads`. Groups of one give the marginal NLL of the averaged prediction. The mean over draws
    is itself an estimate: few draws overstate the result, the more so the larger the groups.

    Parameters
    ----------
    log_likelihoods : Tensor or array
        Of each datum under each draw, (draws, n).
    groups : Tensor or array
        Row numbers, (groups, size).

    Returns
    -------
    float
        In nats for each datum; lower is better.

    Raises
    ------
    ValueError
        If shapes do not fit, or a group names a row that is not there.

    Examples
    --------
    >>> each = torch.tensor([[0.5, 0.5, 0.8], [0.5, 0.5, 0.2]]).log()  # two draws, three data
    >>> round(joint_nll(each, torch.tensor([[0, 1], [2, 2]])), 4)  # (−log ¼ − log 0.34) / 4
    0.6163
    """
    given = check_numbers(log_likelihoods, "log_likelihoods", dims=2)
    rows = check_rows(groups, given.shape[1])
    of_groups = given[:, rows].sum(-1)  # (draws, groups)
    joint = of_groups.logsumexp(0) - log(len(given))
    return float(-joint.mean() / rows.shape[1])


def check_rows(groups: Values, data: int) -> Tensor:
    """Groups as int64 rows of the data."""
    rows = tensor(groups).detach().cpu()
    if rows.ndim != 2 or rows.numel() == 0 or rows.is_floating_point():
        raise ValueError(f"groups must be (groups, size) integers, not {rows.dtype} of shape {tuple(rows.shape)}")
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= data:
        raise ValueError(f"groups name the rows {low} to {high}, but the {data} data are 0 to {data - 1}")
    return rows.long()
