"""Which labels are wrong: training examples ranked by how likely their label is without them, and how many are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, final, overload

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from lapwing.bayes.likelihoods import Categorical, Likelihood
from lapwing.decisions.columns import LENGTHS, fourier_features, normal_scores, table_inputs
from lapwing.decisions.gradients import GradientSketch
from lapwing.decisions.leaving_out import LeftOutScores, calibrated, left_out_scores
from lapwing.linalg.estimators import Estimate
from lapwing.network.batches import as_batches
from lapwing.network.input_tree import Output, View
from lapwing.network.jacobian import Network
from lapwing.network.parameters import Select
from lapwing.runtime.progress import Report, reporter

SURE = 0.9  # share of the examples predicted as a class, the most confident, that its rate of wrong labels is read from


@final
@dataclass(frozen=True, eq=False)
class LabelIssues:
    """Training examples with the probability of their label, predicted from all the others.

    Parameters
    ----------
    labels : Tensor
        Class numbers as given, (n,).
    probabilities : Tensor
        Of every class for each example, without that example, (n, classes).
    classes : array
        What the class numbers stand for, (classes,).

    Examples
    --------
    >>> probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    >>> found = LabelIssues(torch.tensor([0, 1, 1]), probabilities, np.array(["cat", "dog"]))
    >>> found.ranked(1).tolist(), str(found.suggested[2])
    ([2], 'cat')
    """

    labels: Tensor  # (n,), long
    probabilities: Tensor  # (n, classes), float64
    classes: np.ndarray  # (classes,)

    @property
    def given_probability(self) -> Tensor:  # (n,)
        """The probability of each given label, by all other examples."""
        return self.probabilities.gather(1, self.labels[:, None])[:, 0]

    @property
    def suggested(self) -> np.ndarray:  # (n,)
        """The most probable class of each example, by all others."""
        return self.classes[self.probabilities.argmax(1).numpy()]

    @property
    def wrong_labels(self) -> Estimate:
        """How many labels are wrong, with its standard error.

        A prediction that leaves an example out does not depend on its label. So among the examples that are surely of a
        class, the share with another label is the share of wrong labels, if labels are wrong by chance and not because
        an example is hard. It is taken from the surest nine tenths of the examples predicted as each class. Mistakes
        make it too high, up to twice where classes overlap; a network that has learnt the wrong labels by heart makes
        it too low.
        """
        confidence, predicted = self.probabilities.max(1)
        parts = [_wrong(confidence[at], self.labels[at] != number) for number, at in _by_class(predicted)]
        return Estimate(sum(part.value for part in parts), sqrt(sum(part.standard_error**2 for part in parts)))

    def ranked(self, count: int | None = None) -> Tensor:  # (count,), long
        """The examples with the least likely labels, the most suspicious first.

        Parameters
        ----------
        count : int, optional
            How many. By default as many as are estimated to be wrong.

        Returns
        -------
        Tensor
            Their places in the data.

        Raises
        ------
        ValueError
            If the count is negative.
        """
        if count is not None and count < 0:
            raise ValueError(f"count is {count}, expected 0 or more")
        order = self.given_probability.argsort(stable=True)
        return order[: round(self.wrong_labels.value) if count is None else count]

    def __repr__(self) -> str:
        return f"LabelIssues: {len(self.labels)} labels, about {self.wrong_labels.value:.0f} of them wrong"


@overload
def label_issues(
    model: nn.Module, data: Any, likelihood: Likelihood, *, select: Select = None, output: Output = None, seed: int = 0,
    progress: bool | Report | None = None,
) -> LabelIssues: ...  # fmt: skip


@overload
def label_issues(model: Any, data: Any, *, seed: int = 0) -> LabelIssues: ...


def label_issues(
    model: Any, data: Any, likelihood: Likelihood | None = None, *, select: Select = None, output: Output = None,
    seed: int = 0, progress: bool | Report | None = None,
) -> LabelIssues:  # fmt: skip
    """Which training labels are wrong: each is predicted from all the others, without training again.

    For a network, labels are regressed on the gradients of its outputs (of its linearisation, that is), in 512 random
    coordinates; leverages give every prediction without the example itself. The network may have learnt wrong labels
    by heart. For a table they are regressed on 512 random Fourier features of its columns, standardised or by their
    ranks, whichever predicts better, which stand for a Gaussian process; text, categories and missing values are read
    as by `BayesianMLPClassifier`.

    Parameters
    ----------
    model : nn.Module, or array or data frame
        A network in eval mode, trained on the data; or the columns of a table.
    data : (inputs, labels), Dataset, DataLoader or list of batches
        What the network was trained on; for a table its labels, numbers or text.
    likelihood : Likelihood, optional
        `Categorical()` for a network. Not used for a table.
    select : callable or Tensor, optional
        Which weights have gradients taken, as in `fit`. `last_layer(model)` is the fastest for a large network.
    output : str, int or callable, optional
        Which tensor is meant, where the network returns several.
    seed : int
        Of the random coordinates or features.
    progress : bool or callable, optional
        Whether to show progress. By default only on a terminal.

    Returns
    -------
    LabelIssues
        With `ranked()`, the most suspicious examples first, and `wrong_labels`, how many are wrong.

    Raises
    ------
    ValueError
        If the likelihood is not `Categorical()`, or labels are not class numbers of the network's outputs.

    Examples
    --------
    >>> from lapwing.training import train
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> y = (x[:, 0] > 0).long()
    >>> y[5] = 1
    >>> network = train(nn.Linear(1, 2), (x, y), Categorical(), epochs=50, progress=False)
    >>> label_issues(network, (x, y), Categorical()).ranked(1)
    tensor([5])

    A table:

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> y[7] = 2
    >>> label_issues(X, y).ranked(1)
    tensor([7])
    """
    if isinstance(model, nn.Module):
        return _of_network(model, data, _categorical(likelihood), (select, output), seed, reporter(progress))
    return _of_table(model, data, seed)


def _of_network(
    model: nn.Module, data: Any, likelihood: Categorical, choice: tuple[Select, Output], seed: int, report: Report
) -> LabelIssues:
    select, output = choice
    batches = as_batches(data)
    first = next(batches.read())
    outputs = Network.of(model, None, View(output)).outputs(first.inputs[:1])
    if outputs.ndim != 2:
        raise ValueError(
            f"the network's outputs have shape {tuple(outputs.shape)}: expected (examples, classes). For labels of "
            "pixels or tokens use fit(…).leave_one_out()"
        )
    classes = outputs.shape[1]
    sketch = GradientSketch.of(model, classes, select=select, output=output, seed=seed)
    features, labels = [], []
    for batch in batches.read():
        assert batch.targets is not None
        features.append(sketch(batch.inputs))
        labels.append(batch.targets.cpu())
        report(f"gradients of {sum(map(len, labels))} examples")
    report("")
    given = likelihood.checked(torch.cat(labels), classes * sum(map(len, labels)))
    _check_labels(given, classes)
    found = left_out_scores(torch.cat(features), given, classes)
    return LabelIssues(given, calibrated(found.scores, given), np.arange(classes))


def _of_table(table: Any, labels: Any, seed: int) -> LabelIssues:
    inputs = torch.from_numpy(table_inputs(table))
    if len(inputs) != len(labels):
        raise ValueError(f"the table has {len(inputs)} rows and there are {len(labels)} labels: expected one for each")
    check_classification_targets(labels)
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"all {len(labels)} labels are {classes[0]!r}: expected two classes at least")
    given = torch.from_numpy(numbers)

    def scored(form: Tensor, length: float) -> LeftOutScores:
        return left_out_scores(fourier_features(form, length, seed), given, len(classes))

    middle = LENGTHS[len(LENGTHS) // 2]
    starts = [(form, scored(form, middle)) for form in (inputs, normal_scores(inputs))]
    form, found = min(starts, key=lambda start: start[1].squared_error)
    found = _walked(lambda length: scored(form, length), found)
    return LabelIssues(given, calibrated(found.scores, given), classes)


def _walked(scored: Callable[[float], LeftOutScores], best: LeftOutScores) -> LeftOutScores:
    """Away from the middle length, shorter and longer, as long as the error falls."""
    middle = len(LENGTHS) // 2
    for lengths in (LENGTHS[:middle][::-1], LENGTHS[middle + 1 :]):
        for other in map(scored, lengths):
            if other.squared_error >= best.squared_error:
                break
            best = other
    return best


def _categorical(likelihood: Likelihood | None) -> Categorical:
    if not isinstance(likelihood, Categorical):
        raise ValueError(
            f"label_issues(model, data, likelihood) is for class labels, with Categorical(), not {likelihood!r}: for "
            "others use fit(…).leave_one_out().label_errors(count)"
        )
    return likelihood


def _check_labels(labels: Tensor, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if labels.ndim != 1 or low < 0 or high >= classes:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} from {low} to {high}: expected one class number for each example, "
            f"from 0 to {classes - 1}"
        )


def _by_class(predicted: Tensor) -> list[tuple[int, Tensor]]:
    return [(int(number), (predicted == number).nonzero()[:, 0]) for number in predicted.unique()]


def _wrong(confidence: Tensor, differs: Tensor) -> Estimate:
    """The number of wrong labels among examples predicted as one class, from the surer part of them."""
    sure = confidence.argsort(descending=True, stable=True)[: max(1, round(SURE * len(confidence)))]
    rate = float(differs[sure].double().mean())
    return Estimate(len(confidence) * rate, len(confidence) * sqrt(rate * (1 - rate) / len(sure)))
