"""The lower bound on the evidence as something to search over, in as few coordinates as there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.evidence import Moments
from lapwing.bayes.fits import bound
from lapwing.bayes.fits.bound import ALL, Ascent, ContrastRows, Data, Expected
from lapwing.bayes.fits.designs import Design, Given, Reduced, StoredDesign, per_contrast, reduced
from lapwing.bayes.fits.loss import PerOutput, stored_numbers
from lapwing.bayes.fits.newton import AS_NEEDED, NewtonSteps
from lapwing.bayes.fits.parts import Softening
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.likelihoods.expectation import Expectation
from lapwing.bayes.linear_model import LinearModel, Remainder
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import BlockDiagonal, Dense, LinearOperator
from lapwing.linalg.spectral import Spectrum

LARGEST_BYTES = 2**30  # of the columns in double precision
LARGEST_SIDE = 6000  # of a Gram matrix of rows that are chosen from
ENDS_SIZE = 2**26  # multiplications for a factorisation up to which a best precision is looked for from both ends
ROUGH, ROUGH_STEPS = 1e-2, 40  # nats and steps of a search that is compared on held-out data
FRESH = 1  # seed of the points that the error of the others is told by


def obstacle(model: LinearModel, groups: int) -> str | None:
    """Why the curvature cannot be averaged over the posterior here; None where it can."""
    rows, d = model.features.shape
    if not model.likelihood.log_concave:
        return "this density is not log-concave in its outputs, so that the best Gaussian is not the only one"
    if groups > 1 and model.point is not None:
        return "several precisions of a network are free"
    if model.features.costs.too_many_outputs or 8.0 * _numbers(model) > LARGEST_BYTES:
        return f"{rows:,} outputs × {d:,} weights do not fit into the memory for a matrix of them"
    if min(rows, d) > LARGEST_SIDE:
        return f"the smaller of {rows:,} outputs and {d:,} weights is above {LARGEST_SIDE:,}"
    return None


def _numbers(model: LinearModel) -> int:
    """Of a matrix that a search keeps."""
    if model.likelihood.exclusive_classes:
        return stored_numbers(model.features)
    rows, d = model.features.shape
    return rows * d


@final
@dataclass(frozen=True, eq=False)
class BoundSearch:
    """The bound of a linear model under its likelihood, over the coordinates of its columns."""

    model: LinearModel
    prior: DiagonalPrior  # its scale, groups, and the precisions of groups that are not free
    group: int  # whose precision is free
    columns: Reduced  # of the weights in that group
    given: Given  # and of the others
    rows: ContrastRows
    steps: NewtonSteps = AS_NEEDED

    @staticmethod
    def of(model: LinearModel, prior: DiagonalPrior, group: int, steps: NewtonSteps = AS_NEEDED) -> BoundSearch:
        """That of a model whose features are stored, or cheap to make."""
        own = prior.group_of == group
        units = prior.precision.rsqrt()[prior.group_of[~own]]
        columns, given = _shared(model, prior, own) or _apart(model, prior, own, units)
        return BoundSearch(
            model, prior, group, columns, given, contrast_rows(model, prior, group, columns, given), steps
        )

    @property
    def tol(self) -> float:
        """In nats: for several outputs no less than what their points can tell."""
        if self.steps.tol is not None:
            return self.steps.tol
        if self.rows.offset.shape[1] > 1:
            return 1e-3 * self._multiple
        return 1e-17 if self.is_cheap and self.model.point is None else 1e-6

    @property
    def _multiple(self) -> float:
        """How many times more data there are than a search begins with: what points cannot tell grows with them."""
        return max(1.0, len(self.rows.offset) / bound.FEW)

    @property
    def max_steps(self) -> int:
        """Of a search."""
        return self.steps.max_steps or bound.MAX_STEPS

    @property
    def without(self) -> ContrastRows:
        """What the likelihood sees at an infinite precision: as many free columns, all of them zero."""
        return self.rows.without(self.rows.free.shape[2])

    @property
    def is_cheap(self) -> bool:
        """Whether a maximum takes about a second or less."""
        n, k = self.rows.offset.shape
        return n * k * self.rows.size**2 <= ENDS_SIZE

    def maximum(self) -> Ascent:
        """The best Gaussian at the best precision."""
        return bound.maximum(self.rows, self.tol, self.max_steps, from_ends=self.is_cheap)

    def at(self, precision: float, near: Ascent | None) -> Ascent:
        """The best Gaussian at a precision, started from that at another."""
        if precision == inf:
            return bound.at_precision(self.without, 0.0, self.tol, self.max_steps)
        if near is None:
            return bound.at_precision(self.rows, log(precision), self.tol, self.max_steps)
        return bound.from_near(self.rows, near, log(precision), self.tol, self.max_steps)

    def bound_without(self) -> float:
        """The bound where the free weights are zero."""
        return bound.at_precision(self.rows.without(1), 0.0, self.tol, self.max_steps).at.bound

    def weights(self, at: Ascent) -> Tensor:  # (d,)
        """The mean of the weights."""
        own, coordinates = self.prior.group_of == self.group, at.at.mean
        free = self.rows.free.shape[2]
        std = self.prior.precision.rsqrt().clone()
        std[self.group] = torch.tensor(-0.5 * at.at.log_precision, dtype=torch.float64).exp()
        found = torch.empty_like(self.prior.scale)
        found[own] = self.columns.expand(coordinates[:free, None])[:, 0]
        found[~own] = self.given.expand(coordinates[free:])
        return found * self.prior.scale * std[self.prior.group_of]

    def curvature(self, at: Ascent) -> Tensor:  # (n, k, k)
        """B, without what the points leave below zero."""
        found = at.at.curvature * exp(at.at.log_precision)
        if found.shape[1] == 1:
            return found.clamp_min(0)
        values, vectors = torch.linalg.eigh(found)
        return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT

    def gaussian_surrogate(self, at: Ascent) -> GaussianSurrogate:
        """The Gaussian model with that curvature."""
        return surrogate(self.model, self.curvature(at))

    def root(self, at: Ascent) -> Tensor:  # (n, c, c), or (n · c, 1, 1) where each output stands alone
        """S with S Sᵀ = B, symmetric."""
        return root_of(self.model, self.curvature(at))

    def network_curvature(self) -> Tensor:  # (n, k, k)
        """B at the network's own outputs."""
        model = self.model
        of, flat = model.likelihood, model.outputs_at_point().double()
        outputs = of.reshape_outputs(flat, model.targets)
        if is_alone(model):
            return of.hessian_diagonal(outputs, model.weights, model.targets).reshape(-1, 1, 1)
        contrasts = of.contrasts(model.outputs)
        columns = contrasts.expand(len(outputs), *contrasts.shape)
        return contrasts.mT @ of.hessian_product(outputs, columns, model.weights, model.targets)

    def spectrum(self, curvature: Tensor) -> Spectrum | None:  # (n, k, k)
        """That of SᵀΦ in units of the prior's scale, S Sᵀ the curvature; None where it is to be found from these."""
        if len(self.prior.precision) > 1:
            return None
        values, vectors = torch.linalg.eigh(self.rows.free.gram(curvature))
        right = vectors if self.columns.basis is None else self.columns.basis @ vectors
        return Spectrum(Dense(right), values.clamp_min(0))

    def outputs_over_precision(
        self, features: LinearOperator, shape: tuple[int, ...], near: Ascent
    ) -> Callable[[float], tuple[Tensor, Tensor]] | None:
        """Mean (n, c) and covariance (n, c, c) of outputs of other features, as a function of the precision.

        Every precision takes a search of its own, from the nearest that was asked for before, and no decomposition.
        None where some weights have another precision.
        """
        if len(self.prior.precision) > 1:
            return None
        c = shape[-1] if len(shape) > 1 else 1
        rows = features.rows(0, features.shape[0]).double() * self.prior.scale
        inside = self.columns.coordinates(rows)
        prior = rows.reshape(-1, c, rows.shape[1])
        within = inside.reshape(-1, c, inside.shape[1])
        outside = prior @ prior.mT - within @ within.mT

        known, rough = [near], ROUGH * self._multiple

        def at(precision: float) -> tuple[Tensor, Tensor]:
            nearest = min(known, key=lambda one: abs(one.at.log_precision - log(precision)))
            known.append(bound.from_near(self.rows, nearest, log(precision), rough, ROUGH_STEPS))
            found = known[-1].at
            solved = torch.linalg.solve_triangular(found.factor, inside.mT, upper=False)
            parts = solved.reshape(len(solved), -1, c)
            covariance = (torch.einsum("qnk,qnl->nkl", parts, parts) + outside) / precision
            return (inside @ found.mean).reshape(-1, c) / precision**0.5, covariance

        return at

    def quadrature_error(self, at: Ascent) -> float:
        """How far the bound moves where it is averaged over other points: in nats."""
        found, rows = at.at, self.rows
        std = exp(-0.5 * found.log_precision)
        again = averages_of(self.model, FRESH)(rows.offset + std * found.outputs, std**2 * found.variances, ALL)
        there = float(rows.weights @ again.log_density) + rows.added(found.mean, found.log_precision)
        return abs(there - found.averages.log_density)

    def moments(self, at: Ascent) -> Moments:
        """What the evidence takes: −2 E log p − γ stands for a misfit, so that the bound is what comes out."""
        found, free = at.at, self.rows.free.shape[2]
        groups = len(self.prior.precision)
        inverse = torch.linalg.solve_triangular(found.factor, torch.eye(len(found.factor)).double(), upper=False)
        determined = 1 - inverse.square().sum(0)
        energies = found.mean.square()

        def by_group(values: Tensor) -> Tensor:
            total = torch.zeros(groups, dtype=torch.float64)
            total[self.group] = values[:free].sum()
            return total.index_add(0, self.given.groups, values[free:])

        precision = self.prior.precision.clone()
        precision[self.group] = torch.tensor(found.log_precision, dtype=torch.float64).exp()
        log_det = 2 * found.factor.diagonal().log().sum()
        residual = torch.tensor([-2 * found.averages.log_density - found.determined], dtype=torch.float64)
        return Moments(
            residual, by_group(energies) / precision, by_group(determined), determined.sum().reshape(1), log_det
        )


