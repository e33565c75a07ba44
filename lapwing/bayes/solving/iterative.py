"""Posteriors from solves at one setting of the precisions: what several precisions need beyond exact sizes.

A draw is the minimiser of ½‖ξ − W z‖² + ½‖z − θ̃‖² with W the features in units of noise and prior. Precisions are
tuned by MacKay's fixed point with γ from the draws (Antorán et al. 2023): noise is reused and solves start from
the solution at the precisions before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.bayes.evidence import EvidenceParts, Optimum, Precisions, effective_dimension, grouped
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods import CG, SGD
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics import scaled_features, totals, whitened_data
from lapwing.linalg import solvers, stochastic
from lapwing.linalg.estimators import Estimate, log_determinant
from lapwing.linalg.memory import available_bytes
from lapwing.linalg.operators import Diagonal, LinearOperator, Rows, over_parts
from lapwing.linalg.progress import Report

QUADRATURE_STEPS = 20


@final
@dataclass(frozen=True, eq=False)
class Drawn:
    """Mean and draws at one setting of the precisions, and the energies that the evidence needs."""

    std: Tensor  # (d,), of the prior
    mean: Tensor  # (d,)
    spread: Tensor  # (d, draws), draws minus mean
    parts: EvidenceParts
    effective_dimension: Estimate
    log_det: Estimate
    solution: solvers.Solution  # in units of the prior: the mean, then the draws
    passes: float
    error_bound: float  # on the relative function error of the worst draw, ‖r‖ / (2√γ)
    exact = False

    def deviations(self, prior_noise: Tensor) -> Tensor:
        """The draws minus their mean; they are known, so the noise behind them is not asked."""
        del prior_noise
        return self.spread


@final
@dataclass(frozen=True, eq=False)
class Sampler:
    """The data, the noise of every draw and a solver: a posterior at any precisions, for some passes over the data."""

    features: LinearOperator  # (rows, d), with weights and the prior's scale
    targets: Tensor  # (rows,)
    normals: Rows  # (rows, draws), ξ
    prior_noise: Tensor  # (d, draws), θ̃
    noise_of: Tensor  # (rows,), the noise group of each row
    counts: Tensor  # (noise groups,)
    log_weight: float
    method: CG | SGD
    seed: int
    warm: Tensor | None = None  # (d, 1 + draws), the last solution over the prior's scale
    ritz: tuple[Tensor, Tensor] | None = None  # (d, rank) and (rank,): a Krylov space of the features, for deflation

    @property
    def draws(self) -> int:
        """Number of draws."""
        return self.normals.shape[1]

    def whitened(self, prior: DiagonalPrior, noise: Tensor) -> LinearOperator:
        """W, the features in units of noise and prior."""
        return scaled_features(self.features, noise.sqrt()[self.noise_of], prior.precision.rsqrt()[prior.group_of])

    def columns(self, start: int, stop: int, noise: Tensor) -> Tensor:  # (stop - start, 1 + draws)
        """Rows of the targets in units of their noise, and of the noise of every draw."""
        targets = noise.sqrt()[self.noise_of[start:stop]] * self.targets[start:stop]
        return torch.cat([targets[:, None], self.normals.rows(start, stop)], dim=1).to(self.targets)

    def solve(self, prior: DiagonalPrior, noise: Tensor) -> tuple[solvers.Solution, Tensor]:
        """The mean and every draw in units of the prior, and the right-hand sides of their normal equations."""
        w = self.whitened(prior, noise)
        anchors = torch.cat([torch.zeros_like(self.prior_noise[:, :1]), self.prior_noise], dim=1)
        start = anchors if self.warm is None else self.warm * self._root(prior)[:, None]
        right = over_parts(w, lambda a, b, part: part.rmatmat(self.columns(a, b, noise))) + anchors
        if isinstance(self.method, SGD):
            return self._descend(w, noise, anchors, start), right
        m = w.T @ w
        near = self._nystrom(m) if self.method.rank else self._deflation(prior, noise)
        system = Diagonal(torch.ones_like(anchors[:, 0])) + m
        return solvers.CG(self.method.rtol, self.method.max_steps, near).solve(system, right, start), right

    def _deflation(self, prior: DiagonalPrior, noise: Tensor) -> solvers.Deflation | None:
        """The Krylov space of the features, rescaled to these precisions: good where its Ritz values are large."""
        if self.ritz is None:
            return None
        vectors, values = self.ritz
        root = prior.precision.rsqrt()[prior.group_of][:, None] * vectors * (noise.mean() * values).sqrt()
        squares, turn = torch.linalg.eigh(root.mT @ root)
        kept = squares > 1e-3 * squares.max().clamp_min(1e-300)  # the rest does not slow it
        basis = torch.linalg.qr(root @ turn[:, kept])[0]
        return solvers.Deflation(basis, squares[kept], 1.0)

    def _nystrom(self, m: LinearOperator) -> solvers.Nystrom:
        generator = torch.Generator().manual_seed(self.seed)
        return solvers.Nystrom.of(m, rank=min(self.rank_limit, m.shape[0]), shift=1.0, generator=generator)

    @property
    def rank_limit(self) -> int:
        """The rank asked for."""
        return self.method.rank if isinstance(self.method, CG) else 0

    def _descend(self, w: LinearOperator, noise: Tensor, anchors: Tensor, start: Tensor) -> solvers.Solution:
        assert isinstance(self.method, SGD)
        fraction = {"L": 1.0, "L'": 0.0}.get(self.method.objective)
        if fraction is None:
            fraction = 0.0 if self.warm is None else _best_fraction(w, start[:, 1:])
        n = len(self.targets)
        steps = self.method.steps or max(2000, 20 * ceil(n / self.method.batch_size))
        batch, generator = min(self.method.batch_size, n), torch.Generator().manual_seed(self.seed)
        targets = self.columns(0, n, noise) if stochastic.scattered(w) else _Columns(self, noise)
        objective = stochastic.Objective(w, targets, anchors, 1.0, fraction)
        if (
            w.shape[0] < w.shape[1]
        ):  # fewer data than weights: coordinates of the dual have no gradient noise at the end
            return stochastic.DualDescent(batch_size=batch, steps=steps).solve(objective, generator=generator)
        return stochastic.SGD(batch_size=batch, steps=steps).solve(objective, generator=generator, start=start)

    def _root(self, prior: DiagonalPrior) -> Tensor:
        """The square root of the precisions, 0 for a pruned weight, whose solution is its anchor."""
        root = prior.precision.sqrt()[prior.group_of]
        return torch.where(root.isfinite(), root, 0)

    def moments(self, prior: DiagonalPrior, noise: Tensor, solution: solvers.Solution, right: Tensor) -> _Moments:
        """What MacKay's update needs, from one product with the features."""
        x, groups = solution.x, len(prior.precision)
        mean, z = x[:, 0] * prior.precision.rsqrt()[prior.group_of], x[:, 1:]
        leverage, residual = (torch.zeros_like(noise) for _ in range(2))
        fit_energy, product = torch.zeros_like(z[0]), right[:, 1:] - z
        if isinstance(self.method, SGD):  # where z is converged H z is the right-hand side; these end near it
            product = torch.zeros_like(z)
        for start, part in self.whitened(prior, noise).parts():
            rows, fitted = slice(start, start + part.shape[0]), part.matmat(x)
            groups_of = self.noise_of[rows]
            left = self.targets[rows] - fitted[:, 0] / noise.sqrt()[groups_of]
            residual += grouped(left.square(), groups_of, len(noise))
            leverage += grouped(fitted[:, 1:].square().mean(1), groups_of, len(noise))
            fit_energy += fitted[:, 1:].square().sum(0)
            if isinstance(self.method, SGD):
                product += part.rmatmat(fitted[:, 1:])
        in_function = grouped((z * product).mean(1), prior.group_of, groups)
        in_weights = prior.sizes - grouped(z.square().mean(1), prior.group_of, groups)
        share = (in_function / prior.sizes).clamp(0, 1)
        pruned = ~prior.precision.isfinite()
        determined = torch.where(pruned, 0, ((1 - share) * in_function + share * in_weights))
        lowest = 0.0 if isinstance(self.method, CG) else 0.5
        return _Moments(
            determined=determined.clamp_min(lowest).minimum(prior.sizes),
            weights=grouped(mean.square(), prior.group_of, groups),
            leverage=leverage,
            residual=residual,
            fit_energy=fit_energy,
            penalty_energy=(z * (prior.std > 0)[:, None]).square().sum(0),
        )

    def at(self, prior: DiagonalPrior, noise: Tensor) -> Drawn:
        """The posterior at these precisions, with its evidence: one solve and one stochastic quadrature."""
        solution, right = self.solve(prior, noise)
        m = self.moments(prior, noise, solution, right)
        w, kept = self.whitened(prior, noise), prior.precision.isfinite()
        log_det = _log_determinant(w.T @ w, max(self.draws, 2), torch.Generator().manual_seed(self.seed))
        log_noise = noise.log() - torch.tensor(2 * torch.pi, dtype=torch.float64).log()
        parts = EvidenceParts(
            fit=float(-0.5 * (noise * m.residual).sum()),
            penalty=float(-0.5 * (prior.precision[kept] * m.weights[kept]).sum()),
            occam=-0.5 * log_det.value,
            normaliser=float(0.5 * (self.counts * log_noise).sum()) + self.log_weight,
            hyperprior=0.0,
        )
        gamma = effective_dimension(m.fit_energy, m.penalty_energy, max(int(prior.sizes[kept].sum()), 1)).combined
        scaled = prior.std[:, None] * solution.x
        passes = solution.passes + QUADRATURE_STEPS + 2
        error = float((solution.residuals * right.norm(dim=0)).max()) / (2 * max(gamma.value, 1e-3) ** 0.5)
        return Drawn(prior.std, scaled[:, 0], scaled[:, 1:], parts, gamma, log_det, solution, passes, error)

    def warmed(self, prior: DiagonalPrior, solution: solvers.Solution) -> Sampler:
        """The same sampler, to start next time from this solution."""
        return replace(self, warm=solution.x * prior.precision.rsqrt()[prior.group_of][:, None])


