"""The bound by products alone: the spread of each datum's outputs from draws, averages by points around it.

Where a matrix of the features is too large, draws θ ~ N(0, (A + ΦᵀBΦ)⁻¹) are known by products. Their outputs say how
wide each datum's are, and the averages of the likelihood over Gaussians of that width what B is to be. The mean is the
minimum of the averaged loss at these widths, by Newton steps that conjugate gradients solve; no step raises the loss.
Widths, mean and B take turns with the same noise until they settle; then the precision, where it is free, goes on by a
secant towards MacKay's fixed point γ/‖m‖².
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.evidence import Moments, Precisions, Problem
from lapwing.bayes.evidence.fixed_point import secant
from lapwing.bayes.fits import bound_search
from lapwing.bayes.fits.bound import ALL, Expected
from lapwing.bayes.fits.interface import LOST, Fit, Packed, Preconditioning, in_units_of, nothing_known
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.likelihoods.expectation import JITTER, Expectation
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import BlockDiagonal, Diagonal, Double, LinearOperator
from lapwing.linalg.solvers import ConjugateGradients, NotPositive, Preconditioner
from lapwing.runtime.progress import Report

ROUNDS = 60
SETTLED = 1e-3  # in log γ, and as a share of γ in nats
NEARLY = 0.1  # of the way to the fixed point, within which a turn has settled while the precision is looked for
TUNED = 1e-2  # in log α
DEPTH = 5  # turns that are mixed
DAMPED = 0.7  # of the way of B to what the likelihood asks for
NEWTON_STEPS, NEWTON_GAP = 12, 1e-4  # of a mean, and the share of γ within which it is found, in nats
LARGEST_NUMBERS = 2**27  # of curvatures, an m × m matrix for each datum


@final
@dataclass(frozen=True, eq=False)
class Drawn:
    """Draws of a Gaussian model's weights around their mean, and what its space says of the determinant."""

    deviations: Tensor  # (d, draws)
    determined: float  # γ
    log_det: float  # log det(I + A⁻¹ΦᵀBΦ)
    preconditioner: Preconditioner | None


class Draws(ABC):
    """How draws are made, always from the same noise."""

    @abstractmethod
    def of_posterior(self, fit: Fit, prior: DiagonalPrior) -> Drawn:
        """Those under the surrogate of a fit."""


@final
@dataclass(frozen=True, eq=False)
class Turn:
    """Where the search stands after a turn."""

    precision: Tensor  # (groups,)
    mean: Tensor  # (d,), whitened
    curvature: Tensor  # (n, k, k), B
    asked: Tensor  # (n, k, k), what the likelihood asks for at these draws
    widths: Tensor  # (n, k, k), of the outputs
    determined: float
    log_det: float
    log_density: float  # Σ E log p
    turns: int
    converged: bool

    @property
    def from_fixed_point(self) -> float:
        """How far log α is from that of γ/‖m‖²."""
        return log(max(self.determined, 1e-300) / max(float(self.mean.square().sum()), 1e-300))

    def stepped(self, share: float) -> Turn:
        """With B some way towards what is asked for."""
        return replace(self, curvature=self.curvature + share * (self.asked - self.curvature))

    def is_worse_than(self, before: Turn) -> bool:
        """Whether the bound has fallen by more than a search may miss: the step was too long."""
        return not self.bound >= before.bound - 10 * SETTLED * max(1.0, before.determined)

    def moved_from(self, before: Turn) -> float:
        """How far a turn went, and has B to go: in log γ, and in nats as a share of γ."""
        determined = abs(log(max(self.determined, 1e-300) / max(before.determined, 1e-300)))
        change = (self.asked - self.curvature) @ self.widths
        nats = max(abs(self.bound - before.bound), 0.25 * float((change * change.mT).sum().abs()))
        return max(determined, nats / max(1.0, self.determined))

    @property
    def bound(self) -> float:
        """The lower bound on the log evidence, as far as draws tell it."""
        return self.log_density - 0.5 * (float(self.mean.square().sum()) - self.determined + self.log_det)


