"""Which of two is better, and by more than chance? What is gained by answering only where one is sure?"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf, nan, sqrt
from typing import final

import torch
from torch import Tensor

from lapwing.metrics.checks import Values, check_count, check_finite, check_labels, check_probs, check_same_shape


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference and its standard error.

    Parameters
    ----------
    mean : float
        Of the differences.
    standard_error : float
        Of that mean.

    Examples
    --------
    >>> Difference(0.004, 0.007)
    +0.004 ± 0.007
    """

    mean: float
    standard_error: float

    @property
    def z(self) -> float:
        """The difference in standard errors; beyond ± 2 it is hardly chance."""
        if self.standard_error > 0:
            return self.mean / self.standard_error
        return nan if self.mean == 0 else inf if self.mean > 0 else -inf

    def __repr__(self) -> str:
        return f"{self.mean:+.4g} ± {self.standard_error:.2g}"


def paired(first: Values, second: Values) -> Difference:
    """The mean of first − second over the same data (or splits, or seeds), with the standard error of that mean.

    Losses of two methods on one test set rise and fall together, so this error is far below that of either mean. It
    takes the pairs to be independent: not so for overlapping splits of one data set, where it is too small.

    Parameters
    ----------
    first : Tensor or array
        Losses of one method, (n,).
    second : Tensor or array
        Losses of the other on the same data, (n,).

    Returns
    -------
    Difference
        Negative where the first is lower.

    Raises
    ------
    ValueError
        If there are fewer than two pairs, or shapes do not fit.

    Examples
    --------
    >>> paired(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.0, 3.0]))
    +0.5 ± 0.29
    """
    one, other = check_finite(first, "first", dims=1), check_finite(second, "second", dims=1)
    check_same_shape(one, other, "first and second")
    check_count(len(one), "the number of pairs", 2)
    differences = one - other
    return Difference(float(differences.mean()), float(differences.std()) / sqrt(len(one)))


@final
@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The mean loss of the data one is surest of, for every share of them that is answered.

    Parameters
    ----------
    coverage : Tensor
        Share of the data that is answered, (n,): 1/n, 2/n, …, 1.
    risk : Tensor
        Mean loss of those answers, (n,).

    Examples
    --------
    >>> curve = RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.25]))
    >>> curve.at(0.4), curve.area
    (0.0, 0.125)
    """

    coverage: Tensor  # (n,): 1/n, 2/n, …, 1
    risk: Tensor  # (n,)

    @property
    def area(self) -> float:
        """The mean risk over all coverages (AURC; Geifman & El-Yaniv 2017): lower is better."""
        return float(self.risk.mean())

    def at(self, share: float) -> float:
        """The risk where at least this share of the data is answered.

        Parameters
        ----------
        share : float
            In (0, 1].

        Returns
        -------
        float
            Mean loss of those answers.

        Raises
        ------
        ValueError
            If the share is not in (0, 1].
        """
        if not 0 < share <= 1:
            raise ValueError(f"a share of the data lies in (0, 1], not {share}")
        return float(self.risk[int(torch.searchsorted(self.coverage, share - 1e-12))])


def risk_coverage(uncertainty: Values, losses: Values) -> RiskCoverage:
    """The curve of selective risk: answer the least uncertain first, lose `losses` (such as 1 − correct, or an NLL).

    Data of equal uncertainty come in no order: each takes the mean loss of its equals.

    Parameters
    ----------
    uncertainty : Tensor or array
        Larger where the prediction is less certain, (n,).
    losses : Tensor or array
        What each answer costs, (n,).

    Returns
    -------
    RiskCoverage
        The whole curve.

    Raises
    ------
    ValueError
        If shapes do not fit, or a value is not finite.

    Examples
    --------
    >>> curve = risk_coverage(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([0.0, 1.0, 0.0]))
    >>> curve.risk.tolist(), round(curve.area, 4)
    ([0.0, 0.0, 0.3333333333333333], 0.1111)
    """
    unsure, loss = check_finite(uncertainty, "uncertainty", dims=1), check_finite(losses, "losses", dims=1)
    check_same_shape(unsure, loss, "uncertainty and losses")
    _, rank_of, counts = unsure.unique(return_inverse=True, return_counts=True)
    means = torch.zeros(len(counts), dtype=torch.float64).index_add(0, rank_of, loss) / counts
    answered = torch.arange(1, len(loss) + 1).double()
    return RiskCoverage(answered / len(loss), means.repeat_interleave(counts).cumsum(0) / answered)


def answered(probs: Values, labels: Values, threshold: float) -> tuple[int, int]:
    """How many rows are answered at this confidence or above, and how many of those answers are wrong.

    Parameters
    ----------
    probs : Tensor or array
        Class probabilities, (n, c).
    labels : Tensor or array
        Class numbers, (n,).
    threshold : float
        Confidence from which a row is answered.

    Returns
    -------
    tuple of int
        Rows answered, and how many of them are wrong.

    Raises
    ------
    ValueError
        If probabilities do not sum to one, or shapes do not fit.

    Examples
    --------
    >>> probs = torch.tensor([[0.95, 0.05], [0.3, 0.7], [0.08, 0.92]])
    >>> answered(probs, torch.tensor([0, 1, 0]), 0.9)
    (2, 1)
    """
    confidence, predicted = check_probs(probs).max(1)
    target = check_labels(labels, *check_probs(probs).shape)
    sure = confidence >= threshold
    return int(sure.sum()), int((sure & (predicted != target)).sum())


def risk_threshold(confidence: Values, wrong: Values, risk: float) -> float:
    """The lowest confidence above which a new input is answered, wrongly, with probability `risk` at most.

    Conformal risk control: a threshold with k wrong answers above it among n examples is kept if (k + 1) / (n + 1) ≤
    risk. That holds whatever the classifier, for inputs like these examples, which must not have trained or tuned it.

    Parameters
    ----------
    confidence : Tensor or array
        Of the answer to each example, (n,).
    wrong : Tensor or array
        Whether that answer is wrong, (n,).
    risk : float
        The probability of a wrong answer, counted over all inputs, answered or not.

    Returns
    -------
    float
        To answer above; −∞ where everything may be answered.

    Raises
    ------
    ValueError
        If there are too few examples for the risk, or it is not between 0 and 1.

    Examples
    --------
    >>> confidence = torch.linspace(0.5, 0.99, 50)
    >>> wrong = confidence < 0.62
    >>> round(risk_threshold(confidence, wrong, 0.02), 2), round(risk_threshold(confidence, wrong, 0.2), 2)
    (0.61, 0.52)
    """
    if not 0 < risk < 1:
        raise ValueError(f"risk must lie between 0 and 1, got {risk}")
    sure, mistaken = check_finite(confidence, "confidence", dims=1), check_finite(wrong, "wrong", dims=1).bool()
    check_same_shape(sure, mistaken, "confidence and wrong")
    allowed = floor(round(risk * (len(sure) + 1), 9)) - 1
    if allowed < 0:
        raise ValueError(
            f"a risk of {risk:g} needs at least {ceil(round(1 / risk - 1, 9))} validation examples, and there are "
            f"{len(sure)}: give more of them, or allow a higher risk"
        )
    of_wrong = sure[mistaken].sort(descending=True).values
    return float(of_wrong[allowed]) if len(of_wrong) > allowed else -inf
