"""Hyperparameters for scans whose Gram matrices do not fit: gradients by preconditioned CG and random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import Diagonal, LinearOperator
from lapwing.linalg.solvers import ConjugateGradients, Nystrom
from lapwing.runtime.progress import Report, reporter
from lapwing.studies.tomography.filter_prior import FilterPrior, distances
from lapwing.studies.tomography.linear import Linearised
from lapwing.studies.tomography.type_ii.result import (
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

    Parameters
    ----------
    steps : int
        Of Adam.
    learning_rate : float
        Of Adam, in log hyperparameters.
    probes : int
        Columns of random signs.
    rank : int
        Of the preconditioner.
    refresh : int
        Steps between preconditioners.
    rtol : float
        Relative residual of solves.
    max_cg_steps : int
        Of a solve.
    seed : int
        Of all random numbers.

    Raises
    ------
    ValueError
        If a number of steps or probes is below one, or the rank is negative.

    Examples
    --------
    >>> MatrixFree(steps=10).probes
    8
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
    linear: Linearised, parameters: Parameters, vector: Tensor, probes: Probes, solver: ConjugateGradients, *,
    evidence_at: EvidenceAt = "mode", start: Tensor | None = None,
) -> Gradient:  # fmt: skip
    """∂ log evidence / ∂ hyperparameters: ½ vᵀ ∂Σ v with Σ v = t, less ½ E[(Σ⁻¹ s)ᵀ ∂Σ s] over random signs s.

    In the space of the weights both are small sums over filters: one reverse pass for each column, however many
    hyperparameters there are; Σ is linear in the tap covariances, whose derivatives are worked out once.
    """
    at = vector.detach()
    prior, noise = parameters.unpack(at)
    _, operator = system(linear, prior, float(noise))
    signs = probes.signs
    solution = solver.solve(operator, torch.cat([linear.targets[:, None], signs], dim=1), start)
    seen, v, left = _back(linear) @ solution.x, solution.x[:, :1], solution.x[:, 1:]
    slopes: Any = torch.autograd.functional.jacobian(lambda x: _coefficients(*parameters.unpack(x)), at, vectorize=True)
    scatter = -0.5 * _quadratics(prior, (seen[:, 1:], probes.seen), (left, signs)) @ slopes  # (probes, parameters)
    if evidence_at == "mode":
        fit = 0.5 * _quadratics(prior, (seen[:, :1], seen[:, :1]), (v, v))[0] @ slopes
    else:
        fit = _fit_at_weights(linear, parameters, at)
    return Gradient(
        fit + scatter.mean(0), scatter.std(0) / len(scatter) ** 0.5 if len(scatter) > 1 else torch.zeros_like(at),
        solution.steps, solution.x, float(solution.residuals.max()),
    )  # fmt: skip


def _coefficients(prior: FilterPrior, noise: Tensor) -> Tensor:  # (classes of all blocks + 1,)
    """What Σ_yy is linear in: the tap covariances of every block, and the noise variance."""
    return torch.cat([*(prior.coefficients(number) for number in range(len(prior.blocks))), noise[None]])


def _quadratics(prior: FilterPrior, seen: tuple[Tensor, Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
    """Bilinear forms of columns by the derivative of Σ_yy to each coefficient: (k, coefficients), sums over filters."""
    parts = [
        torch.einsum("fik,fjk,cij->kc", block.of(seen[0]), block.of(seen[1]), distances(block.side)[1])
        for block in prior.blocks
    ]
    return torch.cat([*parts, (data[0] * data[1]).sum(0)[:, None]], dim=1)


def _fit_at_weights(linear: Linearised, parameters: Parameters, vector: Tensor) -> Tensor:
    """The gradient of what of the bound at the network's own weights is not its determinant."""
    at = vector.clone().requires_grad_()
    prior, noise = parameters.unpack(at)
    misfit = linear.reconstruction.misfit**2 * len(linear.targets)
    energy = torch.stack([
        (torch.linalg.inv(prior.covariance(number)) * (block.of(linear.weights).mT @ block.of(linear.weights))).sum()
        for number, block in enumerate(prior.blocks)
    ]).sum()  # fmt: skip
    return torch.autograd.grad(-0.5 * (misfit / noise + energy), at)[0]


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
        solver = ConjugateGradients(how.rtol, how.max_cg_steps, preconditioner)
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
