"""Does a confidence of 80 % come true 80 % of the time? Reliability tables and the calibration errors they give."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, final

import torch
from torch import Generator, Tensor

from lapwing.metrics.checks import Values, check_count, check_labels, check_level, check_probs, tensor

Binning = Literal["width", "mass"]


@final
@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability table, one row per bin; what cannot be said of an empty bin is NaN.

    Parameters
    ----------
    edges : Tensor
        Of the bins, (bins + 1,). Bin b holds confidences in (edges[b], edges[b + 1]].
    counts : Tensor
        Data in each bin.
    confidences : Tensor
        Mean confidence in each bin.
    accuracies : Tensor
        Share of each bin that was right.
    standard_errors : Tensor
        Of the accuracies, binomial: 0 where all or none were right.
    lower : Tensor
        Lower end of Wilson's interval for the accuracy.
    upper : Tensor
        Upper end.

    Examples
    --------
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> table = reliability(probs, torch.tensor([0, 1, 1]), bins=2)
    >>> table.counts.tolist(), round(table.ece, 4)
    ([0, 3], 0.1)
    """

    edges: Tensor  # (bins + 1,); bin b holds confidences in (edges[b], edges[b + 1]], the first bin its lower edge too
    counts: Tensor  # (bins,)
    confidences: Tensor  # mean confidence in the bin
    accuracies: Tensor  # share of it that was right
    standard_errors: Tensor  # binomial, of the accuracies: √(a (1 − a) / count), so 0 where all or none were right
    lower: Tensor  # Wilson's interval for the accuracy
    upper: Tensor

    @property
    def ece(self) -> float:
        """Σ_b count_b / n |accuracy_b − confidence_b|."""
        gaps = (self.accuracies - self.confidences).abs().nan_to_num(0.0)
        return float((self.counts * gaps).sum() / self.counts.sum())


