"""Statistics from a Krylov space, which is grown until it is large enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.statistics.statistics import Ritz, Statistics
from lapwing.linalg import krylov
from lapwing.linalg.operators import LinearOperator
from lapwing.runtime.progress import Report


@final
@dataclass(frozen=True)
class Growth:
    """How far a Krylov space may grow: to this relative error, for so many steps at most."""

    rtol: float = 1e-2
    steps: int | None = None


def from_space(space: krylov.Space, like: Ritz, *, count: float, log_weight: float, target: int = 0) -> Statistics:
    """Statistics of one column of targets from a Krylov space; `like` gives the operator and what is known of it."""
    draws, given = space.block.draws, space.block.targets
    inverse_root = torch.where(space.ritz > space.chain.roundoff, space.ritz, torch.inf).rsqrt()
    seen = inverse_root[:, None] * space.start
    targets = seen[:, 2 * draws + target]
    column = None if given is None else given[:, target].double()
    length = 0.0 if column is None else float(column @ column)
    basis = replace(like, space=space)
    density, null = torch.ones_like(space.ritz), float(like.operator.shape[0] - len(space.ritz))
    if not basis.is_complete:
        density, null = _calibrated(basis, (inverse_root[:, None] * space.probes).square().mean(1))
    return Statistics(
        basis=basis, values=space.ritz, targets=targets, remainder=max(length - float(targets.square().sum()), 0.0),
        noise=seen[:, :draws], prior_noise=seen[:, draws : 2 * draws], density=density,
        count=count, log_weight=log_weight, null=null,
    )  # fmt: skip


def known_trace(operator: LinearOperator) -> float | None:
    """tr GᵀG, where it costs no more than a product."""
    return float(operator.row_squares().double().sum()) if operator.costs.squares_are_cheap else None


def shared_space(
    operator: LinearOperator, block: krylov.StartBlock, settings: Callable[[Ritz], list[tuple[float, float]]],
    growth: Growth, report: Report, known: Ritz | None = None,
) -> Ritz:  # fmt: skip
    """A Krylov space large enough for every (α, β) that `settings` finds in it, tuned and grown in turn.

    One that is `known` already is grown on.
    """
    ritz = known
    if ritz is None:
        space = krylov.grow(operator, block, min(2, growth.steps or 2))
        ritz = Ritz(space, operator, growth.rtol, known_trace(operator))
    while True:
        wanted = [pair for pair in settings(ritz) if pair[0] != float("inf")]
        missed = [pair for pair in wanted if ritz.error(*pair) > growth.rtol]
        space = ritz.space
        if space.limited_by or not missed:
            return ritz
        alpha, beta = min(missed, key=lambda pair: pair[0] / pair[1])
        ahead = space.steps + max(space.steps // 6, krylov.steps_ahead(ritz.error(alpha, beta), growth.rtol))
        limit = ahead if growth.steps is None else min(ahead, growth.steps)
        space = krylov.build(operator, space, alpha=alpha, beta=beta, rtol=growth.rtol, max_steps=limit, report=report)
        if space.limited_by == "steps" and limit != growth.steps:
            space = replace(space, limited_by=None)
        ritz = replace(ritz, space=space)


def converged(statistics: Statistics, ritz: Ritz, alpha: float, beta: float, target: int = 0) -> Statistics:
    """The same statistics, from a larger Krylov space where theirs is too small for these precisions."""
    enough = alpha == float("inf") or ritz.error(alpha, beta) <= ritz.rtol
    if enough or not ritz.grows or ritz.space.limited_by:
        return statistics
    space = krylov.build(ritz.operator, ritz.space, alpha=alpha, beta=beta, rtol=ritz.rtol)
    return from_space(space, ritz, count=statistics.count, log_weight=statistics.log_weight, target=target)


def _calibrated(ritz: Ritz, density: Tensor) -> tuple[Tensor, float]:
    """The sampled density tilted by a straight line to have the true number and sum of eigenvalues.

    This is the calibration estimator of survey sampling, with the totals of GGᵀ that are known: its size and, where
    the norms of rows are cheap, its trace. It takes from every spectral sum the part of the error that those explain.
    """
    space, n, trace = ritz.space, float(ritz.operator.shape[0]), ritz.trace
    null = space.chain.noise_energy - float(density.sum())
    count = float(density.sum()) + null
    if trace is None or not trace > 0:
        return density * (n / count), null * (n / count)
    x = space.ritz * (n / trace)  # of order one
    first, second = (float((density * x**power).sum()) for power in (1, 2))
    moments = density.new_tensor([[count, first], [first, second]])
    tilt = torch.linalg.lstsq(moments, density.new_tensor([[n - count], [n - first]])).solution[:, 0]
    return density * (1 + tilt[0] + tilt[1] * x), null * (1 + float(tilt[0]))
