"""Laplace's approximation for likelihoods whose curvature depends on the outputs.

With S Sᵀ = B the covariance is that of a Gaussian model with features SᵀΦ and unit noise, so everything about it comes
from there. The mean is the mode of the true loss, which is convex in the weights of the linear model. B is taken at the
outputs of the network that was linearised, once, or where the model is linear itself at its mode, which follows the
precisions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.evidence import Moments, NoMode, Precisions, Problem, grouped
from lapwing.bayes.fits import newton, spans
from lapwing.bayes.fits.interface import Fit, Packed, Preconditioning, carried, in_units_of, nothing_known
from lapwing.bayes.fits.loss import Loss
from lapwing.bayes.fits.newton import AS_NEEDED, Mode, NewtonSteps
from lapwing.bayes.fits.spans import Span
from lapwing.bayes.likelihoods import GaussianSurrogate, Likelihood
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import Dense, Diagonal, Double, LinearOperator
from lapwing.linalg.solvers import Preconditioner
from lapwing.linalg.spectral import Spectrum, by_rows
from lapwing.runtime.progress import Report

INTERPOLATES = 0.99  # mean confidence in the training targets at which they say nothing about the width of error bars
LARGEST = 2 * 2**30  # bytes of a design beyond which it stays out of a file
LARGEST_MADE = 2**28  # bytes of a design that is not stored yet, so that it would have to be made for the file
MODE_POINTS = 13  # of a scan over precisions, where each takes a mode


@final
@dataclass(frozen=True, eq=False)
class AtMode:
    """The mode of the linear model at one setting of the precisions."""

    precision: Tensor  # (groups,)
    units: Tensor  # (q,), standard deviations of the coordinates
    coordinates: Tensor  # (q,), weights over the prior's scale, or those of their row space
    mode: Mode
    span: Span | None = None  # of coordinates, in which it was found by products alone

    def span_in(self, units: Tensor) -> Span | None:
        """The span at other units, orthonormal there; None where a direction has no length in them."""
        if self.span is None or not bool((units > 0).all()):
            return None
        return self.span.times(1 / units).orthonormal()


@final
@dataclass(frozen=True, eq=False)
class ModeSearch:
    """The loss of a linear model under its likelihood, over weights in units of the prior's scale, and its minimum.

    Where the data are fewer than the weights, the loss is one over the coordinates of their row space.
    """

    model: LinearModel
    prior: DiagonalPrior  # its scale and groups; the precisions are given at every call
    design: LinearOperator  # (n · c, q), float64
    start: Tensor  # (q,), the network's own weights as coordinates
    row_space: Spectrum | None  # V with weights = scale · V · coordinates, or None where coordinates are weights
    newton: NewtonSteps = AS_NEEDED

    @staticmethod
    def of(model: LinearModel, prior: DiagonalPrior, steps: NewtonSteps = AS_NEEDED) -> ModeSearch:
        """That of a model, whose features are stored where they fit."""
        rows, d = model.features.shape
        scaled = model.features @ Diagonal(prior.scale.to(model.features.like))
        start = torch.zeros(d, dtype=torch.float64)
        if model.point is not None:
            start = model.point.weights.double() / prior.scale
        if rows < d and len(prior.precision) == 1 and isinstance(model.features, Dense):
            spectrum, reduced = by_rows(scaled)
            return ModeSearch(model, prior, Dense(reduced), spectrum.coordinates(start[None])[0], spectrum, steps)
        return ModeSearch(model, prior, Double(scaled), start, None, steps)

    @property
    def likelihood(self) -> Likelihood:
        """That of the model."""
        return self.model.likelihood

    @property
    def is_cheap(self) -> bool:
        """Whether a mode takes about a second or less."""
        return isinstance(self.design, Dense) and self.design.shape[1] <= newton.DENSE_SIZE

    def mode(
        self, precision: Tensor, near: AtMode | None = None, preconditioner: Preconditioner | None = None,
        rough: float = 0.0,
    ) -> AtMode:  # fmt: skip
        """The minimum of the loss at these precisions, started from that at others; `rough` nats will do."""
        units = self._units(precision)
        loss = self.loss(units)
        tol = max(rough, self._tolerance())
        start = _over(self.start if near is None else near.coordinates, units)
        if self._by_products(loss):
            span = None if near is None else near.span_in(units)
            found, span = spans.mode(loss, start=start, span=span, tol=tol, rough=tol == rough)
            return AtMode(precision, units, units * found.weights, found, span.times(units))
        found = newton.mode(loss, start=start, preconditioner=preconditioner, tol=tol, max_steps=self._max_steps())
        return AtMode(precision, units, units * found.weights, found)

    def loss(self, units: Tensor) -> Loss:
        """The loss over coordinates in these units, standard deviations of the prior."""
        model = self.model
        return Loss(self.design @ Diagonal(units), model.likelihood, model.targets, model.weights, model.offset)

    def weights(self, at: AtMode) -> Tensor:  # (d,)
        """The weights at a mode."""
        if self.row_space is None:
            return self.prior.scale * at.coordinates
        return self.prior.scale * self.row_space.expand(at.coordinates[:, None])[:, 0]

    def energies(self, at: AtMode) -> Tensor:  # (groups,)
        """‖θ⋆‖² of each group in units of the prior's scale."""
        return self._by_group(at.coordinates.square())

    def fitted(self, at: AtMode | None) -> tuple[Tensor, Tensor]:  # (1,), (groups,)
        """−2 log p and the energies at a mode; where there is none those of the network itself, NaN without one."""
        if at is None:
            return self._of_network()
        return torch.tensor([-2 * at.mode.log_prob], dtype=torch.float64), self.energies(at)

    def _of_network(self) -> tuple[Tensor, Tensor]:  # (1,), (groups,)
        point, model = self.model.point, self.model
        if point is None:
            nothing = torch.full_like(self.prior.precision, torch.nan)
            return nothing[:1], nothing
        outputs = model.likelihood.reshape_outputs(model.outputs_at_point(), model.targets)
        log_prob = model.likelihood.log_prob(outputs, model.targets, model.weights)
        own = (point.weights.double() / self.prior.scale).square()
        return -2 * log_prob.double().reshape(1), grouped(own, self.prior.group_of, len(self.prior.precision))

    def factor(self, at: AtMode) -> Tensor:  # (q, q)
        """The Cholesky factor of the Hessian of the loss at its mode."""
        return self.loss(at.units).factor(at.mode.outputs) if at.mode.factor is None else at.mode.factor

    def curvature_moments(self, at: AtMode | None) -> tuple[Tensor, Tensor]:  # (groups,), ()
        """The effective number of weights of each group and log det(I + A⁻¹M), with the curvature at a mode."""
        if at is None:
            nothing = torch.full_like(self.prior.precision, torch.nan)
            return nothing, nothing[0]
        factor = self.factor(at)
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)
        determined = 1 - inverse.square().sum(0)
        return self._by_group(determined), 2 * factor.diagonal().log().sum()

    def _by_group(self, values: Tensor) -> Tensor:  # (q,) -> (groups,)
        if self.row_space is not None:
            return values.sum().reshape(1)
        return grouped(values, self.prior.group_of, len(self.prior.precision))

    def _units(self, precision: Tensor) -> Tensor:  # (q,)
        std = precision.rsqrt()
        return std.expand(self.design.shape[1]) if self.row_space is not None else std[self.prior.group_of]

    def _by_products(self, loss: Loss) -> bool:
        """Whether a convex loss is known by costly products alone."""
        costly = not (newton.is_cheap(loss) or loss.features.costs.squares_are_cheap)
        return costly and self.likelihood.log_concave

    def _tolerance(self) -> float:
        """In nats: what products in the precision of the features can tell apart, and steps in reach of their number.

        Steps by an expected curvature close a share of the gap each, those by a Hessian nearly all of it.
        """
        if self.newton.tol is not None:
            return self.newton.tol
        if self.model.features.like.dtype != torch.float64:
            return 1e-3
        return 1e-14 if self.likelihood.log_concave else 1e-10

    def _max_steps(self) -> int:
        if self.newton.max_steps is not None:
            return self.newton.max_steps
        return 100 if self.likelihood.log_concave else 400

    def pack(self) -> dict[str, Tensor]:
        """The loss as tensors; none where they are too large."""
        stored = isinstance(self.design, Dense) or isinstance(self.model.features, Dense)
        if 8 * self.design.shape[0] * self.design.shape[1] > (LARGEST if stored else LARGEST_MADE):
            return {}
        model = self.model
        found = {"design": self.design.dense(), "start": self.start, "targets": model.targets, "counts": model.weights}
        if model.offset is not None:
            found["offset"] = model.offset
        if self.row_space is not None:
            found |= {"vectors": self.row_space.vectors, "values": self.row_space.values}
        return found

    @staticmethod
    def unpack(tensors: dict[str, Tensor], context: Any) -> ModeSearch:
        """The loss of a file; its model has features over the weights, by products."""
        design, prior = Dense(tensors["design"]), context.prior
        space, rows = None, design @ Diagonal(1 / prior.scale) if "vectors" not in tensors else design
        if "vectors" in tensors:
            space = Spectrum(Dense(tensors["vectors"]), tensors["values"])
            rows = design @ (Dense(tensors["vectors"]).T @ Diagonal(1 / prior.scale))
        model = LinearModel(
            rows, tensors["targets"], context.likelihood, weights=tensors["counts"], offset=tensors.get("offset"),
            point=context.point,
        )  # fmt: skip
        return ModeSearch(model, prior, design, tensors["start"], space)