@final
@dataclass(frozen=True, eq=False)
class _Columns:
    """The right-hand sides of the data, made block by block."""

    sampler: Sampler
    noise: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.sampler.targets), 1 + self.sampler.draws)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.sampler.columns(start, stop, self.noise)


@final
@dataclass(frozen=True, eq=False)
class _Moments:
    determined: Tensor  # (groups,)
    weights: Tensor  # (groups,)
    leverage: Tensor  # (noise groups,)
    residual: Tensor  # (noise groups,)
    fit_energy: Tensor  # (draws,)
    penalty_energy: Tensor  # (draws,)


def sampler(model: LinearModel, prior: DiagonalPrior, method: CG | SGD, noise: Noise, draws: int) -> Sampler:
    """A sampler for a model, with the noise of its draws."""
    scaled, targets, normals = whitened_data(model, prior, noise, draws)
    groups = model.gaussian.row_groups(model.targets)
    like = scaled.like
    return Sampler(
        features=scaled, targets=targets.to(like), normals=normals,
        prior_noise=replace(noise, stream=PRIOR).rows(0, len(prior.scale), draws).to(like),
        noise_of=groups, counts=grouped(model.row_counts, groups, int(groups.max()) + 1),
        log_weight=totals(model)[1], method=method, seed=noise.seed,
    )  # fmt: skip


