"""Laplace's approximation of a logistic regression: its mode, evidence and posterior at any prior precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from typing import final

import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Curved
from lapwing.bayes.modes.loss import Loss, PerOutput
from lapwing.bayes.modes.newton import Mode, Rooted, mode
from lapwing.bayes.noise import Noise
from lapwing.bayes.statistics import Ritz, from_space
from lapwing.linalg import krylov
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, row_blocks
from lapwing.linalg.progress import Report
from lapwing.linalg.solvers import NotConverged

INTERCEPT_STD = 10.0  # of the logit at the mean of the features
KRYLOV_RTOL = 1e-2
STEP = 2.0  # of the scan over the log precision
LOWEST, HIGHEST = -14, 8  # steps from the start of the scan: prior logits of std 2e6 and 7e-4


@final
@dataclass(frozen=True, eq=False)
class WithConstant(LinearOperator):
    """Features and after them a column of ones."""

    inner: LinearOperator  # (n, d)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inner.shape[0], self.inner.shape[1] + 1)

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(x[:-1]) + x[-1]

    def rmatmat(self, y: Tensor) -> Tensor:
        return torch.cat([self.inner.rmatmat(y), y.sum(0, keepdim=True)])

    def rows(self, start: int, stop: int) -> Tensor:
        inner = self.inner.rows(start, stop)
        return torch.cat([inner, torch.ones_like(inner[:, :1])], dim=1)

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return self.inner.row_squares() + 1
        return self.inner.row_squares(weights[:-1]) + weights[-1]

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        total = self.like.new_tensor([self.shape[0]]) if weights is None else weights.sum().reshape(1).to(self.like)
        return torch.cat([self.inner.column_squares(weights), total])


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Everything but the prior precision."""

    features: LinearOperator  # (n, q), centred where there is an intercept
    likelihood: Curved
    targets: Tensor  # (n,)
    weights: Tensor  # (n,)
    outputs: int  # one logit of two classes, or one a class
    intercept: bool
    block: krylov.Block | None  # the noise of a matrix-free fit; None where it is exact
    tol: float
    max_steps: int
    report: Report

    def std(self, precision: float) -> Tensor:  # (q,), or (q + 1,) with the intercept last
        """The prior standard deviations of the weights of one output."""
        slopes = torch.full((self.features.shape[1],), precision**-0.5, dtype=torch.float64)
        return torch.cat([slopes, slopes.new_tensor([INTERCEPT_STD])]) if self.intercept else slopes

    def loss(self, precision: float) -> Loss:
        """The loss over whitened weights."""
        features = _design(self.features, self.intercept) @ Diagonal(self.std(precision))
        features = PerOutput(features, self.outputs) if self.outputs > 1 else features
        return Loss(features, self.likelihood, self.targets, self.weights)


@final
@dataclass(frozen=True, eq=False)
class Laplace:
    """The Gaussian at the mode at one prior precision; M is the Hessian of −log p over whitened weights."""

    precision: float
    std: Tensor  # (p,), of the prior
    mode: Mode
    log_det: Estimate  # log det(I + M)
    determined: Estimate  # tr M (I + M)⁻¹
    root: Tensor  # (p, p), W with W Wᵀ = (I + M)⁻¹; or (p, draws), where that holds on average over draws

    @property
    def log_evidence(self) -> Estimate:
        """log p(y | θ⋆) − ½‖z⋆‖² − ½ log det(I + M)."""
        energy = self.mode.log_prob - 0.5 * float(self.mode.weights.square().sum())
        return Estimate(energy - 0.5 * self.log_det.value, 0.5 * self.log_det.standard_error)


