"""Where the classes of outputs lie: last in rows of features, anywhere in what a network returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lapwing.bayes.likelihoods import Bernoulli, Categorical

LINKED = 256  # labels of a datum whose covariances are kept


def class_axis(likelihood: Any, outputs: Tensor) -> int:
    """The axis, counted from the end, that comes last in rows of features."""
    dim = likelihood.dim if isinstance(likelihood, Categorical) and outputs.ndim > 2 else -1
    return dim if dim < 0 else dim - outputs.ndim


def as_rows(likelihood: Any, outputs: Tensor) -> Tensor:
    """Outputs with their classes last."""
    return outputs.movedim(class_axis(likelihood, outputs), -1)


def placed(likelihood: Any, values: Tensor, outputs: Tensor, *lead: int) -> Tensor:
    """Values in the order of rows, in the shape of the outputs with `lead` in front."""
    shape = as_rows(likelihood, outputs).shape
    return values.reshape(*lead, *shape).movedim(-1, class_axis(likelihood, outputs))


def are_linked(likelihood: Any, outputs: Tensor) -> bool:
    """Whether outputs of one datum, or classes of one place, need their covariance; many logits do not."""
    many = outputs.ndim > 2 or outputs[:1].numel() > LINKED
    return not (isinstance(likelihood, Bernoulli) and many)