def wilson(successes: Values, counts: Values, *, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Wilson's (1927) score interval for a share: lower and upper; NaN where the count is zero.

    Unlike value ± 1.96 standard errors it stays in [0, 1] and does not shrink to a point at 0 of n.

    Parameters
    ----------
    successes : Tensor or array
        How often it came true.
    counts : Tensor or array
        Out of how many.
    level : float
        Probability that an interval holds the share.

    Returns
    -------
    tuple of Tensor
        Lower and upper ends.

    Raises
    ------
    ValueError
        If there are more successes than counts, or the level is not between 0 and 1.

    Examples
    --------
    >>> low, high = wilson(torch.tensor([0, 9]), torch.tensor([10, 10]))
    >>> low.round(decimals=3).tolist(), high.round(decimals=3).tolist()
    ([0.0, 0.596], [0.278, 0.982])
    """
    check_level(level)
    right, n = tensor(successes).cpu().double(), tensor(counts).cpu().double()
    if bool((right < 0).any()) or bool((right > n).any()):
        raise ValueError("successes must lie between zero and their counts")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = right / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)).sqrt()
    return (centre - half).clamp(0, 1), (centre + half).clamp(0, 1)


def reliability(
    probs: Values, labels: Values, *, bins: int = 15, binning: Binning = "width", level: float = 0.95
) -> Reliability:
    """The confidence (largest probability) against the accuracy, in bins of equal width or of equal mass.

    Bins of equal mass have their edges at quantiles of the confidences; equal confidences always share a bin, so there
    may be fewer bins than asked for. `level` is that of Wilson's intervals.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    bins : int
        How many bins.
    binning : "width" or "mass"
        Bins of equal width, or with equal shares of the data.
    level : float
        Probability that an interval holds the share.

    Returns
    -------
    Reliability
        One row for each bin.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> table = reliability(probs, torch.tensor([0, 1, 1]), bins=2)
    >>> table.counts, table.accuracies, table.ece
    (tensor([0, 3]), tensor([   nan, 0.6667], dtype=torch.float64), 0.1000...)
    """
    confidences, right = _top(probs, labels)
    edges = _edges(confidences, bins, binning)
    counts, mean_confidences, accuracies = _binned(confidences, right, edges)
    lower, upper = wilson(accuracies.nan_to_num(0.0) * counts, counts, level=level)
    errors = (accuracies * (1 - accuracies) / counts).sqrt()
    return Reliability(edges, counts, mean_confidences, accuracies, errors, lower, upper)


def ece(probs: Values, labels: Values, *, bins: int = 15, binning: Binning = "width") -> float:
    """Expected calibration error of the most probable class: Σ_b count_b / n |accuracy_b − confidence_b|.

    Bins are `bins` intervals of equal width, closed above (Guo et al. 2017), or hold equal shares of the data with
    binning="mass". Biased upwards: see ece_floor for what chance alone would give.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    bins : int
        How many bins.
    binning : "width" or "mass"
        Bins of equal width, or with equal shares of the data.

    Returns
    -------
    float
        Between 0 and 1; lower is better.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> round(ece(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 1, 1])), 4)
    0.4333
    """
    confidences, right = _top(probs, labels)
    return _error(confidences, right, bins, binning)


def classwise_ece(probs: Values, labels: Values, *, bins: int = 15, binning: Binning = "width") -> float:
    """The mean over classes of the calibration error of that class's probability (Kull et al. 2019).

    With binning="mass" it is the adaptive calibration error (Nixon et al. 2019).

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    bins : int
        How many bins.
    binning : "width" or "mass"
        Bins of equal width, or with equal shares of the data.

    Returns
    -------
    float
        Between 0 and 1; lower is better.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> round(classwise_ece(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 1, 1])), 4)
    0.4333
    """
    predicted = check_probs(probs)
    target = check_labels(labels, *predicted.shape)
    errors = [
        _error(column, (target == c).double(), bins, binning) for c, column in enumerate(predicted.T.contiguous())
    ]
    return sum(errors) / len(errors)


def ece_error(
    probs: Values,
    labels: Values,
    *,
    bins: int = 15,
    binning: Binning = "width",
    resamples: int = 200,
    generator: Generator,
) -> float:
    """The standard error of ece by the bootstrap: the spread over data drawn anew with replacement.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    bins : int
        How many bins.
    binning : "width" or "mass"
        Bins of equal width, or with equal shares of the data.
    resamples : int
        Number of bootstrap samples.
    generator : torch.Generator
        Source of the random numbers.

    Returns
    -------
    float
        The standard error.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 1, 1])
    >>> 0.1 < ece_error(probs, labels, generator=torch.Generator().manual_seed(0)) < 0.3
    True
    """
    check_count(resamples, "resamples", 2)
    confidences, right = _top(probs, labels)
    rows = torch.randint(len(right), (resamples, len(right)), generator=generator)
    return float(torch.tensor([_error(confidences[r], right[r], bins, binning) for r in rows]).std())


def ece_floor(
    probs: Values, *, bins: int = 15, binning: Binning = "width", draws: int = 200, generator: Generator
) -> float:
    """The mean ece of a perfectly calibrated classifier with these confidences: what chance alone gives on n data.

    An ece is worth worrying about only where it clearly exceeds this.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    bins : int
        How many bins.
    binning : "width" or "mass"
        Bins of equal width, or with equal shares of the data.
    draws : int
        Number of simulated test sets.
    generator : torch.Generator
        Source of the random numbers.

    Returns
    -------
    float
        The mean over the simulated test sets.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).repeat(200, 1)
    >>> 0.0 < ece_floor(probs, generator=torch.Generator().manual_seed(0)) < 0.05
    True
    """
    check_count(draws, "draws")
    confidences = check_probs(probs).amax(-1)
    edges = _edges(confidences, bins, binning)
    uniform = torch.rand(draws, len(confidences), generator=generator, dtype=torch.float64)
    errors = [_gap(confidences, (row < confidences).double(), edges) for row in uniform]
    return sum(errors) / draws


def _top(probs: Values, labels: Values) -> tuple[Tensor, Tensor]:
    predicted = check_probs(probs)
    target = check_labels(labels, *predicted.shape)
    confidences, classes = predicted.max(-1)
    return confidences, (classes == target).double()


def _error(confidences: Tensor, right: Tensor, bins: int, binning: Binning) -> float:
    return _gap(confidences, right, _edges(confidences, bins, binning))


def _edges(confidences: Tensor, bins: int, binning: Binning) -> Tensor:
    check_count(bins, "bins")
    if binning == "width":
        return torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    if binning != "mass":
        raise ValueError(f"binning is 'width' or 'mass', not {binning!r}")
    ordered = confidences.sort().values
    last = torch.arange(1, bins).double() * len(ordered) / bins  # the last of each bin but the topmost, counted from 1
    inner = ordered[last.round().long().clamp_min(1) - 1]
    ends = ordered.new_tensor([0.0, 1.0])
    return torch.cat([ends, inner]).unique()


def _binned(confidences: Tensor, right: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    bin_of = torch.bucketize(confidences, edges[1:-1])
    bins = len(edges) - 1
    counts = torch.bincount(bin_of, minlength=bins)
    sums = [torch.bincount(bin_of, weights=values, minlength=bins) for values in (confidences, right)]
    return counts, sums[0] / counts, sums[1] / counts


def _gap(confidences: Tensor, right: Tensor, edges: Tensor) -> float:
    bin_of = torch.bucketize(confidences, edges[1:-1])
    gaps = torch.bincount(bin_of, weights=right - confidences)
    return float(gaps.abs().sum() / len(right))
