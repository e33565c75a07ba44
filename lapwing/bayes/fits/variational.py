"""Gaussian variational inference in the linear model: mean and curvature averaged over the posterior itself.

At a confident output the curvature of a label is zero, so that under Laplace's approximation data that a network has
memorised say nothing. Averaged over the posterior it is not. Mean and curvature are those at the maximum of a lower
bound on the evidence, and follow the precision, which has its place in the same search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, log
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.evidence import Moments, Optimum, Precisions, Problem
from lapwing.bayes.fits import bound
from lapwing.bayes.fits.bound import Ascent
from lapwing.bayes.fits.bound_search import BoundSearch, contrast_rows, is_alone, stored_features
from lapwing.bayes.fits.designs import Given, Reduced, StoredDesign
from lapwing.bayes.fits.interface import Fit, NetworkWeights, Packed, Preconditioning, in_units_of, nothing_known
from lapwing.bayes.fits.newton import AS_NEEDED, NewtonSteps
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel, Remainder
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.linalg.spectral import Spectrum
from lapwing.runtime.progress import Report

POINTS = 9  # of a curve over the precision


@final
@dataclass(frozen=True, eq=False)
class Variational(Fit):
    """Mean and curvature at the maximum of the bound, which the precision moves together."""

    search: BoundSearch
    prior: DiagonalPrior
    near: Ascent | None = None  # where the search starts
    known: Ascent | None = field(default=None, repr=False)  # the maximum, where it is known already
    several: bool = False  # whether more than one precision is free
    kind = "bound"
    moves = True
    is_bound = True

    @staticmethod
    def of(model: LinearModel, prior: DiagonalPrior, free: Tensor, steps: NewtonSteps = AS_NEEDED) -> Variational:
        """That of a model; the search has one precision of its own, of the largest group that is free, or of all."""
        _check_curvature(model)
        group = int((prior.sizes * (free if bool(free.any()) else torch.ones_like(free))).argmax())
        return Variational(BoundSearch.of(model, prior, group, steps), prior, several=int(free.sum()) > 1)

    @cached_property
    def ascent(self) -> Ascent:
        """The maximum, looked for when it is first asked for."""
        if self.known is not None:
            return self.known
        return self.search.at(float(self.prior.precision[self.search.group]), self.near)

    @cached_property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        """With the curvature averaged over the posterior."""
        return self.search.gaussian_surrogate(self.ascent)

    def averaged_root(self) -> Tensor:
        root = self.search.root(self.ascent)
        if not is_alone(self.search.model):
            return root
        return torch.diag_embed(root.reshape(len(self.search.model.targets), -1))

    def spectrum(self) -> Spectrum | None:
        """That of the surrogate's features, found in few coordinates."""
        return self.search.spectrum(self.search.curvature(self.ascent))

    def around_network(self) -> NetworkWeights | None:
        search = self.search
        if search.model.point is None:
            return None
        known = search.spectrum(search.network_curvature())
        return replace(NetworkWeights.of(search.model, self.prior), known=known)

    def optimum(self) -> tuple[Variational, Optimum] | None:
        """The fit at the precision where the bound is largest: infinity where it is largest without these weights.

        None where several are free: they are looked for outside, by the gradient of the bound.
        """
        if self.several:
            return None
        search, found = self.search, self.search.maximum()
        precision = self.prior.precision.clone()
        precision[search.group] = torch.tensor(found.at.log_precision, dtype=torch.float64).exp()
        least = found.at.bound - search.tol - bound.ROUND_OFF * (1 + abs(found.at.bound))
        if search.model.point is None and search.bound_without() >= least:
            found, precision[search.group] = search.at(inf, None), inf
        at = Precisions(precision, torch.ones(1, dtype=torch.float64))
        fit = replace(self, prior=replace(self.prior, precision=precision), known=found)
        return fit, Optimum(at, found.steps, found.converged, (found.at.bound,))

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor,  # noqa: ARG002
        preconditioner: Preconditioning = nothing_known,  # noqa: ARG002
    ) -> Variational:  # fmt: skip
        if torch.equal(prior.precision, self.prior.precision):
            return self
        others = torch.arange(len(prior.precision)) != self.search.group
        known = isfinite(float(self.prior.precision[self.search.group]))
        near = self.ascent if known else None  # at infinity the free columns count for nothing
        search = self.search
        if not torch.equal(prior.precision[others], self.prior.precision[others]):
            search = BoundSearch.of(search.model, prior, search.group, search.steps)
            near = None if near is None else self._in_units_of(prior, near)
        return Variational(search, prior, near, several=self.several)

    def _in_units_of(self, prior: DiagonalPrior, near: Ascent) -> Ascent:
        """The same mean of the weights whose precisions are given, in units of another prior."""
        groups, free = self.search.given.groups, self.search.rows.free.shape[2]
        change = (prior.precision / self.prior.precision).sqrt()[groups].nan_to_num(nan=0.0, posinf=0.0)
        mean = torch.cat([near.at.mean[:free], change * near.at.mean[free:]])
        return replace(near, at=replace(near.at, mean=mean))

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        return self.search.weights(self.ascent)

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        found = self.moments(at)
        return found.residual, found.weights

    def outputs_over_precision(
        self, features: LinearOperator, shape: tuple[int, ...]
    ) -> Callable[[float], tuple[Tensor, Tensor]] | None:
        return self.search.outputs_over_precision(features, shape, self.ascent)

    def moments(self, at: Precisions) -> Moments:
        """Those at other precisions, from a search of their own."""
        there = self.at(replace(self.prior, precision=at.prior), at.noise)
        return there.search.moments(there.ascent)

    def problem(self, curvature: Problem, report: Report | None = None) -> Problem:  # noqa: ARG002
        """The bound at every setting; the curvature of another one says nothing of it.

        At a maximum over Gaussians it has the gradient of the prior alone, but for what was left out of the columns.
        """
        return replace(
            curvature, moments=self.moments, one_by_one=True, points=POINTS, lowest_ratio=0.0,
            has_gradient=self.several and self.search.rows.left_out is None,
        )  # fmt: skip

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:
        def moments(at: Precisions) -> Moments:
            found = self.moments(Precisions(prior.precision * at.prior, noise_precision * at.noise))
            there = replace(prior, precision=prior.precision * at.prior)
            return replace(found, weights=in_units_of(there, found.weights) / at.prior, determined=found.leverage)

        return replace(curvature, moments=moments, one_by_one=True, points=POINTS, lowest_ratio=0.0)

    @property
    def is_cheap(self) -> bool:
        return self.search.is_cheap

    def on(self, model: LinearModel) -> Variational:
        """The fit of other data under the same prior."""
        search = BoundSearch.of(model, self.prior, self.search.group, self.search.steps)
        return Variational(search, self.prior, several=self.several)

    def on_more(self, more: LinearModel, whole: LinearModel | None) -> Variational:
        if whole is not None:
            return self.on(replace(whole, features=stored_features(whole)))
        old = self.search.model
        return self.on(replace(replace(old, features=stored_features(old)).joined(more), point=more.point))

    def on_fewer(self, places: Tensor, left: LinearModel | None) -> Variational:
        model = self.search.model.without(places)
        return self.on(model if left is None else replace(model, point=left.point))

    def facts(self) -> dict[str, Any]:
        found = self.ascent
        return {
            "bound_steps": found.steps, "bound_gap": found.at.gap, "bound_error": self.search.quadrature_error(found),
            "converged": found.converged,
        }  # fmt: skip

    def pack(self) -> Packed:
        """The columns in their coordinates, with labels and weights: all that another precision needs."""
        search, found = self.search, self.ascent.at
        model, columns = search.model, search.columns
        free = search.rows.free.shape[2]
        mean = torch.cat([found.mean[:free], search.given.expand(found.mean[free:])])
        tensors = {
            "design": columns.design.dense().flatten(0, 1),
            "fixed": search.given.columns(search.prior.precision.sqrt()),
            "targets": model.targets, "counts": model.weights, "mean": mean, "curvature": found.curvature,
        }  # fmt: skip
        if columns.basis is not None:
            tensors["basis"] = columns.basis
        if search.rows.left_out is not None:
            tensors["left_out"] = search.rows.left_out
        if model.offset is not None:
            tensors["offset"] = model.offset
        plain: dict[str, Any] = {} if model.rest is None else {"level": model.rest.level}
        if model.rest is not None:
            tensors["pull"] = model.rest.pull
        plain |= {
            "kind": self.kind, "group": search.group, "steps": self.ascent.steps, "converged": self.ascent.converged,
            "tol": search.steps.tol, "max_steps": search.steps.max_steps, "several": self.several,
        }  # fmt: skip
        return plain, tensors

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> Variational:
        """The fit of a file, over the columns that it kept."""
        prior, group = context.prior, plain["group"]
        basis, left = tensors.get("basis"), tensors.get("left_out")
        n, k = tensors["fixed"].shape[:2]
        columns = Reduced(StoredDesign(tensors["design"].reshape(n, k, -1)), basis, left)
        own = prior.group_of == group
        features = _lifted(tensors["design"], basis, tensors["fixed"], own, prior, context.likelihood)
        model = LinearModel(
            features, tensors["targets"], context.likelihood, weights=tensors["counts"], offset=tensors.get("offset"),
            point=context.point, rest=Remainder(tensors["pull"], plain["level"]) if "pull" in tensors else None,
        )  # fmt: skip
        groups = prior.group_of[~own]
        given = Given(StoredDesign(tensors["fixed"] * prior.precision.rsqrt()[groups]), groups)
        rows = contrast_rows(model, prior, group, columns, given)
        steps = NewtonSteps(plain.get("tol"), plain.get("max_steps"))
        search = BoundSearch(model, prior, group, columns, given, rows, steps)
        precision = float(prior.precision[group])
        seen, at = (search.without, 0.0) if precision == inf else (rows, log(precision))
        found = bound.Search(seen, search.tol, 1).at(at, tensors["mean"], tensors["curvature"])
        if found is None:
            raise ValueError("the file holds a curvature that no posterior has")
        ascent = Ascent(found, plain["steps"], 0, plain.get("converged", True))
        return Variational(search, prior, None, ascent, plain.get("several", False))


