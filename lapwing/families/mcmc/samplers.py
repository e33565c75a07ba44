"""Markov chains for any log density, several side by side: HMC, Langevin with and without Metropolis, and SGLD.

A target is a function from positions (chains, d) to log densities (chains,) and their gradients (chains, d), up to a
constant. Chains share their step size and metric and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import torch
from torch import Generator, Tensor

from lapwing.families.mcmc.adaptation import DualAveraging, regularised_variance, windows

Target = Callable[[Tensor], tuple[Tensor, Tensor]]  # (chains, d) -> (chains,), (chains, d)
PROBES = 16  # gradients that tell how noisy they are
DIVERGENT = 1000.0  # a loss of log density that no step of a useful size makes


@final
@dataclass(frozen=True, eq=False)
class Chain:
    """Positions of several chains after warm-up, and how they got there.

    Parameters
    ----------
    positions : Tensor
        (chains, draws, d).
    diagnostics : dict
        How the chains got there.
    """

    positions: Tensor  # (chains, draws, d)
    diagnostics: dict[str, Any]


@final
@dataclass(frozen=True)
class Length:
    """How many transitions a chain makes.

    Parameters
    ----------
    warmup : int
        Transitions before the first draw.
    draws : int
        Positions that are kept.
    thin : int
        Transitions from one draw to the next.

    Examples
    --------
    >>> Length(warmup=10, draws=4, thin=3).total
    22
    """

    warmup: int
    draws: int
    thin: int = 1

    @property
    def total(self) -> int:
        """Transitions in all."""
        return self.warmup + self.draws * self.thin

    def keeps(self, number: int) -> bool:
        """Whether a transition, counted from 1, leads to a position that is kept."""
        return number > self.warmup and (number - self.warmup) % self.thin == 0


Renew = Callable[[Tensor], Target]  # positions -> the target from now on, as after a Gibbs step
Told = Callable[[int, int], None]


class Sampler(Protocol):
    """A way to move chains that leaves a target invariant, or nearly so."""

    def run(
        self, target: Target, start: Tensor, length: Length, generator: Generator, *, renew: Renew | None = None,
        told: Told | None = None,
    ) -> Chain:  # fmt: skip
        """Positions after warm-up."""


@final
@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo (Neal 2011): leapfrog paths of random length, accepted or refused by Metropolis.

    Warm-up finds the step size by dual averaging for this `acceptance`, and a diagonal metric from the variances seen.
    A path has a length of `path` in units of that metric, times a number between ½ and 1½, but at most `max_steps`
    steps. The standard of truth for small networks: exact in the limit, and its diagnostics say when that is far away.

    Parameters
    ----------
    path : float
        Length of a path, in units of the metric.
    acceptance : float
        Share of steps that is to be accepted.
    max_steps : int
        Of a path.
    step_size : float, optional
        Where warm-up starts; found by default.

    Raises
    ------
    ValueError
        If `path` or `max_steps` is not positive, or `acceptance` is not between 0 and 1.

    Examples
    --------
    >>> HMC(path=2.0)
    HMC(path=2.0, acceptance=0.8, max_steps=200, step_size=None)
    """

    path: float = 1.5
    acceptance: float = 0.8
    max_steps: int = 200
    step_size: float | None = None  # where warm-up starts, found if not given

    def __post_init__(self) -> None:
        if not (self.path > 0 and 0 < self.acceptance < 1 and self.max_steps >= 1):
            raise ValueError(f"{self}: path and max_steps must be positive and acceptance between 0 and 1")

    def run(
        self, target: Target, start: Tensor, length: Length, generator: Generator, *, renew: Renew | None = None,
        told: Told | None = None,
    ) -> Chain:  # fmt: skip
        """The chains; without warm-up the step size given is kept."""
        state = _ChainState(target, start.clone(), torch.ones_like(start[0]), generator)
        step = self.step_size or state.first_step_size()

        def move(now: float) -> Tensor:
            share = 0.5 + float(torch.rand((), generator=generator, dtype=torch.float64))
            return state.path(now, min(self.max_steps, max(1, math.ceil(share * self.path / now))))

        return _adapted(state, move, DualAveraging.start(step, self.acceptance), length, renew, told)