def mixed(turns: list[Turn]) -> Tensor:  # (n, k, k)
    """The next B by Anderson's (1965) mixture of what turns asked for, changes measured in units of the widths.

    Narrow outputs ask for a larger curvature, which makes them narrower: turns alone come nearer slowly.
    """
    last = turns[-1]
    if len(turns) == 1:
        return last.stepped(DAMPED).curvature
    root = _root(last.widths)
    residuals = torch.stack([(root.mT @ (turn.asked - turn.curvature) @ root).reshape(-1) for turn in turns])
    differences = residuals[-1] - residuals[:-1]
    gram = differences @ differences.mT
    gram.diagonal().add_(1e-8 * gram.diagonal().max() + 1e-300)
    shares = torch.linalg.solve(gram, differences @ residuals[-1])
    each = torch.cat([shares, 1 - shares.sum().reshape(1)])
    total = sum(share * turn.stepped(DAMPED).curvature for share, turn in zip(each, turns, strict=True))
    values, vectors = torch.linalg.eigh(total)
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT


def _root(widths: Tensor) -> Tensor:  # (n, k, k)
    """The Cholesky factors of widths that may have no inverse."""
    jitter = JITTER * widths.diagonal(dim1=1, dim2=2).sum(1) + torch.finfo(torch.float64).tiny
    return torch.linalg.cholesky_ex(widths + jitter[:, None, None] * torch.eye(widths.shape[1]).to(widths))[0]


