"""Hyperparameters for scans whose Gram matrices do not fit: gradients by preconditioned CG and random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import Diagonal, LinearOperator
from lapwing.linalg.progress import Report, reporter
from lapwing.linalg.solvers import CG, Nystrom
from lapwing.tomography.filter_prior import FilterPrior
from lapwing.tomography.linear import Linearised
from lapwing.tomography.type_ii.result import (
    EvidenceAt,
    Hyperprior,
    Parameters,
    Setting,
    TypeII,
    notes,
    starting_noise,
)


@final
@dataclass(frozen=True)
class MatrixFree:
    """How gradients are estimated and followed.

    Every step solves with Σ_yy for the targets and for `probes` columns of random signs, the same at every step, each
    from its last solution; a Nyström preconditioner of `rank` is made anew every `refresh` steps. Adam's step length is
    halved every third of the steps.
    """

    steps: int = 30
    learning_rate: float = 0.3
    probes: int = 8
    rank: int = 100
    refresh: int = 10
    rtol: float = 1e-2
    max_cg_steps: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.probes, self.refresh, self.max_cg_steps) < 1 or self.rank < 0:
            raise ValueError(f"{self}: expected at least one step, probe and solver step, and no negative rank")


@final
@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of log evidence, and its standard error from the scatter of the probes."""

    value: Tensor  # (parameters,)
    standard_error: Tensor  # (parameters,)
    cg_steps: int
    solutions: Tensor  # (n, 1 + probes)
    residual: float  # the largest relative one


@final
@dataclass(frozen=True, eq=False)
class Probes:
    """Random signs over the data, and what the weights see of them: (A J)ᵀ signs, the same at every step."""

    signs: Tensor  # (n, probes)
    seen: Tensor  # (p, probes)

    @staticmethod
    def of(linear: Linearised, count: int, generator: Generator) -> Probes:
        """One reverse pass for each."""
        signs = (2 * torch.randint(2, (len(linear.targets), count), generator=generator) - 1).double()
        return Probes(signs, _back(linear) @ signs)


def _back(linear: Linearised) -> LinearOperator:
    return (linear.projector.operator @ linear.jacobian).T


def system(linear: Linearised, prior: FilterPrior, noise_variance: float) -> tuple[LinearOperator, LinearOperator]:
    """A J Σ Jᵀ Aᵀ, and the same plus the noise: products alone."""
    root = linear.projector.operator @ (linear.jacobian @ prior.root())
    gram = root @ root.T
    return gram, gram + Diagonal(torch.full((gram.shape[0],), noise_variance, dtype=torch.float64))


def gradient(
    linear: Linearised, parameters: Parameters, vector: Tensor, probes: Probes, solver: CG, *,
    evidence_at: EvidenceAt = "mode", start: Tensor | None = None,
) -> Gradient:  # fmt: skip
    """∂ log evidence / ∂ hyperparameters: ½ vᵀ ∂Σ v with Σ v = t, less ½ E[(Σ⁻¹ s)ᵀ ∂Σ s] over random signs s.

    In the space of the weights both are small sums over filters: one reverse pass for each column, however many
    hyperparameters there are.
    """
    at = vector.detach().clone().requires_grad_()
    prior, noise = parameters.unpack(at)
    fixed = FilterPrior(prior.blocks, prior.log_variance.detach(), prior.log_lengthscale.detach())
    _, operator = system(linear, fixed, float(noise.detach()))
    signs, right = probes.signs, probes.seen
    solution = solver.solve(operator, torch.cat([linear.targets[:, None], signs], dim=1), start)
    seen = _back(linear) @ solution.x
    v, left = solution.x[:, :1], solution.x[:, 1:]
    terms = []
    for probe in range(signs.shape[1]):
        occam = -_quadratic(prior, noise, seen[:, probe + 1], right[:, probe], left[:, probe], signs[:, probe])
        terms.append(torch.autograd.grad(0.5 * occam, at, retain_graph=True, allow_unused=True)[0])
    scatter = torch.stack(terms)
    (fit,) = torch.autograd.grad(_fit(linear, prior, noise, seen[:, 0], v[:, 0], evidence_at), at)
    return Gradient(
        fit + scatter.mean(0), scatter.std(0) / len(scatter) ** 0.5 if len(scatter) > 1 else torch.zeros_like(at),
        solution.steps, solution.x, float(solution.residuals.max()),
    )  # fmt: skip