def contrast_rows(model: LinearModel, prior: DiagonalPrior, group: int, columns: Reduced, given: Given) -> ContrastRows:
    """Rows of contrasts with what the likelihood says of them."""
    n, k, _ = columns.design.shape
    rest = None if model.rest is None else _rest_seen(model, prior, prior.group_of == group, columns, given)
    return ContrastRows(
        columns.design, given.design, columns.left_out, offset_of(model, (n, k)), weights_of(model), averages_of(model),
        rest=rest,
    )  # fmt: skip


def _rest_seen(model: LinearModel, prior: DiagonalPrior, own: Tensor, columns: Reduced, given: Given) -> Remainder:
    """What other data add, as far as labels of these can say it: of a curvature elsewhere nothing is known."""
    assert model.rest is not None
    scaled = prior.scale * model.rest.pull
    fixed = scaled[~own] * prior.precision.rsqrt()[prior.group_of[~own]]
    pull = torch.cat([columns.coordinates(scaled[own][None])[0], given.coordinates(fixed)])
    whole = columns.design if not given.design.shape[2] else columns.design.beside(given.design, 1.0)
    return replace(model.rest, pull=_softening(model, whole).within_reach(pull))


def _softening(model: LinearModel, design: Design) -> Softening:
    """Changes of a model's labels, from those to what the network says."""
    of, targets = model.likelihood, model.targets
    outputs = of.reshape_outputs(model.outputs_at_point().double(), targets)
    slopes = of.gradient(outputs, targets, None)
    if is_alone(model):
        flat, shape = targets.reshape(-1), slopes.reshape(-1).shape
        return Softening(
            design,
            weights_of(model),
            -slopes.reshape(-1, 1),
            lambda changes: of.softened(changes.reshape(shape), flat)[:, None],
        )
    contrasts = of.contrasts(model.outputs)
    return Softening(
        design, weights_of(model), -slopes @ contrasts,
        lambda changes: of.softened(changes @ contrasts.mT, targets) @ contrasts,
    )  # fmt: skip


