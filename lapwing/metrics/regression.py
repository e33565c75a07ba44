"""Scores of predicted distributions of numbers: all arguments have the targets' shape, and every entry counts."""

from __future__ import annotations

from math import log, pi, sqrt

import torch
from torch import Tensor

from lapwing.metrics.checks import Values, check_count, check_finite, check_numbers, check_same_shape, tensor


def rmse(mean: Values, targets: Values) -> float:
    """The root of the mean squared error.

    Parameters
    ----------
    mean : Tensor or array
        Predicted means, of the targets' shape.
    targets : Tensor or array
        What was observed.

    Returns
    -------
    float
        In the units of the targets.

    Raises
    ------
    ValueError
        If shapes do not fit, or a value is not finite.

    Examples
    --------
    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0]))
    3.5355339059327378
    """
    predicted, target = _pair(mean, targets)
    return float((predicted - target).square().mean().sqrt())


def gaussian_nll_each(mean: Values, std: Values | float, targets: Values) -> Tensor:
    """½ log 2π std² + (target − mean)² / 2 std² of every entry; std is one number or one for each.

    Parameters
    ----------
    mean : Tensor or array
        Predicted means, of the targets' shape.
    std : float, Tensor or array
        Predicted standard deviations, one or of the targets' shape.
    targets : Tensor or array
        What was observed.

    Returns
    -------
    Tensor
        Of the targets' shape, in nats.

    Raises
    ------
    ValueError
        If a standard deviation is zero or negative, or shapes do not fit.

    Examples
    --------
    >>> gaussian_nll_each(torch.tensor([0.0, 1.0]), 1.0, torch.tensor([0.0, 3.0]))
    tensor([0.9189, 2.9189], dtype=torch.float64)
    """
    predicted, target = _pair(mean, targets)
    spread = _spread(std, target)
    if bool((spread == 0).any()):
        raise ValueError("std is zero somewhere: a Gaussian without width has no density")
    return ((target - predicted) / spread).square() / 2 + spread.log() + log(2 * pi) / 2


def gaussian_nll(mean: Values, std: Values | float, targets: Values) -> float:
    """The mean over entries of the negative log density of a Gaussian, in nats and in the units of the targets.

    Targets that were divided by a constant for training add log(constant) in their own units.

    Parameters
    ----------
    mean : Tensor or array
        Predicted means, of the targets' shape.
    std : float, Tensor or array
        Predicted standard deviations, one or of the targets' shape.
    targets : Tensor or array
        What was observed.

    Returns
    -------
    float
        In nats; lower is better.

    Raises
    ------
    ValueError
        If a standard deviation is zero or negative, or shapes do not fit.

    Examples
    --------
    >>> gaussian_nll(torch.tensor([0.0, 1.0]), 1.0, torch.tensor([0.0, 3.0]))
    1.91893853320467...
    """
    return float(gaussian_nll_each(mean, std, targets).mean())


def crps_each(mean: Values, std: Values | float, targets: Values) -> Tensor:
    """The continuous ranked probability score of a Gaussian at every entry, in closed form.

    std (z (2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (target − mean) / std (Gneiting & Raftery 2007, §4.2); the absolute
    error where std is 0.

    Parameters
    ----------
    mean : Tensor or array
        Predicted means, of the targets' shape.
    std : float, Tensor or array
        Predicted standard deviations, one or of the targets' shape.
    targets : Tensor or array
        What was observed.

    Returns
    -------
    Tensor
        Of the targets' shape and in their units.

    Raises
    ------
    ValueError
        If shapes do not fit, or a value is not finite.

    Examples
    --------
    >>> crps_each(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0]))
    tensor([0.2337, 2.0000], dtype=torch.float64)
    """
    predicted, target = _pair(mean, targets)
    spread, error = _spread(std, target), target - predicted
    z = torch.where(spread > 0, error / spread, error.sign() * torch.inf).nan_to_num(0.0)
    density = torch.exp(-z.square() / 2) / sqrt(2 * pi)
    return error * torch.erf(z / sqrt(2)) + spread * (2 * density - 1 / sqrt(pi))


def crps(mean: Values, std: Values | float, targets: Values) -> float:
    """The mean over entries of a Gaussian's continuous ranked probability score, in the units of the targets.

    Parameters
    ----------
    mean : Tensor or array
        Predicted means, of the targets' shape.
    std : float, Tensor or array
        Predicted standard deviations, one or of the targets' shape.
    targets : Tensor or array
        What was observed.

    Returns
    -------
    float
        In the units of the targets; lower is better.

    Raises
    ------
    ValueError
        If shapes do not fit, or a value is not finite.

    Examples
    --------
    >>> round(crps(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]), torch.tensor([0.0, 3.0])), 4)
    0.9758
    """
    return float(crps_each(mean, std, targets).mean())