def needed_bytes(features: LinearOperator, draws: int) -> tuple[float, float]:
    """Memory that CG and SGD take at least: columns as long as the weights, and as long as the rows worked on at once.

    CG multiplies all rows of a part at once, SGD a batch; where features are stored, and batches drawn row by row, SGD
    keeps the noise of every row.
    """
    (n, d), columns = features.shape, 8.0 * (1 + draws)
    at_once = max(part.shape[0] for _, part in features.parts())
    kept = n if stochastic.scattered(features) else 0
    passing = features.working_bytes(1 + draws)
    return columns * (12 * d + 3 * at_once) + passing, columns * (11 * d + kept) + passing


def scale_aware_start(sampler: Sampler) -> Precisions:
    """Precisions with which prior and noise have an equal share in the squares of the targets: one product with G."""
    n, features, theta = len(sampler.targets), sampler.features, sampler.prior_noise
    trace = float(over_parts(features, lambda _a, _b, part: part.matmat(theta).square().sum())) / sampler.draws
    noise = 2 * n / float(sampler.targets.square().sum().clamp_min(1e-300))
    return Precisions(*(torch.tensor([value], dtype=torch.float64) for value in (noise * trace / n or 1.0, noise)))


def _best_fraction(w: LinearOperator, z: Tensor) -> float:
    """`stochastic.best_fraction` with leverages from draws, part by part."""

    def sums(_start: int, _stop: int, part: LinearOperator) -> Tensor:
        weights = part.row_squares()
        return torch.stack([weights @ part.matmat(z).square().mean(1), weights.sum()])

    explained, weights = over_parts(w, sums)
    return stochastic.best_fraction(weights[None], explained[None] / weights.clamp_min(1e-300))


