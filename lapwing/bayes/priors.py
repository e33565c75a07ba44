"""Priors over weights: one precision, one per group, or one for features of unit curvature (the g-prior)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import GammaHyperprior
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.linalg.operators import Diagonal, LinearOperator, as_tensor

ROWS = 4000  # rows of a Jacobian beyond which its traces are sampled,
PROBES = 32  # by so many products with its transpose


@final
@dataclass(frozen=True, eq=False)
class DiagonalPrior:
    """N(0, A⁻¹) with A⁻¹ = diag(scale² / precision of its group): what every prior is on a given model.

    A precision of infinity is a pruned group: its weights are zero.
    """

    scale: Tensor  # (d,)
    group_of: Tensor  # (d,), long
    precision: Tensor  # (groups,)
    names: tuple[str, ...]

    @property
    def std(self) -> Tensor:  # (d,)
        """The prior standard deviation of every weight."""
        return self.scale * self.precision.rsqrt()[self.group_of]

    @property
    def sizes(self) -> Tensor:  # (groups,)
        """How many weights each group has."""
        return torch.bincount(self.group_of, minlength=len(self.precision)).double()

    def draw(self, noise: Noise, columns: int) -> Tensor:  # (d, columns)
        """Independent draws of the weights."""
        return self.std[:, None] * replace(noise, stream=PRIOR).rows(0, len(self.scale), columns)

    def log_det(self) -> float:
        """log det A, over the weights that are not pruned."""
        std = self.std[self.std > 0]
        return float(-2 * std.log().sum())

    def with_precision(self, precision: Any) -> DiagonalPrior:
        """The same prior at another precision: one for all groups, one per group in order, or a mapping by name."""
        return replace(self, precision=_precisions(precision, self.names))


class Prior(Protocol):
    """A choice of prior; `on` fits it to a model's weights."""

    @property
    def tuned(self) -> bool:
        """Whether the precision is to be found from data."""

    @property
    def hyperprior(self) -> GammaHyperprior | None:
        """A density over the log precision, used in tuning."""

    @property
    def group_count(self) -> int:
        """How many precisions it has."""

    def free(self, groups: int) -> Tensor:  # (groups,), bool
        """Which of its precisions are to be found from data."""

    def on(self, features: LinearOperator, row_weights: Tensor, blocks: Tensor | None = None) -> DiagonalPrior:
        """The prior over the columns of these features; `blocks` numbers the tensor that each belongs to."""


@final
@dataclass(frozen=True, eq=False)
class Isotropic:
    """One precision for every weight; tuned if it is not given.

    Parameters
    ----------
    precision : float, optional
        Precision of the weights. Tuned by default.
    hyperprior : GammaHyperprior, optional
        Hyperprior on a precision that is tuned.

    Examples
    --------
    >>> Isotropic(2.0).on(Diagonal(torch.ones(3).double()), torch.ones(3)).std
    tensor([0.7071, 0.7071, 0.7071], dtype=torch.float64)
    """

    precision: float | None = None
    hyperprior: GammaHyperprior | None = None

    def __post_init__(self) -> None:
        _check(self.precision)

    group_count = 1

    @property
    def tuned(self) -> bool:
        return self.precision is None

    def free(self, groups: int) -> Tensor:
        return torch.full((groups,), self.tuned)

    def on(self, features: LinearOperator, row_weights: Tensor, blocks: Tensor | None = None) -> DiagonalPrior:  # noqa: ARG002
        scale = torch.ones(features.shape[1], dtype=torch.float64)
        return _one_group(scale, self.precision)