@final
@dataclass(frozen=True, eq=False)
class DrawnSearch:
    """The search of a linear model: everything about it but where it stands."""

    model: LinearModel
    draws: Draws
    report: Report
    expected: Expected
    offset: Tensor  # (n, k)
    weights: Tensor  # (n,)
    contrasts: Tensor | None  # (c, k); None where each output stands alone

    @staticmethod
    def of(model: LinearModel, draws: Draws, report: Report) -> DrawnSearch:
        """That of a model."""
        contrasts = None if bound_search.is_alone(model) else model.likelihood.contrasts(model.outputs)
        n = model.features.shape[0] if contrasts is None else len(model.targets)
        k = 1 if contrasts is None else contrasts.shape[1]
        rows = bound_search.averages_of(model), bound_search.offset_of(model, (n, k)), bound_search.weights_of(model)
        return DrawnSearch(model, draws, report, *rows, contrasts)

    def run(self, prior: DiagonalPrior, near: Turn | None, *, tune: bool) -> Turn:
        """Turns until nothing moves any more, at the precision of a prior or starting from it."""
        at, seen, here = self._first(prior, near), list[tuple[float, float]](), list[Turn]()
        for turns in range(1, ROUNDS + 1):
            found = replace(self._turned(replace(prior, precision=at.precision), at), turns=turns)
            self.report(f"averaging the curvature: turn {turns}, {found.determined:.1f} determined")
            if here and found.is_worse_than(here[-1]):
                here = here[-1:]
                at = here[-1].stepped(DAMPED / 2 ** (turns - here[-1].turns))
                continue
            away, moved = found.from_fixed_point if tune else 0.0, found.moved_from(here[-1] if here else at)
            here = [*here, found][-DEPTH:]
            if moved > max(SETTLED, NEARLY * abs(away)):
                at = replace(found, curvature=mixed(here))
                continue
            seen.append((float(found.precision[0].log()), away))
            step = secant(seen) - seen[-1][0] if tune else 0.0
            if abs(step) <= TUNED and moved <= SETTLED:
                return replace(found, converged=True)
            if step:
                here = []
            at = self._at_precision(found.stepped(DAMPED), step)
        return at

    def _first(self, prior: DiagonalPrior, near: Turn | None) -> Turn:
        """Outputs of zero with unit width, or what was found at another precision."""
        if near is not None:
            return self._at_precision(near, log(float(prior.precision[0] / near.precision[0])))
        n, k = self.offset.shape
        seen = self.expected(self.offset, torch.eye(k, dtype=torch.float64).expand(n, k, k), ALL)
        asked, mean = self._curvature(seen), torch.zeros(len(prior.scale), dtype=torch.float64)
        return Turn(prior.precision, mean, asked, asked, 0 * asked, 1.0, 0.0, 0.0, 0, False)

    @staticmethod
    def _at_precision(at: Turn, step: float) -> Turn:
        """The same mean and curvature where log α is larger by a step."""
        return replace(at, precision=at.precision * exp(step), mean=at.mean * exp(step / 2))

    def _turned(self, prior: DiagonalPrior, at: Turn) -> Turn:
        """Draws with this curvature, the mean at their widths, and the curvature that both ask for."""
        drawn = self.draws.of_posterior(AveragedOverDraws(self, prior, at), prior)
        features, widths = self.features(prior), self._widths(drawn.deviations)
        mean, seen = self._mean(features, at.mean, widths, drawn)
        told = drawn.determined, drawn.log_det, float(self.weights @ seen.log_density)
        return Turn(prior.precision, mean, at.curvature, self._curvature(seen), widths, *told, at.turns, False)

    def features(self, prior: DiagonalPrior) -> LinearOperator:
        """Those of whitened weights, in double precision."""
        return Double(self.model.features @ Diagonal(prior.std.to(self.model.features.like)))

    def gaussian_surrogate(self, curvature: Tensor) -> GaussianSurrogate:
        """The Gaussian model with a curvature."""
        return bound_search.surrogate(self.model, curvature)

    def _outputs(self, flat: Tensor) -> Tensor:  # (n · c, draws) -> (n, k, draws)
        if self.contrasts is None:
            return flat[:, None]
        return self.contrasts.mT @ flat.reshape(len(self.weights), -1, flat.shape[1])

    def _widths(self, deviations: Tensor) -> Tensor:  # (n, k, k)
        """Covariances of the draws' outputs, evened out as far as draws are few beside the outputs of a datum.

        Of few draws they have directions without any width, which the posterior has not.
        """
        outputs = self._outputs(Double(self.model.features).matmat(deviations))
        _, k, draws = outputs.shape
        found, even = outputs @ outputs.mT / draws, 1 / (1 + (draws / k) ** 2)
        mean = found.diagonal(dim1=1, dim2=2).mean(1)
        return (1 - even) * found + even * mean[:, None, None] * torch.eye(k, dtype=torch.float64)

    def _averages(self, features: LinearOperator, mean: Tensor, widths: Tensor) -> Expectation:
        return self.expected(self.offset + self._outputs(features.matmat(mean[:, None]))[:, :, 0], widths, ALL)

    def _curvature(self, seen: Expectation) -> Tensor:  # (n, k, k)
        return self.weights[:, None, None] * seen.curvature

    def _mean(self, features: LinearOperator, mean: Tensor, widths: Tensor, drawn: Drawn) -> tuple[Tensor, Expectation]:
        """The minimum of the averaged loss at some widths, from a mean: no step raises it."""
        seen = self._averages(features, mean, widths)
        for _ in range(NEWTON_STEPS):
            gradient = mean - self._pulled(features, self.weights[:, None] * seen.gradient)
            step = self._newton(features, seen, gradient, drawn)
            gap = 0.5 * float(gradient @ step)
            if gap <= NEWTON_GAP * max(1.0, drawn.determined):
                break
            mean, seen = self._lower(features, mean, step, widths, seen, gap)
        return mean, seen

    def _lower(
        self, features: LinearOperator, mean: Tensor, step: Tensor, widths: Tensor, seen: Expectation, gap: float
    ) -> tuple[Tensor, Expectation]:
        """A step, halved until the averaged loss is lower."""

        def loss(at: Tensor, averages: Expectation) -> float:
            return 0.5 * float(at.square().sum()) - float(self.weights @ averages.log_density)

        here, length = loss(mean, seen), 1.0
        while length > 1e-6:
            there = mean - length * step
            averages = self._averages(features, there, widths)
            if loss(there, averages) <= here - 1e-4 * length * gap:
                return there, averages
            length /= 2
        return mean, seen

    def _newton(self, features: LinearOperator, seen: Expectation, gradient: Tensor, drawn: Drawn) -> Tensor:
        curvature = self._curvature(seen)
        identity = Diagonal(torch.ones(len(gradient), dtype=torch.float64))
        hessian = identity + features.T @ (BlockDiagonal(bound_search.in_outputs(self.model, curvature)) @ features)
        for preconditioner in (drawn.preconditioner, None):
            try:
                return ConjugateGradients(0.1, preconditioner=preconditioner).solve(hessian, gradient[:, None]).x[:, 0]
            except NotPositive:  # a space in single precision may know less than nothing of some directions
                continue
        return gradient

    def _pulled(self, features: LinearOperator, slopes: Tensor) -> Tensor:  # (n, k) -> (d,)
        flat = slopes if self.contrasts is None else slopes @ self.contrasts.mT
        return features.rmatmat(flat.reshape(-1, 1))[:, 0]


