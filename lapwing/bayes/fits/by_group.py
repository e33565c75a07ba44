"""The evidence of labels under several precisions, on the side of the data: one Gram matrix for every group of weights.

At precisions λ the outputs have the prior covariance K = Σ_g Φ_g Φ_gᵀ / λ_g. Mode, determinant and effective dimension
of every group follow from K and those matrices, so that no setting of λ touches the weights again: made for networks
with many more weights than observed outputs. The mode is θ⋆ = A⁻¹Φᵀa with outputs h = offset + K a, found by Newton
steps in a (as in Rasmussen and Williams 2006, §3.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import Moments, Optimum, Precisions, Problem, grouped
from lapwing.bayes.likelihoods import Likelihood, PerDatum
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import LinearOperator
from lapwing.linalg.solvers import NotConverged, Solution

GAP = 1e-10  # nats between the loss and its minimum
LARGEST_GAP = 1e-6  # nats, where round-off of the loss ends the search
SHORTEST = 1e-10  # share of a Newton step
MAX_STEPS = 100
GRADIENT = 0.02  # nats that the evidence still rises by, for a factor e of any precision
TUNING_STEPS = 60
LOWEST_RATIO = 1e-8  # of a precision over the largest eigenvalue: below, round-off in K rules


@final
@dataclass(frozen=True, eq=False)
class DualMode:
    """The mode at some precisions, as coefficients of the data."""

    coefficients: Tensor  # (rows,), a
    outputs: Tensor  # as the likelihood takes them
    log_prob: float
    gap: float  # nats that one more Newton step would gain
    steps: int


@final
@dataclass(frozen=True, eq=False)
class Whitening:
    """I + SᵀKS by its Cholesky factor, with S Sᵀ = B the curvature of the labels: the posterior on the data's side."""

    root: LinearOperator  # Sᵀ: (rows, rows)
    factor: Tensor  # (rows, rows), lower

    def solve(self, x: Tensor) -> Tensor:  # (rows, k)
        """S (I + SᵀKS)⁻¹ Sᵀ x = (K + B⁻¹)⁻¹ x."""
        return self.root.rmatmat(torch.cholesky_solve(self.root @ x, self.factor))

    @property
    def log_det(self) -> Tensor:
        """log det(I + A⁻¹M)."""
        return 2 * self.factor.diagonal().log().sum()


