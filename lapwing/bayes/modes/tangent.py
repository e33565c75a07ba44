"""Laplace's approximation for likelihoods that are not Gaussian.

The curvature B is taken once, at the outputs of the network that was linearised. With S Sᵀ = B the covariance is then
that of a Gaussian model with features SᵀΦ and unit noise, so everything about it comes from there. The mode and the
evidence come from the true loss, which is convex in the weights of the linear model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.evidence import EvidenceParts, Moments, Precisions, grouped
from lapwing.bayes.likelihoods import Categorical, Curved, Gaussian
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.modes import newton, spans
from lapwing.bayes.modes.loss import Loss, PerDatum
from lapwing.bayes.modes.newton import Mode
from lapwing.bayes.modes.spans import Span
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics import Ritz
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense, Diagonal, Double, LinearOperator
from lapwing.linalg.progress import Report
from lapwing.linalg.solvers import Preconditioner
from lapwing.linalg.spectral import Spectrum, by_rows

LOST = (
    "the linear mode and the evidence at this precision need the training data, which are not in the file that this "
    "posterior was loaded from: predict with mean='network', or fit it again"
)
INTERPOLATES = 0.99  # mean confidence in the training targets at which they say nothing about the width of error bars


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
        kept = self.span is not None and bool((units > 0).all())
        return self.span.times(1 / units).orthonormal() if kept and self.span is not None else None


@final
@dataclass(frozen=True, eq=False)
class Tangent:
    """The loss of a linear model under its own likelihood, over weights in units of the prior's scale.

    Where the data are fewer than the weights, the loss is one over the coordinates of their row space.
    """

    model: LinearModel
    likelihood: Curved
    prior: DiagonalPrior  # its scale and groups; the precisions are given at every call
    design: LinearOperator  # (n · c, q), float64
    start: Tensor  # (q,), the network's own weights as coordinates
    row_space: Spectrum | None  # V with weights = scale · V · coordinates, or None where coordinates are weights
    lost: bool = False  # whether this is a place-holder: the loss is not in the file that the posterior came from

    def mode(
        self, precision: Tensor, near: AtMode | None = None, preconditioner: Preconditioner | None = None,
        rough: float = 0.0,
    ) -> AtMode:  # fmt: skip
        """The minimum of the loss at these precisions, started from that at others; `rough` nats will do."""
        if self.lost:
            raise ValueError(LOST)
        std = precision.rsqrt()
        units = std.expand(self.design.shape[1]) if self.row_space is not None else std[self.prior.group_of]
        loss, tol = self.loss(units), max(rough, self._tolerance())
        start = self.start if near is None else near.coordinates
        start = torch.where(units > 0, start / torch.where(units > 0, units, 1), 0)
        if self._by_products(loss):
            span = None if near is None else near.span_in(units)
            found, span = spans.mode(loss, start=start, span=span, tol=tol, rough=tol == rough)
            return AtMode(precision, units, units * found.weights, found, span.times(units))
        found = newton.mode(loss, start=start, preconditioner=preconditioner, tol=tol, max_steps=self._max_steps())
        return AtMode(precision, units, units * found.weights, found)

    def _by_products(self, loss: Loss) -> bool:
        """Whether a convex loss is known by costly products alone."""
        costly = not (newton.is_cheap(loss) or loss.features.squares_are_cheap)
        return costly and self.likelihood.curvature == "Hessian"

    def loss(self, units: Tensor) -> Loss:
        """The loss over coordinates in these units, standard deviations of the prior."""
        scaled = self.design @ Diagonal(units)
        return Loss(scaled, self.likelihood, self.model.targets, self.model.weights, self.model.offset)

    def _tolerance(self) -> float:
        """In nats: what products in the precision of the features can tell apart, and steps in reach of their number.

        Steps by an expected curvature close a share of the gap each, those by a Hessian nearly all of it.
        """
        least = 1e-14 if self.likelihood.curvature == "Hessian" else 1e-10
        return least if self.model.features.like.dtype == torch.float64 else 1e-3

    def _max_steps(self) -> int:
        return 100 if self.likelihood.curvature == "Hessian" else 400

    def weights(self, at: AtMode) -> Tensor:  # (d,)
        """The weights at a mode."""
        inside = at.coordinates if self.row_space is None else self.row_space.expand(at.coordinates[:, None])[:, 0]
        return self.prior.scale * inside

    def energies(self, at: AtMode) -> Tensor:  # (groups,)
        """‖θ⋆‖² of each group in units of the prior's scale."""
        squares, groups = at.coordinates.square(), len(self.prior.precision)
        return squares.sum().reshape(1) if self.row_space is not None else grouped(squares, self.prior.group_of, groups)

    @property
    def is_cheap(self) -> bool:
        """Whether a mode takes about a second or less."""
        return not self.lost and isinstance(self.design, Dense) and self.design.shape[1] <= newton.DENSE_SIZE

    def outputs_shape(self, shape: torch.Size, targets: Tensor) -> tuple[int, ...]:
        """The shape in which the likelihood takes outputs of this shape, the classes last."""
        if isinstance(self.likelihood, Categorical):
            return (-1, shape[-1])
        if targets.ndim == 1 and targets.numel() == shape.numel():  # one by one, as under a mask
            return (-1,)
        return tuple(shape) if len(shape) <= 2 else (len(targets), -1)

    def targets_shape(self, outputs: Tensor) -> torch.Size:
        """The shape of the targets of such outputs."""
        return self.likelihood.targets_shape(outputs.shape)

    def in_multiples(self, precision: Tensor) -> Tangent:
        """The same loss with precisions counted in multiples of these, all groups tied."""
        if self.lost:
            return self
        if self.row_space is not None:
            std = precision.rsqrt()
            return replace(self, design=Dense(self.design.dense() * std), start=self.start / std)
        one = torch.ones(1, dtype=torch.float64)
        tied = DiagonalPrior(self.prior.scale, torch.zeros_like(self.prior.group_of), one, ("all",))
        units = precision.rsqrt()[self.prior.group_of]
        start = torch.where(units > 0, self.start / torch.where(units > 0, units, 1), 0)
        return replace(self, prior=tied, design=self.design @ Diagonal(units), start=start)

    def moments(
        self, gaussian: Callable[[Precisions], Moments], report: Report | None = None
    ) -> Callable[[Precisions], Moments]:
        """What the evidence needs, its fit and penalty at the mode and the rest from the Gaussian model.

        The gradient in the precisions is as if the mode stood still, since there the loss is flat (recommendation 1 of
        Antorán et al. 2022).
        """
        near: AtMode | None = None
        number = 0

        def at_the_mode(at: Precisions) -> Moments:
            nonlocal near, number
            number += 1
            if report is not None:
                report(f"maximising the evidence: mode {number}, at precision {float(at.prior[0]):.2g}")
            try:
                near = self.mode(at.prior, near)
            except FloatingPointError as failure:
                if self.likelihood.curvature == "Hessian":
                    raise
                raise ValueError(
                    "under a wide prior this likelihood has no mode: data fitted perfectly, with a variance of "
                    "zero, have no bound on their density; pass validation=(x, y), or a prior with a precision"
                ) from failure
            fit = torch.tensor([-2 * near.mode.log_prob], dtype=torch.float64)
            return replace(gaussian(at), residual=fit, weights=self.energies(near))

        return at_the_mode

    def parts(self, at: AtMode, log_det: float) -> EvidenceParts:
        """The log evidence, log p(y | h(θ⋆)) − ½‖θ⋆‖² − ½ log det(I + A⁻¹M), by part."""
        return EvidenceParts(
            fit=at.mode.log_prob, penalty=-0.5 * float(at.mode.weights.square().sum()), occam=-0.5 * log_det,
            normaliser=0.0, hyperprior=0.0,
        )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class Known:
    """Preconditioner of the loss's Hessian by a Krylov space of it at other outputs: I − V diag(k / (1 + k)) Vᵀ.

    V is orthonormal to the precision of the features, and worse where k is small beside the largest: no more is taken
    out than leaves the rest positive.
    """

    ritz: Ritz
    values: Tensor  # (rank,), k

    def solve(self, x: Tensor) -> Tensor:
        """The approximate inverse times a block of columns."""
        inside = krylov.coordinates(self.ritz.space, x, self.ritz.operator)
        return x - self.ritz.expand(self._share[:, None] * inside)

    @property
    def _share(self) -> Tensor:  # (rank,)
        k, eps = self.values, torch.finfo(self.ritz.space.chain.ahead.dtype).eps
        safe = 1 - 4 * (eps * k.max() / k.clamp_min(1e-300)).sqrt() if len(k) else k
        return torch.minimum(k / (1 + k), safe.clamp_min(0))


