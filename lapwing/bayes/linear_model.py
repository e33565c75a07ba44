"""The one noun: features, targets and a likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Gaussian, Likelihood
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.operators import Dense, LinearOperator, Sparse, as_operator, as_tensor


@final
@dataclass(frozen=True, eq=False)
class Observed:
    """Held-out data as a likelihood takes them: inputs, targets, and how often each counts."""

    inputs: Any
    targets: Tensor
    weights: Tensor | None = None  # (n,), or the targets' shape


@final
@dataclass(frozen=True, eq=False)
class Centre:
    """What a linear model was linearised from: its own outputs at new inputs, and its weights w̄."""

    outputs_at: Callable[[Any], Tensor]
    weights: Tensor  # (d,)
    names: tuple[str, ...] = ()  # of the tensors that the weights come from
    mask: Tensor | None = None  # over these tensors, where only some of their weights are meant
    fingerprint: Callable[[], str] = str  # of everything that the outputs depend on, empty where it is not known
    moved: Callable[[Any, Tensor], Tensor] | None = None  # its outputs at inputs with w̄ + a change (d,) for weights
    observed: Callable[[Any], Observed] | None = None  # reads data of any kind


@final
@dataclass(frozen=True, eq=False)
class LinearModel:
    """y = Φ θ + noise, with features Φ known by their products.

    `features` (n·m × d) is a NumPy array, SciPy sparse matrix, torch tensor or LinearOperator, the m outputs of
    one datum in consecutive rows. `targets` is (n,) or (n, m); class numbers (n,) for Categorical(). `weights` (n,)
    counts each datum that many times, or (n, m) each target under Gaussian noise. `features_at` makes the feature
    operator of new inputs; for a design matrix that is the matrix itself. `centre` is the function that predictions
    are drawn around, where it is not the linear model's own mean.

    >>> from lapwing import Gaussian
    >>> model = LinearModel([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [0.1, 0.9, 2.1], Gaussian())
    >>> model.features.shape, model.outputs
    ((3, 2), 1)
    """

    features: Any
    targets: Any
    likelihood: Likelihood
    weights: Any = None
    features_at: Callable[[Any], LinearOperator] = as_operator
    centre: Centre | None = None
    blocks: Tensor | None = None  # (d,), the number of the tensor that each weight belongs to
    offset: Tensor | None = None  # (n · m,), added to Φ θ under a likelihood that is not Gaussian
    groups: Callable[[str], Mapping[str, Tensor]] | None = None  # the groups of weights that a kind of grouping makes
    structure: Callable[[Any, Tensor, int], tuple[Curvature, dict[str, Any]]] | None = None  # of a method, scale, seed

    def __post_init__(self) -> None:
        features, targets = as_operator(self.features), as_tensor(self.targets)
        if features.shape[1] == 0:
            raise ValueError(f"features of shape {features.shape} have no column: expected at least one column")
        if targets.numel():
            check_finite("targets", Dense(targets.reshape(len(targets), -1).double()))
        targets = self.likelihood.checked(targets, features.shape[0])
        check_finite("features", features)
        for name, value in (
            ("features", features),
            ("targets", targets),
            ("weights", self._weights(targets)),
        ):
            object.__setattr__(self, name, value)

    def _weights(self, targets: Tensor) -> Tensor:
        if self.weights is None:
            return torch.ones(len(targets), dtype=torch.float64)
        weights = as_tensor(self.weights).double()
        allowed = (targets.shape[:1], targets.shape) if isinstance(self.likelihood, Gaussian) else (targets.shape[:1],)
        if weights.shape not in allowed or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(
                f"weights must be {len(targets)} finite numbers, none negative, got shape {tuple(weights.shape)}"
            )
        if not bool((weights > 0).any()):
            raise ValueError("every weight is zero: no data are left")
        return weights

    @property
    def gaussian(self) -> Gaussian:
        """The likelihood, which must be Gaussian."""
        if not isinstance(self.likelihood, Gaussian):
            raise TypeError(f"expected a Gaussian likelihood, got {self.likelihood!r}")
        return self.likelihood

    @property
    def outputs(self) -> int:
        """Outputs per datum, m."""
        return self.features.shape[0] // len(self.targets)

    @property
    def row_counts(self) -> Tensor:  # (n * m,)
        """How often each target counts."""
        return self.weights.reshape(-1).repeat_interleave(self.features.shape[0] // self.weights.numel())

    def at_centre(self) -> Tensor:  # (n * m,)
        """Φ w̄ at the weights of the centre, which the features of a network keep once it is known."""
        if self.centre is None:
            raise ValueError("this model was not linearised from anything: it has no weights of its own")
        kept = getattr(self.features, "at_weights", None)
        product = self.features @ self.centre.weights.to(self.features.like) if kept is None else kept
        return product.double()


def left_by_centre(model: LinearModel) -> Tensor:  # (noise groups,)
    """The root mean square of what the centre itself leaves of the targets, under Gaussian noise."""
    residuals, groups = model.targets.reshape(-1).double() - model.at_centre(), model.gaussian.row_groups(model.targets)
    counts = model.row_counts
    return (groups.bincount(counts * residuals.square()) / groups.bincount(counts)).sqrt()


def check_finite(what: str, operator: LinearOperator) -> None:
    """Raise where a stored matrix holds NaN, infinity, or numbers whose squares leave the range of float64."""
    values = _stored(operator)
    if values is None or not values.numel():
        return
    largest = values.abs().max()
    if not bool(largest.isfinite()):
        bad = ~values.isfinite()
        row, column = _position(operator, int(bad.reshape(-1).nonzero()[0]))
        raise ValueError(
            f"{what} contain {int(bad.sum())} NaN or infinite values, the first at row {row}, column {column}: "
            "remove or impute them first"
        )
    if largest > 1e140 or 0 < largest < 1e-140:
        raise ValueError(
            f"the largest of the {what} is {float(largest):.1e}, and its square leaves the range of float64: "
            "change their units"
        )


def _stored(operator: LinearOperator) -> Tensor | None:
    if isinstance(operator, Sparse):
        return torch.from_numpy(operator.matrix.data)
    return operator.matrix if isinstance(operator, Dense) else None


def _position(operator: LinearOperator, index: int) -> tuple[int, int]:
    if isinstance(operator, Sparse):
        row = int(operator.matrix.indptr.searchsorted(index, side="right")) - 1
        return row, int(operator.matrix.indices[index])
    return divmod(index, operator.shape[1])
