"""A posterior whose curvature has a structure (Kronecker, diagonal, low rank), and its evidence at given weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import LinearOperator, row_blocks

HIGHEST = 1e12  # a precision that evidence drives beyond this many times its start is at a bound


@final
@dataclass(frozen=True, eq=False)
class Structured:
    """N(·, (M + λD)⁻¹) for a structured M that includes the noise, D = diag(scale⁻²) and λ the prior's precisions.

    Where nothing was determined by the data, draws are the prior's draws from the same normals.
    """

    curvature: Curvature
    precision: Tensor  # () or (p,)
    output_variances: Callable[[LinearOperator], Tensor] | None = None  # cheaper than from rows, where there is a way
    exact: ClassVar[bool] = True

    @staticmethod
    def of(curvature: Curvature, prior: DiagonalPrior) -> Structured:
        """The belief under a prior whose scale the curvature was made with."""
        if not torch.allclose(curvature.scale, prior.scale.to(curvature.scale), rtol=1e-5, atol=0):
            raise ValueError("the curvature was made for another scale of the prior: make it with scale=prior.scale")
        return Structured(curvature, per_weight(prior.precision, prior.group_of))

    @property
    def std(self) -> Tensor:  # (p,)
        """The prior's standard deviations."""
        return self.curvature.scale * self.precision.rsqrt()

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """Σ f(k) over the eigenvalues k of M relative to the prior's precision, for f(0) = 0."""
        return Estimate(float(function(self.curvature.ratios(self.precision)).sum()))

    def deviations(self, normals: Tensor) -> Tensor:  # (p, draws) -> (p, draws)
        """Draws minus their mean, from standard normals."""
        return self.curvature.draw(normals, self.precision)

    root = deviations

    def covariance(self) -> Tensor:  # (p, p)
        """The posterior covariance, dense."""
        return self.curvature.solve(torch.eye(len(self.curvature.scale)).to(self.curvature.scale), self.precision)

    def variances(self, features: LinearOperator) -> tuple[Tensor, Tensor]:  # (rows,), (rows,)
        """Prior and posterior variance of every output."""
        prior = features.row_squares(self.std.square().to(features.like)).double()
        if self.output_variances is not None:
            return prior, self.output_variances(features)
        return prior, torch.cat([self.curvature.variance(rows, self.precision) for rows in row_blocks(features)])


@final
@dataclass(frozen=True, eq=False)
class Tuned:
    """Precisions at the maximum of an evidence, and how the search went."""

    precision: Tensor  # (groups,)
    occam: float  # −½ log det(I + M/λ)
    penalty: float  # −½ Σ λ ‖θ‖²
    steps: int
    converged: bool
    at_bound: tuple[int, ...]  # groups whose precision ran away: the weights given, or the data, say nothing of them


def maximise(
    curvature: Curvature, weights: Tensor, group_of: Tensor, start: Tensor, *, rtol: float = 1e-6, max_steps: int = 500
) -> Tuned:
    """The precisions that maximise −½ Σ_g λ_g ‖θ_g‖² − ½ log det(I + M/λ) at weights θ that are kept, by MacKay's step.

    θ is the mode of the linear model (which moves with λ, so this alternates with solving for it), or the network's
    own weights, whose evidence is known to give precisions that are too small. ‖θ‖ is in units of the scale. The
    objective is concave in each log λ, and steps are damped in the logarithm by a half.
    """
    groups = len(start)
    norms = _sums((weights.double() / curvature.scale).square(), group_of, groups)
    log, steps, change = start.double().log(), 0, float("inf")
    low, high = (log + sign * torch.tensor(HIGHEST).double().log() for sign in (-1, 1))
    while change > rtol and steps < max_steps:
        determined = _sums(curvature.determined(per_weight(log.exp(), group_of)), group_of, groups)
        wanted = (determined / norms).log()
        wanted = torch.where(determined > 0, wanted, torch.where(norms > 0, -torch.inf, log))
        new = (0.5 * (log + wanted)).clamp(low, high)
        change, log, steps = float((new - log).abs().max()), new, steps + 1
    precision = log.exp()
    occam = -0.5 * float(curvature.ratios(per_weight(precision, group_of)).log1p().sum())
    bound = ((log <= low) | (log >= high)).nonzero().flatten().tolist()
    return Tuned(precision, occam, -0.5 * float((precision * norms).sum()), steps, change <= rtol, tuple(bound))


def per_weight(precision: Tensor, group_of: Tensor) -> Tensor:  # (groups,), (p,) -> () or (p,)
    """λ of every weight; one number where there is one group, which any structure can hold."""
    return precision[0] if len(precision) == 1 else precision[group_of]


def _sums(values: Tensor, group_of: Tensor, groups: int) -> Tensor:  # (p,) -> (groups,)
    return torch.zeros(groups, dtype=torch.float64, device=values.device).index_add(0, group_of, values.double())