@final
@dataclass(frozen=True)
class Langevin:
    """The Metropolis-adjusted Langevin algorithm (Roberts & Tweedie 1996): HMC with paths of one step.

    Parameters
    ----------
    acceptance : float
        Share of steps that is to be accepted.
    step_size : float, optional
        Where warm-up starts; found by default.

    Examples
    --------
    >>> Langevin().acceptance
    0.57
    """

    acceptance: float = 0.57  # the best in high dimension (Roberts & Rosenthal 1998)
    step_size: float | None = None

    def run(
        self, target: Target, start: Tensor, length: Length, generator: Generator, *, renew: Renew | None = None,
        told: Told | None = None,
    ) -> Chain:  # fmt: skip
        """The chains; without warm-up the step size given is kept."""
        state = _ChainState(target, start.clone(), torch.ones_like(start[0]), generator)
        step = self.step_size or state.first_step_size()
        averaging = DualAveraging.start(step, self.acceptance)
        return _adapted(state, lambda now: state.path(now, 1), averaging, length, renew, told)


@final
@dataclass(frozen=True)
class SGLD:
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011): θ + ½ ε G ∇ log p + N(0, ε G), never refused.

    Its draws are biased by the step ε and by the noise of mini-batch gradients: `batch_noise` among the diagnostics is
    the variance that these add to a step over the one that is meant, as if the chain were hotter by that share. With
    `preconditioned` (Li et al. 2016) G = 1 / (10⁻⁵ + √v), v the running mean square of the gradients of the log
    density, which is frozen after warm-up: then G is constant, and no derivative of it is missing from the drift.

    Parameters
    ----------
    step_size : float
        ε of every step.
    preconditioned : bool
        Whether steps are scaled by the gradients seen.
    decay : float
        Of the running mean of squared gradients.
    batch_size : int or None
        Data for a gradient; all if None.

    Raises
    ------
    ValueError
        If `step_size` is not positive, or `decay` is not between 0 and 1.

    Examples
    --------
    >>> SGLD(1e-4, batch_size=64).preconditioned
    False
    """

    step_size: float
    preconditioned: bool = False
    decay: float = 0.99
    batch_size: int | None = 128  # None for gradients of all data

    def __post_init__(self) -> None:
        if not (self.step_size > 0 and 0 < self.decay < 1):
            raise ValueError(f"{self}: step_size must be positive and decay between 0 and 1")

    def run(
        self, target: Target, start: Tensor, length: Length, generator: Generator, *, renew: Renew | None = None,
        told: Told | None = None,
    ) -> Chain:  # fmt: skip
        """The chains; the target may be a fresh estimate at every call."""
        if length.warmup < 1 and self.preconditioned:
            raise ValueError("a preconditioner is learnt in warm-up: expected warmup of at least 1")
        at, square, kept = start.clone(), torch.zeros_like(start[0]), []
        for number in range(1, length.total + 1):
            _, gradient = target(at)
            if self.preconditioned and number <= length.warmup:
                square = self.decay * square + (1 - self.decay) * gradient.square().mean(0)
            metric = self._metric(square, min(number, length.warmup))
            noise = torch.randn(at.shape, generator=generator, dtype=at.dtype)
            at = at + self.step_size / 2 * metric * gradient + (self.step_size * metric).sqrt() * noise
            if not bool(at.isfinite().all()):
                raise ValueError(f"SGLD diverged at step {number}: use a step_size below {self.step_size:g}")
            if renew is not None:
                target = renew(at)
            if length.keeps(number):
                kept.append(at)
            if told is not None:
                told(number, length.total)
        about = {"step_size": self.step_size, "acceptance": None, "divergences": 0, "gradients": length.total}
        return Chain(torch.stack(kept, dim=1), {**about, "batch_noise": self._batch_noise(target, at, metric)})

    def _batch_noise(self, target: Target, at: Tensor, metric: Tensor) -> float:
        """Variance of ½ ε G ∇ over fresh batches in units of ε G, a mean over weights and chains; 0 with all data."""
        gradients = torch.stack([target(at)[1] for _ in range(PROBES)])
        return float((self.step_size / 4 * metric * gradients.var(0)).mean())

    def _metric(self, square: Tensor, updates: int) -> Tensor:
        if not self.preconditioned:
            return torch.ones_like(square)
        return 1 / (1e-5 + (square / (1 - self.decay**updates)).sqrt())


@dataclass(eq=False)
class _ChainState:
    """Where the chains are, and what they know of the target there."""

    target: Target
    at: Tensor  # (chains, d)
    variance: Tensor  # (d,), the inverse of the mass
    generator: Generator
    gradients: int = 0
    divergences: int = 0
    value: Tensor = field(init=False)
    gradient: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.retarget(self.target)
        if not bool(self.value.isfinite().all()):
            raise ValueError("the log density is not finite where the chains start: start elsewhere")

    def retarget(self, target: Target) -> None:
        """Go on with another target from the same positions."""
        self.target = target
        self.value, self.gradient = target(self.at)
        self.gradients += 1

    def path(self, step: float, steps: int) -> Tensor:  # (chains,)
        """Move along a leapfrog path, or stay; returns the probability of moving."""
        momentum = torch.randn(self.at.shape, generator=self.generator, dtype=self.at.dtype) / self.variance.sqrt()
        before = self.value - self._kinetic(momentum)
        at, value, gradient = self.at, self.value, self.gradient
        for _ in range(steps):
            momentum = momentum + step / 2 * gradient
            at = at + step * self.variance * momentum
            value, gradient = self.target(at)
            momentum = momentum + step / 2 * gradient
        self.gradients += steps
        gain = (value - self._kinetic(momentum) - before).nan_to_num(-math.inf, posinf=-math.inf)
        uniform = torch.rand(len(at), generator=self.generator, dtype=at.dtype)
        moves = uniform.log() < gain
        self.divergences += int((gain < -DIVERGENT).sum())
        self.at = torch.where(moves[:, None], at, self.at)
        self.value = torch.where(moves, value, self.value)
        self.gradient = torch.where(moves[:, None], gradient, self.gradient)
        return gain.clamp_max(0).exp()

    def _kinetic(self, momentum: Tensor) -> Tensor:
        return (momentum.square() * self.variance).sum(1) / 2

    def first_step_size(self) -> float:
        """A step that is accepted about half of the time, by doubling or halving; the chains stay where they are."""
        kept = self.at, self.value, self.gradient
        step, direction = 0.1, 0.0
        for _ in range(60):
            accepted = float(self.path(step, 1).mean())
            self.at, self.value, self.gradient = kept
            sign = 1.0 if accepted > 0.5 else -1.0
            if direction and sign != direction:
                break
            direction = sign
            step *= 2.0**sign
        self.divergences = 0
        return step


def _within(seen: list[Tensor]) -> Tensor:  # of (chains, d) -> (n · chains, d)
    """Positions around the mean of their own chain: chains in different modes say nothing of the width of one."""
    positions = torch.stack(seen)
    return (positions - positions.mean(0)).flatten(0, 1)


def _adapted(
    state: _ChainState, move: Callable[[float], Tensor], averaging: DualAveraging, length: Length,
    renew: Renew | None, told: Told | None,
) -> Chain:  # fmt: skip
    """Warm-up with dual averaging and windows for the metric, then draws with both frozen."""
    warmup, acceptance = length.warmup, averaging.target
    ends, seen, kept, accepted = windows(warmup), [], [], []
    for number in range(1, length.total + 1):
        warming = number <= warmup
        moved = float(move(averaging.step_size if warming else averaging.averaged).mean())
        if renew is not None:
            state.retarget(renew(state.at))
        if warming:
            averaging = averaging.update(moved)
            if ends and number > warmup // 6:
                seen.append(state.at)
            if number in ends:
                state.variance, seen = regularised_variance(_within(seen)), []
                averaging = DualAveraging.start(state.first_step_size(), acceptance)
            if number == warmup:
                state.divergences = 0
        else:
            accepted.append(moved)
            if length.keeps(number):
                kept.append(state.at)
        if told is not None:
            told(number, length.total)
    about = {
        "step_size": averaging.averaged, "acceptance": sum(accepted) / len(accepted),
        "divergences": state.divergences, "gradients": state.gradients,
    }  # fmt: skip
    return Chain(torch.stack(kept, dim=1), about)