def crps_samples_each(samples: Values, targets: Values, *, fair: bool = True) -> Tensor:
    """The continuous ranked probability score from draws (draws, *shape of the targets), at every entry.

    E|X − y| − ½ E|X − X'|. With fair=True the second mean leaves out the pairs of a draw with itself, so the score is
    an unbiased estimate of that of the distribution the draws came from (Ferro 2014) and may be negative; with
    fair=False it is the exact score of the draws themselves.

    Parameters
    ----------
    samples : Tensor or array
        Draws of the prediction, (draws, *targets).
    targets : Tensor or array
        What was observed.
    fair : bool
        Whether to correct for the number of draws.

    Returns
    -------
    Tensor
        Of the targets' shape and in their units.

    Raises
    ------
    ValueError
        If shapes do not fit, or there are too few draws.

    Examples
    --------
    >>> crps_samples_each(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 0.], dtype=torch.float64)
    """
    drawn, target = check_finite(samples, "samples"), check_finite(targets, "targets")
    if drawn.shape[1:] != target.shape:
        raise ValueError(
            f"samples must be (draws, *{tuple(target.shape)}) for these targets, not of the shape {tuple(drawn.shape)}"
        )
    draws = len(drawn)
    check_count(draws, "the number of draws", 2 if fair else 1)
    ranks = 2 * torch.arange(draws).double() - (draws - 1)  # of a sorted sample, Σ_i ranks_i x_i = Σ_{i<j} |x_i − x_j|
    pairs = torch.tensordot(ranks, drawn.sort(0).values, dims=1)
    return (drawn - target).abs().mean(0) - pairs / (draws * (draws - 1 if fair else draws))


def crps_samples(samples: Values, targets: Values, *, fair: bool = True) -> float:
    """The mean over entries of crps_samples_each.

    Parameters
    ----------
    samples : Tensor or array
        Draws of the prediction, (draws, *targets).
    targets : Tensor or array
        What was observed.
    fair : bool
        Whether to correct for the number of draws.

    Returns
    -------
    float
        In the units of the targets; lower is better.

    Raises
    ------
    ValueError
        If shapes do not fit, or there are too few draws.

    Examples
    --------
    >>> crps_samples(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([1.0, 1.0]), fair=False)
    0.5
    """
    return float(crps_samples_each(samples, targets, fair=fair).mean())


def coverage(lower: Values, upper: Values, targets: Values) -> float:
    """The share of targets inside their interval, ends included.

    Parameters
    ----------
    lower : Tensor or array
        Lower ends of the intervals.
    upper : Tensor or array
        Upper ends of the intervals.
    targets : Tensor or array
        What was observed.

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If shapes do not fit, or a lower end exceeds the upper one.

    Examples
    --------
    >>> coverage(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.5]))
    0.5
    """
    low, high = _interval(lower, upper)
    target = check_finite(targets, "targets")
    check_same_shape(low, target, "intervals and targets")
    return float(((low <= target) & (target <= high)).double().mean())


def width(lower: Values, upper: Values) -> float:
    """The mean width of the intervals.

    Parameters
    ----------
    lower : Tensor or array
        Lower ends of the intervals.
    upper : Tensor or array
        Upper ends of the intervals.

    Returns
    -------
    float
        In the units of the targets.

    Raises
    ------
    ValueError
        If shapes do not fit, or a lower end exceeds the upper one.

    Examples
    --------
    >>> width(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0]))
    1.5
    """
    low, high = _interval(lower, upper)
    return float((high - low).mean())


def _pair(mean: Values, targets: Values) -> tuple[Tensor, Tensor]:
    predicted, target = check_finite(mean, "mean"), check_finite(targets, "targets")
    check_same_shape(predicted, target, "mean and targets")
    return predicted, target


def _spread(std: Values | float, target: Tensor) -> Tensor:
    spread = check_finite(tensor(std), "std")
    if bool((spread < 0).any()):
        raise ValueError("std is negative somewhere: pass standard deviations, not logarithms")
    if spread.ndim > 0:
        check_same_shape(spread, target, "std and targets")
    return spread.expand(target.shape)


def _interval(lower: Values, upper: Values) -> tuple[Tensor, Tensor]:
    low, high = check_numbers(lower, "lower"), check_numbers(upper, "upper")
    check_same_shape(low, high, "lower and upper")
    if bool((low > high).any()):
        raise ValueError("lower exceeds upper somewhere: were the ends swapped?")
    return low, high
