"""A posterior by draws, each of which is a solve: at any precisions, for some passes over the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Generator, Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import EvidenceParts, Precisions, effective_dimension, grouped
from lapwing.bayes.fits import Fit, Packed
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.methods import outputs
from lapwing.bayes.methods.interface import Evidence, WeightPosterior
from lapwing.bayes.methods.outputs import OutputUncertainty
from lapwing.bayes.noise import Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics import data_noise, in_units, prior_noise
from lapwing.linalg import solvers
from lapwing.linalg.estimators import Estimate, log_determinant
from lapwing.linalg.operators import Diagonal, LinearOperator, Product, Rows, over_parts
from lapwing.runtime.memory import available_bytes

if TYPE_CHECKING:
    from lapwing.bayes.methods.iterative import Solver


QUADRATURE_STEPS = 20
ROUGH = 0.05  # draws whose error bound is larger are reported as not converged


@final
@dataclass(frozen=True, eq=False)
class IterativeSampler:
    """The data, the noise of every draw and a solver: a posterior at any precisions, for some passes over the data."""

    features: LinearOperator  # (rows, d), with weights and the prior's scale
    targets: Tensor  # (rows,)
    normals: Rows  # (rows, draws), ξ
    prior_noise: Tensor  # (d, draws), θ̃
    noise_of: Tensor  # (rows,), the noise group of each row
    counts: Tensor  # (noise groups,)
    log_weight: float
    method: Solver
    seed: int
    warm: Tensor | None = None  # (d, 1 + draws), the last solution over the prior's scale
    ritz: tuple[Tensor, Tensor] | None = None  # (d, rank) and (rank,): a Krylov space of the features, for deflation

    @staticmethod
    def of(rows: GaussianSurrogate, prior: DiagonalPrior, method: Solver, noise: Noise, draws: int) -> IterativeSampler:
        """That of a Gaussian model, with the noise of its draws."""
        scaled = in_units(rows.features, prior.scale)
        return IterativeSampler(
            features=scaled, targets=rows.targets.to(scaled.like), normals=data_noise(rows, noise, draws),
            prior_noise=prior_noise(prior, noise, draws).to(scaled.like), noise_of=rows.noise_of, counts=rows.counts,
            log_weight=rows.log_weight, method=method, seed=noise.seed,
        )  # fmt: skip

    def on(self, fit: Fit, prior: DiagonalPrior) -> IterativeSampler:
        """The sampler of the rows that a fit has at its precisions: the same where they do not move."""
        return self.started_on(fit, prior) if fit.moves else self

    def started_on(self, fit: Fit, prior: DiagonalPrior) -> IterativeSampler:
        """A sampler of other rows, which starts from the solution for these."""
        fresh = IterativeSampler.of(fit.gaussian_surrogate, prior, self.method, Noise(self.seed), self.draws)
        return replace(fresh, warm=self.warm)

    @property
    def draws(self) -> int:
        """Number of draws."""
        return self.normals.shape[1]

    @property
    def largest(self) -> float:
        """The largest eigenvalue of ΦᵀΦ in units of the prior's scale, as far as a Krylov space is there to know it."""
        return 0.0 if self.ritz is None else float(self.ritz[1].max())

    def whitened(self, prior: DiagonalPrior, noise: Tensor) -> LinearOperator:
        """W, the features in units of noise and prior."""
        features = in_units(self.features, prior.precision.rsqrt()[prior.group_of])
        root = noise.sqrt()[self.noise_of]
        if bool((root == 1).all()):
            return features
        return Product(Diagonal(root.to(features.like)), features)

    def columns(self, start: int, stop: int, noise: Tensor) -> Tensor:  # (stop - start, 1 + draws)
        """Rows of the targets in units of their noise, and of the noise of every draw."""
        targets = noise.sqrt()[self.noise_of[start:stop]] * self.targets[start:stop]
        return torch.cat([targets[:, None], self.normals.rows(start, stop)], dim=1).to(self.targets)

    def solve(self, prior: DiagonalPrior, noise: Tensor) -> tuple[solvers.Solution, Tensor]:
        """The mean and every draw in units of the prior, and the right-hand sides of their normal equations."""
        w = self.whitened(prior, noise)
        anchors = torch.cat([torch.zeros_like(self.prior_noise[:, :1]), self.prior_noise], dim=1)
        start = anchors if self.warm is None else (self.warm * self._root(prior)[:, None]).to(anchors)
        right = over_parts(w, lambda a, b, part: part.rmatmat(self.columns(a, b, noise))) + anchors
        return self.method.solved(self, w, RightSides(self, prior, noise, right, start), anchors), right

    def deflation(self, prior: DiagonalPrior, noise: Tensor) -> solvers.Deflation | None:
        """The Krylov space of the features, rescaled to these precisions: good where its Ritz values are large."""
        if self.ritz is None:
            return None
        vectors, values = self.ritz
        root = prior.precision.rsqrt()[prior.group_of][:, None] * vectors * (noise.mean() * values).sqrt()
        squares, turn = torch.linalg.eigh(root.mT @ root)
        kept = squares > 1e-3 * squares.max().clamp_min(1e-300)  # the rest does not slow it
        basis = torch.linalg.qr(root @ turn[:, kept])[0]
        return solvers.Deflation(basis.to(self.features.like), squares[kept].to(self.features.like), 1.0)

    def _root(self, prior: DiagonalPrior) -> Tensor:
        """The square root of the precisions, 0 for a pruned weight, whose solution is its anchor."""
        root = prior.precision.sqrt()[prior.group_of]
        return torch.where(root.isfinite(), root, 0)

    def moments(self, prior: DiagonalPrior, noise: Tensor, solution: solvers.Solution, right: Tensor) -> SampledMoments:
        """What MacKay's update needs, from one product with the features."""
        x, groups = solution.x, len(prior.precision)
        mean, z = x[:, 0] * prior.precision.rsqrt()[prior.group_of], x[:, 1:]
        leverage, residual = (torch.zeros_like(noise) for _ in range(2))
        fit_energy = torch.zeros_like(z[0])
        w = self.whitened(prior, noise)
        for start, part in w.parts():
            rows, fitted = slice(start, start + part.shape[0]), part.matmat(x)
            groups_of = self.noise_of[rows]
            left = self.targets[rows] - fitted[:, 0] / noise.sqrt()[groups_of]
            residual += grouped(left.square(), groups_of, len(noise))
            leverage += grouped(fitted[:, 1:].square().mean(1), groups_of, len(noise))
            fit_energy += fitted[:, 1:].square().sum(0)
        product = self.method.image(w, z, right[:, 1:])
        in_function = grouped((z * product).mean(1), prior.group_of, groups)
        in_weights = prior.sizes - grouped(z.square().mean(1), prior.group_of, groups)
        share = (in_function / prior.sizes).clamp(0, 1)
        pruned = ~prior.precision.isfinite()
        determined = torch.where(pruned, 0, ((1 - share) * in_function + share * in_weights))
        return SampledMoments(
            determined=determined.clamp_min(0.0 if self.method.prunes else 0.5).minimum(prior.sizes),
            weights=grouped(mean.square(), prior.group_of, groups),
            leverage=leverage,
            residual=residual,
            fit_energy=fit_energy,
            penalty_energy=(z * (prior.std > 0)[:, None]).square().sum(0),
        )

    def log_determinant(self, prior: DiagonalPrior, noise: Tensor) -> Estimate:
        """log det(I + WᵀW), by stochastic quadrature."""
        w = self.whitened(prior, noise)
        return _log_determinant(w.T @ w, max(self.draws, 2), torch.Generator().manual_seed(self.seed))

    def warmed(self, prior: DiagonalPrior, solution: solvers.Solution) -> IterativeSampler:
        """The same sampler, to start next time from this solution."""
        return replace(self, warm=solution.x * prior.precision.rsqrt()[prior.group_of][:, None])


