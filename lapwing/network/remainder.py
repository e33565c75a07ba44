"""What training data that a posterior does not condition on say of it: their gradient, from one pass over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.linear_model import Observed, Remainder
from lapwing.network.jacobian import Jacobian


@final
@dataclass(frozen=True, eq=False)
class FirstOrder:
    """log p of some data, to first order at a network's outputs: a function of the weights of a model through zero."""

    count: int
    density: Remainder

    @staticmethod
    def of(features: Jacobian, likelihood: Likelihood, observed: Observed, outputs: Tensor) -> FirstOrder:
        """That at flat outputs: one product with the transposed Jacobian."""
        targets, flat, weights = observed.targets.cpu(), outputs.double().cpu(), observed.weights
        counts = torch.ones(len(targets), dtype=torch.float64) if weights is None else weights.cpu()
        at = likelihood.reshape_outputs(flat, targets)
        slopes = likelihood.gradient(at, targets, counts).reshape(-1)
        level = float(likelihood.log_prob(at, targets, counts)) - float(slopes @ flat)
        pull = features.rmatmat(slopes[:, None].to(features.like))[:, 0]
        return FirstOrder(features.inputs.count, Remainder(pull.cpu().double(), level))

    def added_to(self, part: FirstOrder, times: float, each: float) -> Remainder:
        """What is left of log p of all data where each of a part counts so many times, and each of these as given."""
        mine, theirs = self.density.times(each), part.density.times(1 - times)
        return Remainder(mine.pull + theirs.pull, mine.level + theirs.level)


def counts(dataset_size: int | None, given: int, rest: int) -> tuple[float, float]:
    """How often each of the data given counts, and each of the rest."""
    size = given + rest if dataset_size is None else dataset_size
    if size < given + rest:
        beside = f" and the {rest} of rest=" if rest else ""
        raise ValueError(
            f"dataset_size is {size}, less than the {given} data given{beside}: it counts the whole training set"
        )
    return size / given, (size - given) / max(1, rest)


def check_rest(likelihood: Likelihood) -> None:
    """Refuse the gradient of other data where there are no labels."""
    if not likelihood.has_classes:
        raise ValueError(
            f"rest= is for labels, with Categorical() or Bernoulli(), not for {type(likelihood).__name__}: leave it "
            "out and give dataset_size= alone"
        )