@final
@dataclass(frozen=True, eq=False)
class GPrior:
    """One precision for features scaled to unit curvature: A = precision · diag(ΦᵀΦ), at unit noise.

    The choice does not depend on the units of a feature, nor on the scale of a network's tensor. The weights of one
    tensor of a network share the mean of their curvatures, and with `scale_per="weight"` have their own, held above
    `floor` times that mean, so that weights the data say nothing about keep a proper prior; a tensor without any
    curvature, or a feature that is always zero, gets the mean of all. The columns of a design matrix are tensors of
    their own.

    Parameters
    ----------
    precision : float, optional
        Precision of the weights. Tuned by default.
    hyperprior : GammaHyperprior, optional
        Hyperprior on a precision that is tuned.
    floor : float
        Smallest curvature that counts, relative to the mean of the tensor.
    scale_per : "tensor" or "weight"
        Whether the weights of a tensor share one scale.

    Raises
    ------
    ValueError
        If `scale_per` is not known, or a precision is not positive.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model, x = torch.nn.Linear(2, 1).double().eval(), torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 4.0]]).double()
    >>> lw.fit(model, (x, x[:, :1]), lw.Gaussian(0.5), prior=GPrior(1.0)).prior.precision
    tensor([1.], dtype=torch.float64)
    """

    precision: float | None = None
    hyperprior: GammaHyperprior | None = None
    floor: float = 1e-6
    scale_per: Literal["tensor", "weight"] = "tensor"

    def __post_init__(self) -> None:
        _check(self.precision)
        if self.scale_per not in ("tensor", "weight"):
            raise ValueError(f"scale_per is {self.scale_per!r}, expected 'tensor' or 'weight'")

    group_count = 1

    @property
    def tuned(self) -> bool:
        return self.precision is None

    def free(self, groups: int) -> Tensor:
        return torch.full((groups,), self.tuned)

    def on(self, features: LinearOperator, row_weights: Tensor, blocks: Tensor | None = None) -> DiagonalPrior:
        root = (row_weights / row_weights.mean().clamp_min(1e-300)).sqrt().to(features.like)
        curvature = self._curvature(Diagonal(root) @ features, blocks)
        if blocks is None:  # the columns of a design matrix have units of their own
            blocks = torch.arange(len(curvature))
        means = torch.zeros(int(blocks.max()) + 1, dtype=torch.float64).index_add(0, blocks, curvature)
        means = means / torch.bincount(blocks)
        means = torch.where(means > 0, means, curvature.mean() if bool((curvature > 0).any()) else 1.0)
        dead = torch.zeros_like(means).index_add(0, blocks, curvature) == 0
        if self.scale_per == "tensor":
            return _one_group(means.rsqrt()[blocks], self.precision)
        lowest = torch.where(dead, means, self.floor * means)[blocks]
        return _one_group(curvature.maximum(lowest).rsqrt(), self.precision)

    def _curvature(self, features: LinearOperator, blocks: Tensor | None) -> Tensor:  # (d,)
        """Squared columns; where only the means of tensors matter and rows are many, from random signs of the data.

        Those means are traces, which few probes know well; one product serves them all.
        """
        rows = features.shape[0]
        if self.scale_per == "weight" or blocks is None or not features.costs.has_row_vjp or rows <= ROWS:
            return features.column_squares().double()
        bits = torch.randint(2, (rows, PROBES), generator=torch.Generator().manual_seed(0))
        return (features.T @ (2 * bits - 1).to(features.like)).double().square().mean(1)


