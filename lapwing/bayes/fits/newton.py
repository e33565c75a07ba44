"""The minimum of a loss by damped Newton steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.fits.loss import Loss
from lapwing.linalg.solvers import ConjugateGradients, NotConverged, NotPositive, Preconditioner, Solution

DENSE_SIZE = 1500  # Newton steps by Cholesky up to so many weights,
DENSE_WORK = 2**33  # and up to so many multiplications for a Hessian: about half a second
EPS = torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True)
class NewtonSteps:
    """How far a search for a mode goes: to a gap in nats, for so many steps; by default as the likelihood needs."""

    tol: float | None = None
    max_steps: int | None = None


AS_NEEDED = NewtonSteps()


@final
@dataclass(frozen=True, eq=False)
class Mode:
    """Where the search for the minimum of a loss ended, and how near it is."""

    weights: Tensor  # (p,), z
    outputs: Tensor  # as the likelihood takes them
    log_prob: float
    gradient_norm: float  # of the loss in z, from fresh products
    gap: float  # half the squared Newton decrement: what one more step would gain, in nats
    tol: float
    steps: int
    factor: Tensor | None  # (p, p), the Cholesky factor of the Hessian here, where it was made
    passes: float = 0.0  # products with the features and their transpose, counted in pairs

    @property
    def converged(self) -> bool:
        """Whether the loss is within its tolerance of the minimum."""
        return self.gap <= self.tol

    def checked(self) -> Mode:
        """The mode, or NotConverged."""
        if self.converged:
            return self
        residuals = torch.tensor([self.gradient_norm], dtype=torch.float64)
        raise NotConverged(
            f"the mode was not found in {self.steps} Newton steps: one more would lower the loss by {self.gap:.1e} "
            f"nats, asked for {self.tol:.1e}; allow more steps, a larger tolerance or a stronger prior",
            Solution(self.weights[:, None], residuals, self.steps, self.tol),
        )


def mode(
    loss: Loss, *, start: Tensor | None = None, preconditioner: Preconditioner | None = None, tol: float = 1e-14,
    max_steps: int = 100,
) -> Mode:  # fmt: skip
    """The minimum of a loss by damped Newton steps.

    Steps are by Cholesky where that is cheap; otherwise by conjugate gradients, with products only, to a tolerance
    that tightens with the gap. `tol` bounds the gap to the minimum, in nats; steps that no longer close it end in the
    round-off of the loss.

    >>> from lapwing import Bernoulli
    >>> from lapwing.linalg.operators import Dense
    >>> x, y = torch.tensor([[1.0], [2.0], [-1.0]]).double(), torch.tensor([1.0, 1.0, 0.0])
    >>> found = mode(Loss(Dense(x), Bernoulli(), y, torch.ones(3)))
    >>> found.weights, found.gradient_norm < 1e-6
    (tensor([0.8800], dtype=torch.float64), True)
    """
    z = torch.zeros(loss.features.shape[1], dtype=torch.float64) if start is None else start
    gap, dense, passes = 1.0, is_cheap(loss), 0.0
    for steps in range(max_steps + 1):
        outputs = loss.outputs(z)
        log_prob, gradient = loss.log_prob(outputs), loss.gradient(z, outputs)
        factor = loss.factor(outputs) if dense else None
        if factor is None:
            direction, used = _by_cg(loss, outputs, gradient, gap, preconditioner)
            passes += used + 1.5  # outputs and gradient are a pair too, and the length of the step takes half of one
        else:
            direction = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        before, gap = gap, 0.5 * float(gradient @ direction)
        round_off = 8 * EPS * (0.5 * float(z @ z) - log_prob)
        if gap <= tol or (before < 4 * gap and gap <= round_off) or steps == max_steps:
            break
        z = z - _step_length(loss, z, outputs, direction, gap) * direction
    return Mode(z, outputs, log_prob, float(gradient.norm()), gap, max(tol, round_off), steps, factor, passes)


@final
@dataclass(frozen=True, eq=False)
class Jacobi:
    """Preconditioner by the diagonal."""

    diagonal: Tensor  # (p,)

    def solve(self, x: Tensor) -> Tensor:
        """The inverse of the diagonal times a block of columns."""
        return x / self.diagonal[:, None]


def is_cheap(loss: Loss) -> bool:
    """Whether Newton steps are by Cholesky."""
    p = loss.features.shape[1]
    return p <= DENSE_SIZE and not loss.features.costs.too_many_outputs and len(loss.targets) * p * p <= DENSE_WORK


def _by_cg(
    loss: Loss, outputs: Tensor, gradient: Tensor, gap: float, preconditioner: Preconditioner | None
) -> tuple[Tensor, float]:  # (p,)
    """An inexact Newton direction, and the passes it took; its tolerance falls with the gap: superlinear."""
    curvature, rtol = loss.hessian(outputs), min(0.1, gap**0.5)
    if preconditioner is not None:
        try:
            found = ConjugateGradients(rtol, preconditioner=preconditioner).solve(curvature, gradient[:, None])
            return found.x[:, 0], found.passes
        except NotPositive:  # a space of products in single precision may know less than nothing of some directions
            pass
    ones = torch.ones(loss.features.shape[1], dtype=torch.float64)
    plain = Jacobi(loss.diagonal(outputs) if loss.features.costs.squares_are_cheap else ones)
    found = ConjugateGradients(rtol, preconditioner=plain).solve(curvature, gradient[:, None])
    return found.x[:, 0], found.passes


def _step_length(loss: Loss, z: Tensor, outputs: Tensor, direction: Tensor, gap: float) -> float:
    """One, halved until the loss falls enough (Armijo); a fall below its round-off counts as enough."""
    ahead = loss.change(direction)

    def along(length: float) -> float:
        return 0.5 * float((z - length * direction).square().sum()) - loss.log_prob(outputs - length * ahead)

    length, here = 1.0, along(0.0)
    while length > EPS and not along(length) <= here - 1e-4 * length * gap + 64 * EPS * abs(here):
        length /= 2
    return length