def _check_curvature(model: LinearModel) -> None:
    """Refuse a density that is not log-concave or not finite at the network's outputs, or where a model starts."""
    at = torch.zeros(model.features.shape[0], dtype=torch.float64) if model.offset is None else model.offset.double()
    if model.point is not None:
        at = model.outputs_at_point().double()
    of = model.likelihood
    outputs = of.reshape_outputs(at, model.targets)
    of.hessian_diagonal(outputs, None, model.targets)
    if not isfinite(float(of.log_prob(outputs, model.targets, model.weights))):
        raise ValueError("log p has NaN or infinite values: a target may be impossible, or an output too large")


def _lifted(
    design: Tensor, basis: Tensor | None, fixed: Tensor, own: Tensor, prior: DiagonalPrior, likelihood: Any
) -> LinearOperator:
    """The features of a file: contrasts as outputs again, coordinates as weights."""
    n, k, _ = fixed.shape
    inside = torch.zeros(n * k, len(own), dtype=torch.float64)
    inside[:, own] = design if basis is None else design @ basis.mT
    inside[:, ~own] = fixed.reshape(n * k, -1)
    rows = inside / prior.scale
    if not likelihood.exclusive_classes:
        return Dense(rows)
    contrasts = likelihood.contrasts(k + 1)
    return Dense((contrasts @ rows.reshape(n, k, -1)).reshape(n * (k + 1), -1))
