"""Posteriors from solves at one setting of the precisions: what several precisions need beyond exact sizes.

A draw is the minimiser of ½‖ξ − W z‖² + ½‖z − θ̃‖² with W the features in units of noise and prior. Precisions are
tuned by MacKay's fixed point with γ from the draws (Antorán et al. 2023): noise is reused and solves start from
the solution at the precisions before.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, Literal, final

import torch
from torch import Generator, Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import (
    EvidenceParts,
    Precisions,
    effective_dimension,
    grouped,
)
from lapwing.bayes.fits import Fit, Packed, fit_of
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods import outputs
from lapwing.bayes.methods.interface import Evidence, Method, Run, WeightPosterior
from lapwing.bayes.methods.outputs import OutputUncertainty
from lapwing.bayes.methods.tuning_on_draws import begin, tune, what_is_free
from lapwing.bayes.noise import Noise
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.statistics import LOWEST_RATIO, data_noise, in_units, prior_noise
from lapwing.linalg import solvers, stochastic
from lapwing.linalg.estimators import Estimate, log_determinant
from lapwing.linalg.operators import Diagonal, LinearOperator, Product, Rows, check_adjoint, over_parts
from lapwing.runtime.memory import available_bytes

QUADRATURE_STEPS = 20
ROUGH = 0.05  # draws whose error bound is larger are reported as not converged


class Solver(Method):
    """A method that solves for the mean and every draw at one setting of the precisions after another."""

    prunes: ClassVar[bool]  # whether draws are fine enough to tell that a group of weights is not needed

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Steps of MacKay's fixed point at most."""

    @property
    def lowest_noise_ratio(self) -> float:
        """The least ratio of noise to prior variance, over the largest eigenvalue, that solves can tell from none."""
        return LOWEST_RATIO

    @abstractmethod
    def solved(
        self, sampler: IterativeSampler, w: LinearOperator, at: _RightSides, anchors: Tensor
    ) -> solvers.Solution:
        """The minimisers of ½‖ξ − W z‖² + ½‖z − θ̃‖² for all columns at once."""

    @abstractmethod
    def image(self, w: LinearOperator, z: Tensor, right: Tensor) -> Tensor:
        """WᵀW z for draws z with these right-hand sides."""

    def solve(self, model: LinearModel, prior: Prior, run: Run) -> SampledPosterior:
        """By solves, from where a small Krylov space says to begin."""
        check_adjoint(model.features, generator=torch.Generator().manual_seed(0))
        on = run.prior_on(prior, model)
        fit = fit_of(model, on, curvature=run.curvature)
        sampler = IterativeSampler.of(fit.gaussian_surrogate, on, self, run.noise, run.draws)
        start, sampler = begin(sampler, fit, on, model, prior, run)
        free = what_is_free(
            sampler, on, tune_prior=prior.free(len(on.precision)), tune_noise=model.likelihood.tunes_noise
        )
        sampler, optimum = tune(sampler, on, start, free, run.report, fit)
        told = replace(run.described(model, replace(on, precision=optimum.at.prior), optimum), method=repr(self))
        return SampledPosterior.of(sampler, fit, replace(on, precision=optimum.at.prior), optimum.at.noise, told)


@final
@dataclass(frozen=True)
class CG(Solver):
    """Conjugate gradients from the prior draw, for several precisions or noises at sizes beyond `Exact`.

    Precisions are found by MacKay's fixed point on the draws, the same noise and warm starts at every step. `rank`
    is that of a Nyström preconditioner, made once per step at the cost of as many columns; 0 is none.

    Parameters
    ----------
    rtol : float
        Relative residual at which a solve ends.
    max_steps : int
        Largest number of steps.
    rank : int
        Rank of a Nyström preconditioner. 0 is none.

    Examples
    --------
    >>> import lapwing as lw
    >>> model = lw.LinearModel([[3.0, 0.0], [0.0, 1.0]], [1.0, 2.0], lw.Gaussian(1.0))
    >>> lw.infer(model, prior=lw.Isotropic(1.0), method=CG()).mean
    tensor([0.3000, 1.0000], dtype=torch.float64)
    """

    rtol: float = 1e-4
    max_steps: int = 1000
    rank: int = 0
    prunes = True

    @property
    def rounds(self) -> int:
        return 50

    @property
    def lowest_noise_ratio(self) -> float:
        return max(self.rtol**2, LOWEST_RATIO)  # residuals below rtol of the signal are those of the solver

    def needed_bytes(self, model: LinearModel, draws: int) -> float:
        """Columns as long as the weights, and as long as the rows of a part."""
        features = model.features
        at_once = max(part.shape[0] for _, part in features.parts())
        return 8.0 * (1 + draws) * (12 * features.shape[1] + 3 * at_once) + features.costs.working_bytes(1 + draws)

    def solved(
        self, sampler: IterativeSampler, w: LinearOperator, at: _RightSides, anchors: Tensor
    ) -> solvers.Solution:
        m = w.T @ w
        near = self._nystrom(m, sampler.seed) if self.rank else sampler.deflation(at.prior, at.noise)
        system = Diagonal(torch.ones_like(anchors[:, 0])) + m
        return solvers.ConjugateGradients(self.rtol, self.max_steps, near).solve(system, at.right, at.start)

    def _nystrom(self, m: LinearOperator, seed: int) -> solvers.Nystrom:
        generator = torch.Generator().manual_seed(seed)
        return solvers.Nystrom.of(m, rank=min(self.rank, m.shape[0]), shift=1.0, generator=generator)

    def image(self, w: LinearOperator, z: Tensor, right: Tensor) -> Tensor:  # noqa: ARG002
        return right - z  # where z is converged H z is the right-hand side