def _apart(model: LinearModel, prior: DiagonalPrior, own: Tensor, units: Tensor) -> tuple[Reduced, Given]:
    """Columns of the free weights in few coordinates, and those of the others."""
    scaled = contrasted(model, prior.scale)
    n, k, _ = scaled.shape
    free = scaled if bool(own.all()) else scaled[:, :, own]
    given = Given(StoredDesign(scaled[:, :, ~own] * units), prior.group_of[~own])
    return reduced(free.reshape(n * k, -1), k), given


def _shared(model: LinearModel, prior: DiagonalPrior, own: Tensor) -> tuple[Reduced, Given] | None:
    """The same where all outputs share their features, and a feature's weights have one prior; None where not."""
    features = model.features
    if not isinstance(features, PerOutput) or not model.likelihood.exclusive_classes:
        return None
    c = features.outputs
    scale, group_of, chosen = (features.by_feature(part).reshape(-1, c) for part in (prior.scale, prior.group_of, own))
    if not bool(((scale == scale[:, :1]) & (group_of == group_of[:, :1])).all()):
        return None
    contrasts, chosen = model.likelihood.contrasts(c), chosen[:, 0]
    inner = features.inner.rows(0, features.inner.shape[0]).double() * scale[:, 0]
    free, basis = per_contrast(inner[:, chosen], contrasts)
    groups = group_of[~chosen, 0]
    fixed, fixed_basis = per_contrast(inner[:, ~chosen] * prior.precision.rsqrt()[groups], contrasts)
    column = features.by_feature(torch.arange(len(own))).reshape(-1, c)
    return (
        Reduced(free, basis[column[chosen].reshape(-1).argsort()], None),
        Given(fixed, groups.repeat_interleave(c - 1), fixed_basis[column[~chosen].reshape(-1).argsort()]),
    )