class _Modes:
    """Modes one after another, each started from the last: the state of one search for precisions."""

    def __init__(self, search: ModeSearch, near: AtMode | None, report: Report | None) -> None:
        self.search, self.near, self.report, self.number = search, near, report, 0

    def at(self, precision: Tensor) -> AtMode:
        """The mode at these precisions."""
        self.number += 1
        if self.report is not None:
            self.report(f"maximising the evidence: mode {self.number}, at precision {float(precision[0]):.2g}")
        try:
            self.near = self.search.mode(precision, self.near)
        except FloatingPointError as failure:
            if self.search.likelihood.log_concave:
                raise
            raise NoMode(
                "under a wide prior this likelihood has no mode: data fitted perfectly, with a variance of "
                "zero, have no bound on their density; pass validation=(x, y), or a prior with a precision"
            ) from failure
        return self.near


class Laplace(Fit):
    """The mean at the mode of the linear model's loss, which is looked for when it is first asked for."""

    search: ModeSearch
    prior: DiagonalPrior
    near: AtMode | None  # where the search starts
    preconditioner: Preconditioning

    @cached_property
    def mode(self) -> AtMode | None:
        """The mode, or None where a loss that is not convex has none to be found: the network's weights serve then."""
        known = self.preconditioner() if self.search.row_space is None else None  # it knows weights, not coordinates
        try:
            return self.search.mode(self.prior.precision, self.near, known)
        except FloatingPointError:
            if self.search.likelihood.log_concave:
                raise
            return None

    @property
    def known_mode(self) -> AtMode | None:
        """The mode where it was found, or the one that its search would start from."""
        return self.__dict__.get("mode") or self.near

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        point = self.search.model.point
        if self.mode is not None:
            return self.search.weights(self.mode)
        return torch.full_like(self.prior.scale, torch.nan) if point is None else point.weights.double()

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        if torch.equal(at.prior, self.prior.precision):
            return self.search.fitted(self.mode)
        return self.search.fitted(self.search.mode(at.prior, self.known_mode))

    def _moved(self, model: LinearModel) -> ModeSearch:
        """The search on other data, which starts from the mean here."""
        search = ModeSearch.of(model, self.prior, self.search.newton)
        start = self.mean(lambda: self.prior.scale) / self.prior.scale
        inside = start if search.row_space is None else search.row_space.coordinates(start[None])[0]
        return replace(search, start=inside)

    @abstractmethod
    def on(self, model: LinearModel) -> Laplace:
        """The fit of other data under the same prior."""

    def on_more(self, more: LinearModel, whole: LinearModel | None) -> Laplace:  # noqa: ARG002
        old = self.search.model
        if more.point is None and not isinstance(old.features, Dense):  # products of a file's matrices
            old = replace(old, features=Dense(old.features.rows(0, old.features.shape[0])))
        return self.on(replace(old.joined(more), point=more.point))

    def on_fewer(self, places: Tensor, left: LinearModel | None) -> Laplace:
        model = self.search.model.without(places)
        return self.on(model if left is None else replace(model, point=left.point))

    @property
    def is_cheap(self) -> bool:
        return self.search.is_cheap

    def facts(self) -> dict[str, Any]:
        found = self.__dict__.get("mode")
        if found is None:
            return {}
        return {"mode_gap": found.mode.gap, "mode_steps": found.mode.steps, "mode_passes": found.mode.passes}

    def pack(self) -> Packed:
        tensors = self.search.pack()
        if not tensors:
            return {"kind": "lost", "weights": len(self.prior.scale)}, {}
        return {"kind": self.kind}, tensors