def tangent(model: LinearModel, prior: DiagonalPrior) -> Tangent:
    """The loss of a model; `model` has stored features where they fit."""
    likelihood = model.likelihood
    assert not isinstance(likelihood, Gaussian)
    rows, d = model.features.shape
    scaled = model.features @ Diagonal(prior.scale.to(model.features.like))
    start = torch.zeros(d, dtype=torch.float64)
    if model.centre is not None:
        start = model.centre.weights.double() / prior.scale
    if rows < d and len(prior.precision) == 1 and isinstance(model.features, Dense):
        spectrum, reduced = by_rows(scaled)
        return Tangent(model, likelihood, prior, Dense(reduced), spectrum.coordinates(start[None])[0], spectrum)
    return Tangent(model, likelihood, prior, Double(scaled), start, None)


def surrogate(model: LinearModel, outputs: Tensor) -> LinearModel:
    """The Gaussian model of the same covariance: features SᵀΦ at unit noise, with B = S Sᵀ at these outputs."""
    of, like = model.likelihood, model.features.like
    assert not isinstance(of, Gaussian)
    root = PerDatum(
        of.shaped(outputs, model.targets).to(like),
        model.weights.to(like),
        model.targets,
        of.hessian_root_adjoint,
        of.hessian_root,
    )
    targets = torch.zeros_like(root.outputs, dtype=torch.float64)
    return LinearModel(
        root @ model.features, targets, Gaussian(1.0), features_at=model.features_at, centre=model.centre,
        blocks=model.blocks,
    )  # fmt: skip


def check_not_interpolating(model: LinearModel, outputs: Tensor) -> None:
    """Refuse training data that the network fits perfectly."""
    of = model.likelihood
    assert not isinstance(of, Gaussian)
    found = of.confidence(of.shaped(outputs.double(), model.targets), model.targets)
    each = None if found is None else found.reshape(len(model.targets), -1).mean(1)
    confidence = 0.0 if each is None else float((each * model.weights).sum() / model.weights.sum())
    if confidence >= INTERPOLATES:
        raise ValueError(
            f"this network fits its training data perfectly (mean confidence {confidence:.3f}), so they cannot tell "
            "how wide its error bars should be; pass validation=(x, y), a few hundred points suffice, or a prior with "
            "a precision"
        )
