"""The one noun: features, targets and a likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import GaussianSurrogate, Likelihood
from lapwing.linalg.operators import Dense, LinearOperator, Sparse, Stacked, as_operator, as_tensor


@final
@dataclass(frozen=True, eq=False)
class Observed:
    """Held-out data as a likelihood takes them: inputs, targets, and how often each counts."""

    inputs: Any
    targets: Tensor
    weights: Tensor | None = None  # (n,), or the targets' shape


@final
@dataclass(frozen=True, eq=False)
class LinearisationPoint:
    """What a linear model was linearised from: its own outputs at new inputs, and its weights w̄."""

    outputs_at: Callable[[Any], Tensor]
    weights: Tensor  # (d,)
    names: tuple[str, ...] = ()  # of the tensors that the weights come from
    mask: Tensor | None = None  # over these tensors, where only some of their weights are meant
    fingerprint: Callable[[], str] = str  # of everything that the outputs depend on, empty where it is not known
    outputs_moved: Callable[[Any, Tensor], Tensor] | None = None  # its outputs at inputs with weights w̄ + a change (d,)
    read: Callable[[Any], Observed] | None = None  # reads data of any kind
    served: Callable[[Any, Any, Any], Any] | None = None  # posterior, inputs and link -> its predictions as a module
    through_zero: bool = False  # whether the linear model is Jθ alone, not f(x) + J (θ − w̄)
    stands_for: float = 1.0  # how many data each one counts as, where those given are a part of all

    def expanded(self, outputs: Tensor) -> tuple[Tensor, Tensor]:  # outputs' shape, (d,)
        """Where the linear model is expanded: its outputs there, of inputs with these outputs, and the weights."""
        if self.through_zero:
            return torch.zeros_like(outputs), torch.zeros_like(self.weights)
        return outputs, self.weights


@final
@dataclass(frozen=True, eq=False)
class Remainder:
    """What data that are not among those given add to log p, to first order at a network's outputs: level + pullᵀθ."""

    pull: Tensor  # (d,)
    level: float

    def times(self, share: float) -> Remainder:
        """What such a share of the data adds."""
        return Remainder(share * self.pull, share * self.level)