@final
@dataclass(frozen=True, eq=False)
class LaplaceAtPoint(Laplace):
    """The curvature at fixed outputs, those of the network, and the mean at the mode of the linear model."""

    search: ModeSearch
    rows: GaussianSurrogate | None  # None in a file
    prior: DiagonalPrior
    near: AtMode | None = None
    preconditioner: Preconditioning = field(default=nothing_known)
    kind = "loss"

    @property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        return carried(self.rows)

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor,  # noqa: ARG002
        preconditioner: Preconditioning = nothing_known,
    ) -> LaplaceAtPoint:  # fmt: skip
        if torch.equal(prior.precision, self.prior.precision) and "mode" in self.__dict__:
            return self
        return replace(self, prior=prior, near=self.known_mode, preconditioner=preconditioner)

    def on(self, model: LinearModel) -> LaplaceAtPoint:
        """With the curvature at the network's outputs."""
        return LaplaceAtPoint(self._moved(model), model.gaussian_surrogate(model.outputs_at_point()), self.prior)

    def at_its_mean(self) -> LaplaceAtMode:
        """The same with the curvature at the mode."""
        fit = LaplaceAtMode(self.search, self.prior, self.near, self.preconditioner)
        fit.__dict__["mode"] = self.mode
        return fit

    def problem(self, curvature: Problem, report: Report | None = None) -> Problem:
        """Its fit and penalty at the mode and the rest from the Gaussian model.

        The gradient in the precisions is as if the mode stood still, since there the loss is flat (recommendation 1 of
        Antorán et al. 2022).
        """
        modes = _Modes(self.search, self.known_mode, report)

        def moments(at: Precisions) -> Moments:
            here = torch.equal(at.prior, self.prior.precision)
            residual, energies = self.search.fitted(self.mode if here else modes.at(at.prior))
            return replace(curvature.moments(at), residual=residual, weights=energies)

        bound = _bound(curvature) if self.search.likelihood.is_discrete else None
        at_point = None if self.search.likelihood.log_concave else self._at_point(curvature)
        return replace(
            curvature, moments=moments, one_by_one=True, points=MODE_POINTS, bound=bound, at_point=at_point
        )  # fmt: skip

    def _at_point(self, curvature: Problem) -> Callable[[Precisions], Moments]:
        """Fit and penalty of the network itself: its weights are no mode of the linear model."""
        residual, energies = self.search.fitted(None)

        def moments(at: Precisions) -> Moments:
            return replace(curvature.moments(at), residual=residual, weights=energies)

        return moments

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:  # noqa: ARG002
        modes = _Modes(self.search, self.known_mode, None)

        def moments(at: Precisions) -> Moments:
            residual, energies = self.search.fitted(modes.at(prior.precision * at.prior))
            return replace(curvature.moments(at), residual=residual, weights=in_units_of(prior, energies))

        return replace(curvature, moments=moments, one_by_one=True, points=MODE_POINTS)

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> LaplaceAtPoint:
        """The fit of a file."""
        del plain
        return LaplaceAtPoint(ModeSearch.unpack(tensors, context), None, context.prior)