def _log_determinant(m: LinearOperator, probes: int, generator: Generator) -> Estimate:
    """log det(I + M), with as many probes at once as an eighth of the memory holds."""
    room = int(available_bytes() / 8 / (8.0 * m.shape[0] * min(QUADRATURE_STEPS, m.shape[0])))
    calls = ceil(probes / max(2, min(probes, room)))
    sizes = [max(2, len(part)) for part in torch.arange(probes).tensor_split(calls)]
    parts = [log_determinant(m, probes=size, steps=QUADRATURE_STEPS, generator=generator) for size in sizes]
    error = sum(part.standard_error**2 for part in parts) ** 0.5 / calls
    return Estimate(sum(part.value for part in parts) / calls, error)


def tune(
    sampler: Sampler, prior: DiagonalPrior, start: Precisions, *, tune_prior: bool, tune_noise: bool, report: Report,
    energies: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Sampler, Optimum]:  # fmt: skip
    """MacKay's fixed point on draws, from a start of the right scale; groups that fade away are pruned.

    `energies` gives ‖θ⋆‖² of every group at some precisions, where the mode is not the Gaussian model's own.
    """
    at, steps = start, sampler.method.em_steps if isinstance(sampler.method, SGD) else 50
    for step in range(steps if tune_prior or tune_noise else 0):
        setting = replace(prior, precision=at.prior)
        solution, right = sampler.solve(setting, at.noise)
        m = sampler.moments(setting, at.noise, solution, right)
        m = m if energies is None else replace(m, weights=energies(at.prior))
        sampler = sampler.warmed(setting, solution)
        new = _mackay(sampler, at, m, tune_prior, tune_noise)
        change = max(_log_change(new.prior, at.prior), _log_change(new.noise, at.noise))
        report(f"step {step + 1}, {solution.passes:.0f} passes, precisions moved by {change:.1%}")
        at = new
        if change < 1e-3:
            return sampler, Optimum(at, step + 1, True)
    fixed = not (tune_prior or tune_noise)
    return sampler, Optimum(at, 0 if fixed else steps, fixed)


def _mackay(sampler: Sampler, at: Precisions, m: _Moments, tune_prior: bool, tune_noise: bool) -> Precisions:
    prior, noise = at.prior, at.noise
    if tune_prior:
        prior = m.determined / m.weights.clamp_min(1e-300)
        if isinstance(sampler.method, CG):  # draws by stochastic gradients are too rough to prune by
            prior = torch.where(m.determined < 1e-2, torch.inf, prior)
    if tune_noise:
        noise = (sampler.counts - m.leverage).clamp_min(1e-3 * sampler.counts) / m.residual.clamp_min(1e-300)
    return Precisions(prior, noise)


def _log_change(new: Tensor, old: Tensor) -> float:
    finite = new.isfinite() & old.isfinite()
    pruned = bool((new.isfinite() != old.isfinite()).any())
    return 1.0 if pruned else float((new[finite] / old[finite]).log().abs().max()) if bool(finite.any()) else 0.0