def laplace(problem: Problem, precision: float, near: Laplace | None) -> Laplace:
    """The approximation at a precision, its mode started from that of another."""
    loss, std = problem.loss(precision), problem.std(precision).repeat_interleave(problem.outputs)
    start = preconditioner = None
    if near is not None:
        start = torch.where(std > 0, near.std * near.mode.weights / torch.where(std > 0, std, 1), 0)
        preconditioner = Rooted(near.root) if problem.block is None else None
    found = mode(
        loss, start=start, preconditioner=preconditioner, tol=problem.tol, max_steps=problem.max_steps
    ).checked()
    if problem.block is None:
        return Laplace(precision, std, found, *_exact(loss, found))
    return Laplace(precision, std, found, *_sampled(loss, found, problem.block, problem.report))


def _exact(loss: Loss, found: Mode) -> tuple[Estimate, Estimate, Tensor]:
    """The log-determinant, the effective dimension and a root of the covariance."""
    factor = loss.factor(found.outputs) if found.factor is None else found.factor
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)
    log_det, determined = 2 * factor.diagonal().log().sum(), len(factor) - inverse.square().sum()
    return Estimate(float(log_det)), Estimate(float(determined)), inverse.mT


def _sampled(loss: Loss, found: Mode, block: krylov.Block, report: Report) -> tuple[Estimate, Estimate, Tensor]:
    """The same from the shared Krylov space at the mode."""
    root, diagonal = loss.root(found.outputs), loss.likelihood.hessian_diagonal(found.outputs, loss.weights)
    space = krylov.build(root, block, alpha=1.0, rtol=KRYLOV_RTOL, report=report)
    if space.limited_by == "memory":
        raise MemoryError(
            f"the Krylov space of this fit holds {len(space.ritz):,} directions, and more do not fit in memory: "
            "use a larger prior_precision, or fewer features"
        )
    trace = float(loss.features.row_squares() @ diagonal.reshape(-1))
    statistics = from_space(space, Ritz(space, root, KRYLOV_RTOL, trace), count=0.0, log_weight=0.0)
    draws = krylov.draws_and_mean(space, alpha=1.0, operator=root)[0]
    determined = statistics.trace_of(lambda k: k / (1 + k))
    return statistics.trace_of(torch.log1p), determined, draws / draws.shape[1] ** 0.5


def tuned(problem: Problem) -> tuple[Laplace, int]:
    """The approximation at the precision of largest evidence, and the Newton steps of the search.

    A scan downwards from priors too narrow, then Brent's method between the neighbours of the best. A precision of
    infinity means that the data are likelier without any features.
    """
    scale = float(problem.weights @ problem.features.row_squares()) / float(problem.weights.sum())
    if not scale > 0:
        return (only := laplace(problem, inf, None)), only.mode.steps
    scores: dict[float, float] = {}
    near: Laplace | None = None
    steps = 0

    def score(x: float) -> float:
        nonlocal near, steps
        try:
            near = laplace(problem, exp(x), near)
        except (FloatingPointError, NotConverged):  # a prior this wide cannot be worked with
            return scores.setdefault(x, -inf)
        steps += near.mode.steps
        scores[x] = near.log_evidence.value
        problem.report(f"prior precision {near.precision:.3g}: log evidence {scores[x]:.6g}")
        return scores[x]

    score(inf)
    best = _scan(score, log(scale / 4))
    if scores[best] > scores[inf] and min(scores) < best < max(x for x in scores if x < inf):
        width = 2e-2 if problem.block else 1e-3
        scipy.optimize.minimize_scalar(
            lambda x: -score(x), bounds=(best - STEP, best + STEP), method="bounded", options={"xatol": width}
        )
    top = laplace(problem, exp(max(scores, key=scores.__getitem__)), near)
    return top, steps + top.mode.steps


def _scan(score: Callable[[float], float], middle: float) -> float:
    """The best of a grid of log precisions, extended as long as that lies at its end."""
    grid = {k: score(middle + STEP * k) for k in (1, 0, -1)}
    while (best := max(grid, key=grid.__getitem__)) in (min(grid), max(grid)) and LOWEST < best < HIGHEST:
        further = best - 1 if best == min(grid) else best + 1
        grid[further] = score(middle + STEP * further)
    return middle + STEP * best