def dense_curvature(fit: LaplaceAtMode) -> tuple[Tensor, Tensor]:  # (groups,), ()
    """The effective number of weights of each group and log det(I + A⁻¹M), from the Hessian's Cholesky factor."""
    return fit.search.curvature_moments(fit.mode)


@final
@dataclass(frozen=True, eq=False)
class LaplaceAtMode(Laplace):
    """A model that is linear itself: mean and curvature at the mode, which the precisions move together."""

    search: ModeSearch
    prior: DiagonalPrior
    near: AtMode | None = None
    preconditioner: Preconditioning = field(default=nothing_known)
    curvature: Callable[[LaplaceAtMode], tuple[Tensor, Tensor]] = field(default=dense_curvature, repr=False)
    kind = "mode"
    moves = True

    @cached_property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        """With the curvature at the mode."""
        if self.mode is None:
            raise FloatingPointError("this likelihood has no mode under so wide a prior: use a larger prior precision")
        return self.search.model.gaussian_surrogate(self.mode.mode.outputs.reshape(-1))

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor,  # noqa: ARG002
        preconditioner: Preconditioning = nothing_known,
    ) -> LaplaceAtMode:  # fmt: skip
        if torch.equal(prior.precision, self.prior.precision):
            return self
        return replace(self, prior=prior, near=self.known_mode, preconditioner=preconditioner)

    def on(self, model: LinearModel) -> LaplaceAtMode:
        return LaplaceAtMode(self._moved(model), self.prior)

    def problem(self, curvature: Problem, report: Report | None = None) -> Problem:
        """The evidence with the curvature at the mode of every setting; that of another one says nothing of it."""
        modes = _Modes(self.search, self.known_mode, report)

        def moments(at: Precisions) -> Moments:
            here = torch.equal(at.prior, self.prior.precision)
            return self._moments(at.prior, self.mode if here else modes.at(at.prior))

        return replace(
            curvature, moments=moments, one_by_one=True, points=MODE_POINTS, lowest_ratio=0.0, has_gradient=False
        )

    def _moments(self, precision: Tensor, found: AtMode | None) -> Moments:
        there = replace(self, prior=replace(self.prior, precision=precision))
        there.__dict__["mode"] = found
        residual, energies = self.search.fitted(found)
        determined, log_det = self.curvature(there)
        return Moments(residual, energies, determined, determined.sum().reshape(1), log_det)

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:  # noqa: ARG002
        modes = _Modes(self.search, self.known_mode, None)

        def moments(at: Precisions) -> Moments:
            precision = prior.precision * at.prior
            found = self._moments(precision, modes.at(precision))
            return replace(found, weights=in_units_of(prior, found.weights), determined=found.leverage)

        return replace(curvature, moments=moments, one_by_one=True, points=MODE_POINTS, lowest_ratio=0.0)

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> LaplaceAtMode:
        """The fit of a file."""
        del plain
        return LaplaceAtMode(ModeSearch.unpack(tensors, context), context.prior)


def interpolation(model: LinearModel) -> float | None:
    """The mean confidence of a network in its training labels, where it fits them perfectly."""
    if model.point is None:
        return None
    of = model.likelihood
    found = of.confidence(of.reshape_outputs(model.outputs_at_point(), model.targets), model.targets)
    if found is None:
        return None
    each = found.reshape(len(model.targets), -1).mean(1)
    confidence = float((each * model.weights).sum() / model.weights.sum())
    return confidence if confidence >= INTERPOLATES else None


def _over(coordinates: Tensor, units: Tensor) -> Tensor:
    """Coordinates in units that are zero where weights are pruned."""
    return torch.where(units > 0, coordinates / torch.where(units > 0, units, 1), 0)


def _bound(curvature: Problem) -> Problem:
    """The evidence of data that weights of zero fit perfectly: no discrete likelihood has more."""

    def moments(at: Precisions) -> Moments:
        found = curvature.moments(at)
        return replace(found, residual=torch.zeros_like(found.residual), weights=torch.zeros_like(found.weights))

    return replace(curvature, moments=moments, one_by_one=True)