@final
@dataclass(frozen=True, eq=False)
class RightSides:
    """The columns to solve for at some precisions; those of the data are made block by block."""

    sampler: IterativeSampler
    prior: DiagonalPrior
    noise: Tensor
    right: Tensor  # (d, 1 + draws), of the normal equations
    start: Tensor  # (d, 1 + draws)

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.sampler.targets), 1 + self.sampler.draws)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.sampler.columns(start, stop, self.noise)


@final
@dataclass(frozen=True, eq=False)
class SampledPosterior(WeightPosterior):
    """Mean and draws that were solved for at one setting of the precisions; another one takes passes again."""

    sampler: IterativeSampler
    fit: Fit
    prior: DiagonalPrior
    noise_precision: Tensor
    solution: solvers.Solution = field(repr=False)  # in units of the prior: the mean, then the draws
    found: SampledMoments = field(repr=False)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    @staticmethod
    def of(
        sampler: IterativeSampler, fit: Fit, prior: DiagonalPrior, noise_precision: Tensor, diagnostics: Diagnostics
    ) -> SampledPosterior:
        """By one solve; the sampler starts the next one from there."""
        solution, right = sampler.solve(prior, noise_precision)
        found = sampler.moments(prior, noise_precision, solution, right)
        posterior = SampledPosterior(
            sampler.warmed(prior, solution), fit.at(prior, noise_precision), prior, noise_precision, solution, found,
            diagnostics,
        )  # fmt: skip
        worst = float((solution.residuals * right.norm(dim=0)).max())
        error = worst / (2 * max(posterior.effective_dimension.value, 1e-3) ** 0.5)
        told = replace(
            diagnostics, error_bound=error, converged=diagnostics.converged and error <= ROUGH,
            data_passes=solution.passes + 2,
        )  # fmt: skip
        return replace(posterior, diagnostics=told)

    @property
    def seed(self) -> int:  # type: ignore[override]
        """That of the noise behind every draw."""
        return self.sampler.seed

    def at(self, prior: DiagonalPrior, noise_precision: Tensor) -> SampledPosterior:
        fit = self.fit.at(prior, noise_precision)
        told = replace(self.diagnostics, converged=True)
        return SampledPosterior.of(self.sampler.on(fit, prior), fit, prior, noise_precision, told)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the weights, found when it is first asked for."""
        return self.fit.mean(self.surrogate_mean).double()

    def surrogate_mean(self) -> Tensor:
        return self.prior.std * self.solution.x[:, 0].double()

    @property
    def deviations(self) -> Tensor:
        return self.prior.std[:, None] * self.solution.x[:, 1:].double()

    @property
    def _kept(self) -> Tensor:  # (groups,), bool
        return self.prior.precision.isfinite()

    @property
    def effective_dimension(self) -> Estimate:
        size = max(int(self.prior.sizes[self._kept].sum()), 1)
        return effective_dimension(self.found.fit_energy, self.found.penalty_energy, size).combined

    def spread(
        self, features: LinearOperator, shape: tuple[int, ...], *, full: bool, batch_size: int | None = None  # noqa: ARG002
    ) -> OutputUncertainty:  # fmt: skip
        return outputs.of_deviations(self.prior.std, features, shape, self.deviations, self.prior_noise, full=full)

    def evidence(self) -> Evidence:
        """The log evidence here, when it is first asked for: a stochastic quadrature of twenty passes."""
        return self._evidence

    @cached_property
    def _evidence(self) -> Evidence:
        at, m = Precisions(self.prior.precision, self.noise_precision), self.found
        log_det = self.sampler.log_determinant(self.prior, self.noise_precision)
        residual, weights = m.residual, m.weights
        if not self.fit.is_closed_form:
            residual, weights = self.fit.fitted(at)
        log_noise = at.noise.log() - torch.tensor(2 * torch.pi, dtype=torch.float64).log()
        parts = EvidenceParts(
            fit=float(-0.5 * (at.noise * residual).sum()),
            penalty=float(-0.5 * (at.prior[self._kept] * weights[self._kept]).sum()),
            occam=-0.5 * log_det.value,
            normaliser=float(0.5 * (self.sampler.counts * log_noise).sum()) + self.sampler.log_weight,
            hyperprior=0.0,
        )
        return Evidence(parts, Estimate(parts.total, 0.5 * log_det.standard_error))

    def facts(self) -> dict[str, Any]:
        return self.fit.facts()

    @property
    def has_residuals(self) -> bool:
        return True

    def check_changeable(self) -> None:
        """Solves start from these."""

    def with_fit(self, fit: Fit) -> SampledPosterior:
        sampler = self.sampler.started_on(fit, self.prior)
        return SampledPosterior.of(sampler, fit, self.prior, self.noise_precision, self.diagnostics)

    def pack(self) -> Packed | None:
        return None  # its draws are all that can be kept without the data


@final
@dataclass(frozen=True, eq=False)
class SampledMoments:
    """What MacKay's update takes, from draws."""

    determined: Tensor  # (groups,)
    weights: Tensor  # (groups,)
    leverage: Tensor  # (noise groups,)
    residual: Tensor  # (noise groups,)
    fit_energy: Tensor  # (draws,)
    penalty_energy: Tensor  # (draws,)


def _log_determinant(m: LinearOperator, probes: int, generator: Generator) -> Estimate:
    """log det(I + M), with as many probes at once as an eighth of the memory holds."""
    room = int(available_bytes() / 8 / (8.0 * m.shape[0] * min(QUADRATURE_STEPS, m.shape[0])))
    calls = ceil(probes / max(2, min(probes, room)))
    sizes = [max(2, len(part)) for part in torch.arange(probes).tensor_split(calls)]
    parts = [log_determinant(m, probes=size, steps=QUADRATURE_STEPS, generator=generator) for size in sizes]
    error = sum(part.standard_error**2 for part in parts) ** 0.5 / calls
    return Estimate(sum(part.value for part in parts) / calls, error)