@final
@dataclass(frozen=True, eq=False)
class PerGroup:
    """One precision per group of weights, each tuned unless given.

    `groups` maps a name to the indices of its weights (a list, slice, boolean mask or index tensor); every
    weight belongs to exactly one group. For a network it can be "layer", or "normalised": one group for every matrix
    whose scale a normalisation layer removes, one for the rest. `precision` is a number for all or a mapping by name,
    in which None stands for one that is tuned.

    Parameters
    ----------
    groups : dict, "layer" or "normalised"
        Names and indices of the groups, or how a network's weights are grouped.
    precision : float or dict, optional
        One number for all groups, or one for each by name. None stands for one that is tuned.
    hyperprior : GammaHyperprior, optional
        Hyperprior on a precision that is tuned.

    Raises
    ------
    ValueError
        If the groups are not known, or a precision is not positive.

    Examples
    --------
    >>> import lapwing as lw
    >>> model = lw.LinearModel([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.1, 2.0, 2.1], lw.Gaussian(0.5))
    >>> prior = PerGroup({"first": [0], "second": [1]}, precision={"first": 2.0, "second": 0.5})
    >>> lw.infer(model, prior=prior).prior.precision
    tensor([2.0000, 0.5000], dtype=torch.float64)
    """

    groups: Mapping[str, Any] | Literal["layer", "normalised"]
    precision: float | Mapping[str, float | None] | None = None
    hyperprior: GammaHyperprior | None = None

    def __post_init__(self) -> None:
        if self.groups not in ("layer", "normalised") and not (isinstance(self.groups, Mapping) and self.groups):
            raise ValueError(
                f"groups must map names to indices of weights, or be 'layer' or 'normalised', got {self.groups!r}"
            )
        for value in self.precision.values() if isinstance(self.precision, Mapping) else [self.precision]:
            _check(value)

    @property
    def tuned(self) -> bool:
        return bool(self.free(self.group_count).any())

    @property
    def names(self) -> tuple[str, ...]:
        """The groups, where they are known by index."""
        if isinstance(self.groups, str):
            raise ValueError(f"groups={self.groups!r} is for networks: give a mapping from names to indices of weights")
        return tuple(self.groups)

    @property
    def group_count(self) -> int:
        return len(self.names)

    def free(self, groups: int) -> Tensor:
        _precisions(self._known(), self.names)  # refuses precisions of other groups
        if isinstance(self.precision, Mapping):
            return torch.tensor([self.precision[name] is None for name in self.names])
        return torch.full((groups,), self.precision is None)

    def on(self, features: LinearOperator, row_weights: Tensor, blocks: Tensor | None = None) -> DiagonalPrior:  # noqa: ARG002
        names = self.names
        assert isinstance(self.groups, Mapping)
        d = features.shape[1]
        group_of = torch.full((d,), -1)
        for number, indices in enumerate(self.groups.values()):
            chosen = torch.arange(d)[indices if isinstance(indices, slice) else torch.as_tensor(indices)]
            if bool((group_of[chosen] >= 0).any()):
                raise ValueError(f"some weights of group {list(self.groups)[number]!r} are in another group too")
            group_of[chosen] = number
        if bool((group_of < 0).any()):
            raise ValueError(
                f"{int((group_of < 0).sum())} of {d} weights are in no group, the first is number "
                f"{int((group_of < 0).nonzero()[0])}: add them to one"
            )
        precision = _precisions(self._known(), names)
        return DiagonalPrior(torch.ones(d, dtype=torch.float64), group_of, precision, names)

    def _known(self) -> Any:
        """What is given, with one for what is tuned."""
        if isinstance(self.precision, Mapping):
            return {name: 1.0 if value is None else value for name, value in self.precision.items()}
        return 1.0 if self.precision is None else self.precision


@final
@dataclass(frozen=True, eq=False)
class Alternatives:
    """Priors of which a method that can compare them takes the likeliest, and any other the first."""

    priors: tuple[Prior, ...]
    hyperprior = None
    tuned = True
    group_count = 1

    def free(self, groups: int) -> Tensor:
        return self.priors[0].free(groups)

    def on(self, features: LinearOperator, row_weights: Tensor, blocks: Tensor | None = None) -> DiagonalPrior:
        return self.priors[0].on(features, row_weights, blocks)


def options(prior: Prior) -> tuple[Prior, ...]:
    """The priors to compare: one, unless there are alternatives."""
    return prior.priors if isinstance(prior, Alternatives) else (prior,)


def per_weight(precision: Tensor, group_of: Tensor) -> Tensor:  # (groups,), (p,) -> () or (p,)
    """λ of every weight; one number where there is one group, which any structure can hold."""
    return precision[0] if len(precision) == 1 else precision[group_of]


def resolve(prior: Prior, groups: Callable[[str], Mapping[str, Any]] | None) -> Prior:
    """The prior with its groups by index, where they were given by a name that the model knows."""
    if isinstance(prior, PerGroup) and isinstance(prior.groups, str) and groups is not None:
        return replace(prior, groups=groups(prior.groups))
    return prior


def _one_group(scale: Tensor, precision: float | None) -> DiagonalPrior:
    group_of = torch.zeros(len(scale), dtype=torch.long)
    return DiagonalPrior(scale, group_of, _precisions(precision or 1.0, ("all",)), ("all",))


def _precisions(precision: Any, names: tuple[str, ...]) -> Tensor:
    if isinstance(precision, Mapping):
        if set(precision) != set(names):
            raise ValueError(f"precisions given for groups {sorted(precision)}, expected {sorted(names)}")
        precision = [float(precision[name]) for name in names]
    values = as_tensor(precision).double()
    if values.ndim == 0:
        return values.expand(len(names)).clone()
    if values.shape != (len(names),):
        raise ValueError(f"got {values.numel()} precisions for {len(names)} groups {list(names)}")
    return values


def _check(precision: Any) -> None:
    if precision is not None and not 0 < float(precision) < float("inf"):
        raise ValueError(
            f"a prior precision must be positive and finite, got {precision!r}; leave it out to have it tuned"
        )
