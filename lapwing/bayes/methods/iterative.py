"""Posteriors from solves at one setting of the precisions: what several precisions need beyond exact sizes.

A draw is the minimiser of ½‖ξ − W z‖² + ½‖z − θ̃‖² with W the features in units of noise and prior. Precisions are
tuned by MacKay's fixed point with γ from the draws (Antorán et al. 2023): noise is reused and solves start from
the solution at the precisions before.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from lapwing.bayes.fits import fit_of
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.interface import Method, Run
from lapwing.bayes.methods.sampled import IterativeSampler, RightSides, SampledPosterior
from lapwing.bayes.methods.tuning_on_draws import begin, tune, what_is_free
from lapwing.bayes.priors import Prior
from lapwing.bayes.statistics import LOWEST_RATIO
from lapwing.linalg import solvers, stochastic
from lapwing.linalg.operators import Diagonal, LinearOperator, check_adjoint, over_parts


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
    def solved(self, sampler: IterativeSampler, w: LinearOperator, at: RightSides, anchors: Tensor) -> solvers.Solution:
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

    def solved(self, sampler: IterativeSampler, w: LinearOperator, at: RightSides, anchors: Tensor) -> solvers.Solution:
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

    def solved(self, sampler: IterativeSampler, w: LinearOperator, at: RightSides, anchors: Tensor) -> solvers.Solution:
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


def _best_fraction(w: LinearOperator, z: Tensor) -> float:
    """`stochastic.best_fraction` with leverages from draws, part by part."""

    def sums(_start: int, _stop: int, part: LinearOperator) -> Tensor:
        weights = part.row_squares()
        return torch.stack([weights @ part.matmat(z).square().mean(1), weights.sum()])

    explained, weights = over_parts(w, sums)
    return stochastic.best_fraction(weights[None], explained[None] / weights.clamp_min(1e-300))