def contrasted(model: LinearModel, scale: Tensor) -> Tensor:  # (n, k, d)
    """Features in units of the prior's scale, as contrasts of the outputs of each datum, or of each by itself."""
    rows = stored_features(model).dense().double() * scale
    if is_alone(model):
        return rows[:, None]
    c = model.outputs
    contrasts = model.likelihood.contrasts(c)
    if contrasts.shape[1] == c:
        return rows.reshape(-1, c, rows.shape[1])
    return contrasts.mT @ rows.reshape(-1, c, rows.shape[1])


def surrogate(model: LinearModel, curvature: Tensor) -> GaussianSurrogate:  # (n, k, k)
    """The Gaussian model with a curvature of the contrasts: rows SᵀΦ, of every output of a datum."""
    features = model.features
    return GaussianSurrogate.without_targets(BlockDiagonal(root_of(model, curvature).to(features.like)) @ features)


def root_of(model: LinearModel, curvature: Tensor) -> Tensor:  # (n, k, k) -> (n, c, c)
    """S with S Sᵀ = B, symmetric, in outputs."""
    values, vectors = torch.linalg.eigh(curvature)
    return in_outputs(model, (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT)


def in_outputs(model: LinearModel, blocks: Tensor) -> Tensor:  # (n, k, k) -> (n, c, c)
    """Matrices of the contrasts as matrices of the outputs."""
    if is_alone(model):
        return blocks
    contrasts = model.likelihood.contrasts(model.outputs)
    return contrasts @ blocks @ contrasts.mT


def is_alone(model: LinearModel) -> bool:
    """Whether each target has one output of its own."""
    return model.targets.numel() == model.features.shape[0]


def stored_features(model: LinearModel) -> LinearOperator:
    """The features as a matrix."""
    features = model.features
    return features if isinstance(features, Dense) else Dense(features.rows(0, features.shape[0]))


def offset_of(model: LinearModel, shape: tuple[int, int]) -> Tensor:  # (n, k)
    """Outputs at weights of zero, in contrasts."""
    if model.offset is None:
        return torch.zeros(shape, dtype=torch.float64)
    if is_alone(model):
        return model.offset.double()[:, None]
    return model.offset.double().reshape(shape[0], -1) @ model.likelihood.contrasts(model.outputs)


def weights_of(model: LinearModel) -> Tensor:  # (n,)
    """How often each row of contrasts counts."""
    return model.row_counts if is_alone(model) else model.weights.reshape(-1)


def averages_of(model: LinearModel, seed: int = 0) -> Expected:
    """E log p and its derivatives, of contrasts (n, k) with covariances (n, k, k) of some data."""
    of, targets = model.likelihood, model.targets
    if is_alone(model):
        flat = targets.reshape(-1)

        def alone(mean: Tensor, covariance: Tensor, data: Data) -> Expectation:
            found = of.expected(mean[:, 0], covariance[:, 0, 0], flat[data])
            return Expectation(found.log_density, found.gradient[:, None], found.curvature[:, None, None])

        return alone
    contrasts = of.contrasts(model.outputs)

    def together(mean: Tensor, covariance: Tensor, data: Data) -> Expectation:
        found = of.expected(mean @ contrasts.mT, contrasts @ covariance @ contrasts.mT, targets[data], seed)
        curvature = contrasts.mT @ found.curvature @ contrasts
        return Expectation(found.log_density, found.gradient @ contrasts, curvature, found.standard_error)

    return together