@final
@dataclass(frozen=True, eq=False)
class Posterior:
    """What prediction needs of a fit; weights of several outputs sum to zero, and those of features come first."""

    precision: float
    basis: Tensor | None  # (d, q), the directions of weight space that have data; None where all have
    mean: Tensor  # (q, c), or (q + 1, c) with an intercept
    root: Tensor  # (q or q + 1, c, k), W with W Wᵀ the covariance
    roots: Tensor  # (c, q or q + 1, smaller k), the same of every output for itself
    intercept: bool
    exact: bool

    def slopes(self, weights: Tensor) -> Tensor:  # (q or q + 1, ...) -> (d, ...)
        """The weights of features, of given weights."""
        slopes = weights[: len(weights) - self.intercept]
        if self.basis is None:
            return slopes
        return (self.basis @ slopes.reshape(len(slopes), -1)).reshape(-1, *slopes.shape[1:])

    def constant(self, weights: Tensor) -> Tensor:  # (q or q + 1, ...) -> (...)
        """The logits at the centre of the features, zero without an intercept."""
        return weights[len(weights) - self.intercept :].sum(0)

    def variances(self, features: LinearOperator) -> Tensor:  # (n, c)
        """The variance of every logit at centred features."""
        inside = features if self.basis is None else Dense(features @ self.basis)
        design = _design(inside, self.intercept)
        if not self.exact:  # products only: rows may be very long
            return torch.stack([(design @ root).square().sum(1) for root in self.roots], dim=1)
        parts = [torch.stack([(rows @ root).square().sum(1) for root in self.roots], 1) for rows in row_blocks(design)]
        if self.basis is None:
            return torch.cat(parts)
        outside = (features.row_squares() - inside.row_squares()).clamp_min(0)[:, None]
        return torch.cat(parts) + outside * (_share(len(self.roots)) / self.precision)

    def draws(self, n: int, noise: Noise) -> tuple[Tensor, Tensor]:  # (d, c, n), (c, n)
        """Draws of the weights of features, and of the logits at their centre."""
        _, c, k = self.root.shape
        if not self.exact and n > k:
            raise ValueError(f"a matrix-free fit of this size holds {k} draws, and {n} were asked for")
        normals = noise.rows(0, k, n) if self.exact else k**0.5 * torch.eye(k, n, dtype=torch.float64)
        weights = self.mean[:, :, None] + self.root @ normals
        slopes = self.slopes(weights)
        if self.basis is not None:  # where there are no data, the prior
            d = len(self.basis)
            free = _centred(noise.rows(k, k + d * c, n).reshape(d, c, n)).reshape(d, c * n)
            free = free - self.basis @ (self.basis.mT @ free)
            slopes = slopes + self.precision**-0.5 * free.reshape(d, c, n)
        return slopes, self.constant(weights)


def posterior_of(problem: Problem, found: Laplace, basis: Tensor | None) -> Posterior:
    """What prediction needs of the approximation at one precision."""
    std, c = problem.std(found.precision), problem.outputs
    mean = std[:, None] * found.mode.weights.reshape(-1, c)
    root = std[:, None, None] * _centred(found.root.reshape(len(std), c, -1))
    roots = root.permute(1, 0, 2)
    if roots.shape[2] > roots.shape[1]:
        roots = torch.linalg.qr(roots.mT, mode="r")[1].mT
    return Posterior(found.precision, basis, mean, root, roots, problem.intercept, problem.block is None)


def _design(features: LinearOperator, intercept: bool) -> LinearOperator:
    return WithConstant(features) if intercept else features


def _centred(values: Tensor) -> Tensor:  # (q, c, k)
    """Values without what several outputs share."""
    return values if values.shape[1] == 1 else values - values.mean(1, keepdim=True)


def _share(outputs: int) -> float:
    """The variance that centring leaves of independent outputs."""
    return 1.0 if outputs == 1 else 1 - 1 / outputs