@final
@dataclass(frozen=True, eq=False)
class ByGroup:
    """The loss of a linear model under its labels, known through one Gram matrix for every group of its prior."""

    grams: Tensor  # (groups, rows, rows), float64
    prior: DiagonalPrior  # its scale and groups; precisions are given at every call
    likelihood: Likelihood
    targets: Tensor  # (n, ...)
    weights: Tensor  # (n,)
    offset: Tensor  # (rows,), outputs at weights of zero
    centre: Tensor  # as the likelihood takes outputs: those of the network
    energies: Tensor  # (groups,), ‖w̄‖² of the network's own weights, in units of the prior's scale

    @staticmethod
    def of(model: LinearModel, prior: DiagonalPrior, features: Tensor) -> ByGroup:
        """From the stored features, (rows, d), of a linearised network."""
        if model.likelihood.constant_curvature or model.point is None or model.offset is None:
            raise ValueError("the evidence by groups is for labels and a linearised network: use infer() for others")
        weights = model.point.weights.double()
        outputs = model.likelihood.reshape_outputs(features.double() @ weights + model.offset, model.targets)
        energies = grouped((weights / prior.scale).square(), prior.group_of, len(prior.precision))
        return ByGroup(
            cross_grams(features, features, prior), prior, model.likelihood, model.targets, model.weights,
            model.offset.double(), outputs, energies,
        )  # fmt: skip

    def tied(self) -> ByGroup:
        """The same with one precision for all groups."""
        one, all_of_them = torch.ones(1, dtype=torch.float64), torch.zeros_like(self.prior.group_of)
        prior = DiagonalPrior(self.prior.scale, all_of_them, one, ("all",))
        return replace(
            self, grams=self.grams.sum(0, keepdim=True), prior=prior, energies=self.energies.sum(0, keepdim=True)
        )

    def kernel(self, precision: Tensor) -> Tensor:  # (rows, rows)
        """The prior covariance of the outputs."""
        return combined(self.grams, precision)

    def whitening(self, kernel: Tensor, outputs: Tensor) -> Whitening:
        """The posterior at a prior covariance, with the curvature taken at these outputs."""
        of = self.likelihood
        root = PerDatum(outputs, self.weights, self.targets, of.hessian_root_adjoint, of.hessian_root)
        matrix = root @ (root @ kernel).mT
        matrix.diagonal().add_(1)
        return Whitening(root, torch.linalg.cholesky(matrix))

    def mode(self, kernel: Tensor, near: DualMode | None = None) -> DualMode:
        """The minimum of −log p + ½‖θ‖²_A, by damped Newton steps."""
        rows = len(kernel)
        a = torch.zeros(rows, dtype=torch.float64) if near is None else near.coefficients

        def loss(coefficients: Tensor, product: Tensor) -> float:
            return 0.5 * float(coefficients @ product) - self._log_prob(product)

        product, settled = kernel @ a, False
        here = loss(a, product)
        for step in range(MAX_STEPS + 1):
            outputs = self._outputs(product)
            residual = a - self.likelihood.gradient(outputs, self.targets, self.weights).reshape(-1)
            pulled = kernel @ residual
            direction = self.whitening(kernel, outputs).solve(pulled[:, None])[:, 0] - residual
            gap = -0.5 * float(direction @ pulled)
            if gap <= GAP or settled or step == MAX_STEPS:
                break
            along, length = kernel @ direction, 1.0
            while length > SHORTEST and not loss(a + length * direction, product + length * along) < here:
                length /= 2
            a, product = a + length * direction, product + length * along
            before, here = here, loss(a, product)
            settled = before - here <= 1e-14 * abs(here)  # round-off of the loss
        if not gap <= LARGEST_GAP:
            raise NotConverged(
                f"the linear model's mode is still {gap:.1g} nats away after {step} steps: use stiffer precisions",
                Solution(a[:, None], residual.norm()[None], step, LARGEST_GAP),
            )
        return DualMode(a, outputs, self._log_prob(product), gap, step)

    def _outputs(self, product: Tensor) -> Tensor:
        return self.likelihood.reshape_outputs(self.offset + product, self.targets)

    def _log_prob(self, product: Tensor) -> float:
        return float(self.likelihood.log_prob(self._outputs(product), self.targets, self.weights))

    def at_mode(self, curvature_at: Tensor) -> Problem:
        """The evidence at the mode of the linear model, the curvature of the labels taken once, at these outputs."""
        near: DualMode | None = None

        def fit(precision: Tensor, kernel: Tensor) -> tuple[float, Tensor]:
            nonlocal near
            near = self.mode(kernel, near)
            a = near.coefficients
            return near.log_prob, torch.einsum("i,gij,j->g", a, self.grams, a) / precision.square()

        return self._problem(curvature_at, fit)

    def evidence_at_weights(self) -> Problem:
        """The evidence at the network's own weights."""
        log_prob = float(self.likelihood.log_prob(self.centre, self.targets, self.weights))
        return self._problem(self.centre, lambda _precision, _kernel: (log_prob, self.energies))

    def _problem(self, curvature_at: Tensor, fit: Callable[[Tensor, Tensor], tuple[float, Tensor]]) -> Problem:
        def moments(at: Precisions) -> Moments:
            kernel = self.kernel(at.prior)
            log_prob, energies = fit(at.prior, kernel)
            whitening = self.whitening(kernel, curvature_at)
            inverse = whitening.solve(torch.eye(len(kernel), dtype=torch.float64))
            determined = torch.einsum("ij,gij->g", inverse, self.grams) / at.prior
            return Moments(
                torch.tensor([-2 * log_prob], dtype=torch.float64), energies, determined,
                determined.sum().reshape(1), whitening.log_det,
            )  # fmt: skip

        largest = float(torch.linalg.eigvalsh(self.grams.sum(0))[-1])
        return Problem(
            moments, torch.zeros(1, dtype=torch.float64), self.prior.sizes, 0.0, largest,
            lowest_ratio=LOWEST_RATIO * largest, one_by_one=True, points=13, tune_noise=False,
        )  # fmt: skip

    def covariance(self, precision: Tensor, curvature_at: Tensor, own: Tensor, cross: Tensor) -> Tensor:  # (m, c, c)
        """The posterior covariance of the outputs of each of m new data.

        `own`, (groups, m, c, c), and `cross`, (groups, m · c, rows), are their Gram matrices with themselves and with
        the training data.
        """
        whitening, link = self.whitening(self.kernel(precision), curvature_at), combined(cross, precision)
        half = torch.linalg.solve_triangular(whitening.factor, whitening.root @ link.mT, upper=False)
        half = half.mT.reshape(*own.shape[1:3], -1)
        return combined(own, precision) - half @ half.mT


def combined(grams: Tensor, precision: Tensor) -> Tensor:
    """Σ_g K_g / λ_g."""
    return torch.tensordot(1 / precision, grams, dims=1)


def cross_grams(left: Tensor, right: Tensor, prior: DiagonalPrior) -> Tensor:  # (groups, rows of left, rows of right)
    """Φ_g Φ'_gᵀ for every group of weights, from stored features in units of the prior's scale."""
    found = []
    for group in range(len(prior.precision)):
        chosen = (prior.group_of == group).nonzero().flatten()
        ours, theirs = (part[:, chosen].double() * prior.scale[chosen] for part in (left, right))
        found.append(ours @ theirs.mT)
    return torch.stack(found)


def own_grams(features: Tensor, outputs: int, prior: DiagonalPrior) -> Tensor:  # (groups, m, c, c)
    """The same for every datum with itself alone."""
    found = []
    for group in range(len(prior.precision)):
        chosen = (prior.group_of == group).nonzero().flatten()
        rows = (features[:, chosen].double() * prior.scale[chosen]).reshape(-1, outputs, len(chosen))
        found.append(rows @ rows.mT)
    return torch.stack(found)


def maximised(problem: Problem, start: Tensor | None = None, *, tolerance: float = GRADIENT) -> Optimum:
    """The precisions of largest evidence; without a start from the best of a grid on which all are tied."""
    one = torch.ones(1, dtype=torch.float64)
    at = Precisions(torch.ones_like(problem.sizes) if start is None else start, one)
    at = evidence.scan(problem, at) if start is None else at
    return evidence.maximise(
        problem, at, max_steps=TUNING_STEPS, tolerance=tolerance, lowest=problem.lowest_ratio
    )  # fmt: skip