@final
@dataclass(frozen=True, eq=False)
class AveragedOverDraws(Fit):
    """Mean and curvature at the maximum of the bound, as far as draws tell it."""

    search: DrawnSearch | None  # None in a file
    prior: DiagonalPrior
    known: Turn | None = None  # where the search ended, or in a file what it found
    near: Turn | None = None  # where it starts
    kind = "averaged over draws"
    moves = True
    is_bound = True

    @cached_property
    def turn(self) -> Turn:
        """Where the search ends at this precision."""
        return self._search.run(self.prior, self.near, tune=False) if self.known is None else self.known

    @property
    def _search(self) -> DrawnSearch:
        if self.search is None:
            raise ValueError(LOST)
        return self.search

    @cached_property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        return self._search.gaussian_surrogate(self.turn.curvature)

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor,  # noqa: ARG002
        preconditioner: Preconditioning = nothing_known,  # noqa: ARG002
    ) -> AveragedOverDraws:  # fmt: skip
        if torch.equal(prior.precision, self.prior.precision):
            return self
        return AveragedOverDraws(self._search, prior, near=self.turn)

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        return self.prior.std * self.turn.mean

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        found = self.moments(at)
        return found.residual, found.weights

    def moments(self, at: Precisions) -> Moments:
        """Those at other precisions, from a search there: −2 E log p − γ stands for a misfit."""
        found = self.at(replace(self.prior, precision=at.prior), at.noise).turn
        energy = found.mean.square().sum().reshape(1)
        gamma = torch.tensor([found.determined], dtype=torch.float64)
        residual = torch.tensor([-2 * found.log_density - found.determined], dtype=torch.float64)
        return Moments(residual, energy / at.prior, gamma, gamma, torch.tensor(found.log_det, dtype=torch.float64))

    def problem(self, curvature: Problem, report: Report | None = None) -> Problem:  # noqa: ARG002
        return replace(curvature, moments=self.moments, one_by_one=True, points=9, lowest_ratio=0.0, has_gradient=False)

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:
        def moments(at: Precisions) -> Moments:
            found = self.moments(Precisions(prior.precision * at.prior, noise_precision * at.noise))
            there = replace(prior, precision=prior.precision * at.prior)
            return replace(found, weights=in_units_of(there, found.weights) / at.prior, determined=found.leverage)

        return replace(curvature, moments=moments, one_by_one=True, points=9, lowest_ratio=0.0, has_gradient=False)

    def facts(self) -> dict[str, Any]:
        return {"bound_steps": self.turn.turns, "converged": self.turn.converged}

    def pack(self) -> Packed:
        """What was found: other precisions take the data."""
        at = self.turn
        plain = {
            "kind": self.kind, "determined": at.determined, "log_det": at.log_det, "log_density": at.log_density,
            "turns": at.turns, "converged": at.converged,
        }  # fmt: skip
        return plain, {"mean": at.mean}

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> AveragedOverDraws:
        """The fit of a file."""
        nothing = torch.empty(0, 0, 0, dtype=torch.float64)
        turn = Turn(
            context.prior.precision, tensors["mean"], nothing, nothing, nothing, plain["determined"], plain["log_det"],
            plain["log_density"], plain["turns"], plain["converged"],
        )  # fmt: skip
        return AveragedOverDraws(None, context.prior, turn)


def obstacle(model: LinearModel, groups: int) -> str | None:
    """Why the curvature cannot be averaged over draws here; None where it can."""
    if not model.likelihood.log_concave:
        return "this density is not log-concave in its outputs, so that the best Gaussian is not the only one"
    if groups > 1:
        return "several precisions are free"
    if model.rest is not None:
        return "the gradient of other data is followed by Exact() alone"
    outputs = 1 if bound_search.is_alone(model) else model.outputs
    if model.features.shape[0] * outputs > LARGEST_NUMBERS:
        return f"curvatures of {model.features.shape[0]:,} outputs, {outputs} a datum, do not fit into memory"
    return None