def _quadratic(prior: FilterPrior, noise: Tensor, a: Tensor, b: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """aᵀ Σ_θ b + noise · leftᵀ right, differentiable in the hyperparameters."""
    total = noise * (left @ right)
    for number, block in enumerate(prior.blocks):
        pairs = block.of(a).mT @ block.of(b)  # (taps, taps), summed over filters
        total = total + (prior.covariance(number) * pairs).sum()
    return total


def _fit(
    linear: Linearised, prior: FilterPrior, noise: Tensor, seen: Tensor, v: Tensor, evidence_at: EvidenceAt
) -> Tensor:
    """What of the log evidence is not its determinant, up to a constant, with the right gradient."""
    if evidence_at == "mode":
        return 0.5 * _quadratic(prior, noise, seen, seen, v, v)
    misfit = linear.reconstruction.misfit**2 * len(linear.targets)
    energy = torch.stack([
        (torch.linalg.inv(prior.covariance(number)) * (block.of(linear.weights).mT @ block.of(linear.weights))).sum()
        for number, block in enumerate(prior.blocks)
    ]).sum()  # fmt: skip
    return -0.5 * (misfit / noise + energy)


def matrix_free(
    linear: Linearised, prior: FilterPrior | None = None, how: MatrixFree | None = None, *,
    hyperprior: Hyperprior | None = None, noise_std: float | None = None, evidence_at: EvidenceAt = "mode",
    progress: bool | Report | None = None,
) -> TypeII:  # fmt: skip
    """Hyperparameters and noise near a maximum of log evidence + log hyperprior, by Adam on estimated gradients."""
    how, report = how or MatrixFree(), reporter(progress)
    begin = prior or FilterPrior.start(linear.blocks)
    parameters = Parameters(begin, None if noise_std is None else noise_std**2)
    scale = starting_noise(linear) if noise_std is None else noise_std**2
    bounds = torch.tensor(parameters.bounds(scale), dtype=torch.float64)
    generator = Generator().manual_seed(how.seed)
    probes = Probes.of(linear, how.probes, generator)
    vector = parameters.pack(scale).requires_grad_()
    descent = torch.optim.Adam([vector], lr=how.learning_rate)
    schedule = torch.optim.lr_scheduler.StepLR(descent, max(1, how.steps // 3), 0.5)
    trace, start, preconditioner, cg_steps, residual = [], None, None, 0, 0.0
    for step in range(how.steps):
        current, noise = parameters.unpack(vector.detach().clone())
        if how.rank and (preconditioner is None or step % how.refresh == 0):
            report(f"hyperparameters, step {step + 1} of {how.steps}: a preconditioner of rank {how.rank}")
            gram, _ = system(linear, current, float(noise))
            preconditioner = Nystrom.of(
                gram, rank=min(how.rank, len(linear.targets)), shift=float(noise), generator=generator
            )
        solver = CG(how.rtol, how.max_cg_steps, preconditioner)
        found = gradient(linear, parameters, vector, probes, solver, evidence_at=evidence_at, start=start)
        start, cg_steps, residual = found.solutions, cg_steps + found.cg_steps, found.residual
        total = found.value + _hyper_gradient(hyperprior, parameters, vector)
        trace.append(Setting(current, float(noise) ** 0.5))
        report(f"hyperparameters, step {step + 1} of {how.steps}: {found.cg_steps} steps of CG")
        descent.zero_grad()
        vector.grad = -total
        descent.step()
        schedule.step()
        with torch.no_grad():
            vector.clamp_(bounds[:, 0], bounds[:, 1])
    report("")
    settled, noise = parameters.unpack(vector.detach())
    trace.append(Setting(settled, float(noise) ** 0.5))
    said = notes(settled, hyperprior)
    if residual > how.rtol:
        said += (f"the last solves reached a residual of {residual:.1e} only: allow more steps or a larger rank",)
    return TypeII(
        settled, float(noise) ** 0.5, tuple(trace),
        f"matrix-free: {how.probes} probes, rank {how.rank}, {cg_steps} steps of CG", how.steps,
        residual <= how.rtol, said,
    )  # fmt: skip


def _hyper_gradient(hyperprior: Hyperprior | None, parameters: Parameters, vector: Tensor) -> Tensor:
    if hyperprior is None:
        return torch.zeros_like(vector)
    at = vector.detach().clone().requires_grad_()
    value = hyperprior.log_density(parameters.unpack(at)[0])
    if not value.requires_grad:
        return torch.zeros_like(vector)
    (found,) = torch.autograd.grad(value, at)
    return found