@final
@dataclass(frozen=True, eq=False)
class LinearModel:
    """y = Φ θ + noise, with features Φ known by their products.

    `features` (n·m × d) is a NumPy array, SciPy sparse matrix, torch tensor or LinearOperator, the m outputs of
    one datum in consecutive rows. `targets` is (n,) or (n, m); class numbers (n,) for Categorical(). `weights` (n,)
    counts each datum that many times, or (n, m) each target under Gaussian noise. `features_at` makes the feature
    operator of new inputs; for a design matrix that is the matrix itself. `point` is what the model was linearised
    from, whose outputs predictions are drawn around. `absorbed` counts observations that were spent before, as one is
    on an intercept that targets and features were centred by.

    Parameters
    ----------
    features : array, sparse matrix, Tensor or LinearOperator (n·m, d)
        Features of the training data.
    targets : array (n,) or (n, m)
        What was observed.
    likelihood : Likelihood
        Such as `Gaussian()`.
    weights : array, optional
        How often each example counts.
    features_at : callable
        Features of new inputs.
    point : LinearisationPoint, optional
        Network that was linearised. Set by `linearise`.
    blocks : Tensor, optional
        Tensor that each weight belongs to. Set by `linearise`.
    offset : Tensor, optional
        Added to the outputs. Set by `linearise`.
    groups : callable, optional
        Groups of weights by their name. Set by `linearise`.
    structure : Any, optional
        For structured methods. Set by `linearise`.
    absorbed : float
        Observations that an intercept has used up.
    set_aside : Tensor, optional
        Examples that were removed. Set by `remove`.
    rest : Remainder, optional
        What the data that these are a part of add to them. Set by `linearise`.

    Raises
    ------
    ValueError
        If there are no columns, or the targets do not fit the likelihood.

    Examples
    --------
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
    point: LinearisationPoint | None = None
    blocks: Tensor | None = None  # (d,), the number of the tensor that each weight belongs to
    offset: Tensor | None = None  # (n · m,), outputs at weights of zero, where these are not zero
    groups: Callable[[str], Mapping[str, Tensor]] | None = None  # the groups of weights that a kind of grouping makes
    structure: Any = None  # what a network can make of its layers, for structured methods
    absorbed: float = 0.0
    set_aside: Tensor | None = None  # (n · m,), the offset of a network whose model goes through zero
    rest: Remainder | None = None

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
        allowed = self.likelihood.weight_shapes(targets)
        if weights.shape not in allowed or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(
                f"weights must be {len(targets)} finite numbers, none negative, got shape {tuple(weights.shape)}"
            )
        if not bool((weights > 0).any()):
            raise ValueError("every weight is zero: no data are left")
        return weights

    @property
    def outputs(self) -> int:
        """Outputs per datum, m."""
        return self.features.shape[0] // len(self.targets)

    @property
    def row_counts(self) -> Tensor:  # (n * m,)
        """How often each target counts."""
        return self.weights.reshape(-1).repeat_interleave(self.features.shape[0] // self.weights.numel())

    @property
    def row_weights(self) -> Tensor:  # (n * m,)
        """How often each target counts, times the precision given for it."""
        given = self.likelihood.row_precision(self.targets)
        return given.repeat_interleave(self.features.shape[0] // len(given)) * self.row_counts

    @property
    def noise_of(self) -> Tensor:  # (n * m,)
        """The noise group of every target."""
        return self.likelihood.noise_groups(self.targets, self.features.shape[0])

    @property
    def noise_groups(self) -> int:
        """How many noises there are to be tuned or given."""
        return int(self.noise_of.max()) + 1

    def outputs_at_point(self) -> Tensor:  # (n * m,)
        """The outputs of what was linearised: Φ w̄, which the features of a network keep once it is known, + offset."""
        if self.point is None:
            raise ValueError("this model was not linearised from anything: it has no weights of its own")
        kept = getattr(self.features, "product_with_weights", None)
        product = self.features @ self.point.weights.to(self.features.like) if kept is None else kept
        offset = self.offset if self.set_aside is None else self.set_aside
        return product.double() if offset is None else product.double() + offset.double()

    def through_zero(self) -> LinearModel:
        """The same features as a linear model without an offset, y ~ p(y | Jθ).

        An offset f − J w̄ is what the linearised network says at weights of zero: nothing that one believes before the
        data, and for deep networks it is confident and wrong, so that a precision which fits must first undo it.
        """
        if self.point is None:
            return self
        return replace(self, offset=None, set_aside=self.offset, point=replace(self.point, through_zero=True))

    def gaussian_surrogate(self, outputs: Tensor | None = None) -> GaussianSurrogate:
        """The Gaussian model with the likelihood's curvature at flat outputs, which Gaussian noise does not ask for."""
        targets = self.targets
        if self.offset is not None:
            targets = self.likelihood.less_offset(targets, self.offset)
        found = self.likelihood.gaussian_surrogate(self.features, outputs, targets, self.weights)
        return found if not self.absorbed else replace(found, counts=found.counts - self.absorbed)

    def joined(self, more: LinearModel) -> LinearModel:
        """The linear model of all data: these, then others."""
        offset = aside = None
        if self.offset is not None or more.offset is not None:
            offset = torch.cat([self.offsets(), more.offsets()])
        if self.set_aside is not None and more.set_aside is not None:
            aside = torch.cat([self.set_aside, more.set_aside])
        likelihood = self.likelihood.joined(more.likelihood, self.targets.shape, more.targets.shape)
        return replace(
            self, features=_stacked(self.features, more.features), targets=torch.cat([self.targets, more.targets]),
            weights=torch.cat([self.weights, more.weights]), offset=offset, set_aside=aside, likelihood=likelihood,
            structure=None, groups=None,
        )  # fmt: skip

    def offsets(self) -> Tensor:  # (n * m,)
        """Outputs at weights of zero."""
        if self.offset is None:
            return torch.zeros(self.features.shape[0], dtype=torch.float64)
        return self.offset.double()

    def without(self, places: Tensor) -> LinearModel:
        """The same where data at some places weigh nothing: they keep their places."""
        if not bool((self.weights[places].reshape(len(places), -1) > 0).any(1).all()):
            raise ValueError(f"some of {places.tolist()} weigh nothing: they were removed before, or never counted")
        weights = self.weights.clone()
        weights[places] = 0
        return replace(self, weights=weights)  # refuses where nothing is left

    def only(self, places: Tensor) -> LinearModel:
        """Some of the data, their features as a matrix."""
        m = self.outputs
        rows = torch.cat([self.features.rows(i * m, (i + 1) * m) for i in places.tolist()])
        likelihood = self.likelihood.for_data(places, self.targets.shape)
        offset = None if self.offset is None else self.offset.reshape(-1, m)[places].reshape(-1)
        return LinearModel(rows, self.targets[places], likelihood, weights=self.weights[places], offset=offset)

    def misfit(self, outputs: Tensor) -> Tensor:  # (noise groups,)
        """−2 log p at flat outputs; under Gaussian noise the squared residuals in units of the noise given."""
        return self.likelihood.misfit(outputs, self.targets, self.weights)


def network_residual_rms(model: LinearModel) -> Tensor:  # (noise groups,)
    """The root mean square of what the network itself leaves of its targets, under Gaussian noise."""
    residuals = model.targets.reshape(-1).double() - model.outputs_at_point()
    groups, counts = model.noise_of, model.row_counts
    return (groups.bincount(counts * residuals.square()) / groups.bincount(counts)).sqrt()


def _stacked(old: LinearOperator, new: LinearOperator) -> LinearOperator:
    if isinstance(old, Dense):
        return Dense(torch.cat([old.matrix, new.rows(0, new.shape[0]).to(old.matrix)]))
    heights = (old.shape[0], new.shape[0])
    return Stacked(lambda part: part, [(old,), (new,)], heights, old.shape[1], old.like)


def check_finite(what: str, operator: LinearOperator) -> None:
    """Raise where a stored matrix holds NaN, infinity, or numbers whose squares leave the range of float64."""
    values = _stored(operator)
    if values is None or not values.numel():
        return
    lowest, highest = torch.aminmax(values)
    largest = torch.maximum(-lowest, highest)
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