@final
@dataclass(frozen=True)
class SGD(Solver):
    """Stochastic gradients, for data too many for whole passes: the published sample-then-optimise EM loop.

    `objective` says where the noise of a draw stands: "L" in the targets, "L'" in the anchor (less gradient noise
    where the data determine less than half of what they could), "mixed" shared out by leverage (never worse than
    either). Step lengths come from a short power iteration.

    Parameters
    ----------
    objective : "L", "L'" or "mixed"
        Where the noise of a draw stands.
    batch_size : int
        Examples per step.
    steps : int, optional
        Steps of each solve. Chosen from the size of the data by default.
    em_steps : int
        Rounds of solving and tuning.

    Raises
    ------
    ValueError
        If the objective is not known, or a number is below one.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> model = lw.LinearModel(x, x @ torch.tensor([1.0, -2.0, 0.5]).double(), lw.Gaussian(0.5))
    >>> lw.infer(model, prior=lw.Isotropic(1.0), method=SGD(steps=200), draws=4).draws.shape
    torch.Size([4, 3])
    """

    objective: Literal["L", "L'", "mixed"] = "mixed"
    batch_size: int = 128
    steps: int | None = None  # minibatches per solve; None is 20 epochs, at least 2,000
    em_steps: int = 10
    prunes = False  # its draws are too rough to prune by

    def __post_init__(self) -> None:
        if self.objective not in ("L", "L'", "mixed"):
            raise ValueError(f"objective is {self.objective!r}, expected 'L', \"L'\" or 'mixed'")
        if self.batch_size < 1 or self.em_steps < 1 or (self.steps is not None and self.steps < 1):
            raise ValueError(
                f"batch_size is {self.batch_size}, steps {self.steps}, em_steps {self.em_steps}: all must be positive"
            )

    @property
    def rounds(self) -> int:
        return self.em_steps

    def needed_bytes(self, model: LinearModel, draws: int) -> float:
        """Columns as long as the weights; where batches are drawn row by row, the noise of every row too."""
        features = model.features
        kept = features.shape[0] if stochastic.scattered(features) else 0
        return 8.0 * (1 + draws) * (11 * features.shape[1] + kept) + features.costs.working_bytes(1 + draws)

    def solved(
        self, sampler: IterativeSampler, w: LinearOperator, at: _RightSides, anchors: Tensor
    ) -> solvers.Solution:
        n, d = w.shape
        batch = min(self.batch_size, n)
        steps = self.steps or max(2000, 20 * ceil(n / self.batch_size))
        generator = torch.Generator().manual_seed(sampler.seed)
        targets = at.rows(0, n) if stochastic.scattered(w) else at
        objective = stochastic.Objective(w, targets, anchors, 1.0, self._fraction(sampler, w, at.start))
        if n < d:  # fewer data than weights: coordinates of the dual have no gradient noise at the end
            return stochastic.DualDescent(batch_size=batch, steps=steps).solve(objective, generator=generator)
        return stochastic.StochasticGradients(batch_size=batch, steps=steps).solve(
            objective, generator=generator, start=at.start
        )

    def _fraction(self, sampler: IterativeSampler, w: LinearOperator, start: Tensor) -> float:
        """The share of a draw's noise that stands in the targets."""
        known = {"L": 1.0, "L'": 0.0}.get(self.objective)
        if known is not None:
            return known
        return 0.0 if sampler.warm is None else _best_fraction(w, start[:, 1:])

    def image(self, w: LinearOperator, z: Tensor, right: Tensor) -> Tensor:  # noqa: ARG002
        return over_parts(w, lambda _start, _stop, part: part.rmatmat(part.matmat(z)))  # these end near the solution


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
        return self.method.solved(self, w, _RightSides(self, prior, noise, right, start), anchors), right

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
class _RightSides:
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
