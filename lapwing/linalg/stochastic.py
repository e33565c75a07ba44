"""Stochastic gradients for regularised least squares: for matrices too large for whole passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from math import ceil, hypot
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, Product, Rows, Scaled, Sparse, over_parts
from lapwing.linalg.solvers import Solution

POWER_STEPS = 10
CAUTION = 0.5  # of the stable step length: the curvature is itself estimated


@final
@dataclass(frozen=True, eq=False)
class Objective:
    """½‖ξ − G z‖² + ½α‖z − θ‖² for every column of z, with a fraction c of ξ left in the first term.

    Its minimiser z⋆ = (GᵀG + αI)⁻¹(Gᵀξ + αθ) does not depend on c, its minibatch gradients do. The rest of ξ moves
    to the anchor θ + (1 − c) Gᵀξ / α. c = 1 is the objective as written, c = 0 has no targets, and
    `best_fraction` gives the least variance.
    """

    features: LinearOperator  # G, (n, d)
    targets: Tensor | Rows  # ξ, (n, k); rows made when needed serve where batches are consecutive rows
    anchors: Tensor  # θ, (d, k)
    precision: float  # α
    fraction: float = 1.0  # c

    def __post_init__(self) -> None:
        (n, d), k = self.features.shape, self.targets.shape[-1]
        if self.targets.shape != (n, k) or self.anchors.shape != (d, k):
            raise ValueError(
                f"targets have shape {tuple(self.targets.shape)} and anchors {tuple(self.anchors.shape)}, expected "
                f"({n}, k) and ({d}, k) for features of shape {self.features.shape}"
            )
        if not (self.precision > 0 and 0 <= self.fraction <= 1):
            raise ValueError(
                f"precision is {self.precision} and fraction {self.fraction}, expected a positive precision and "
                "a fraction from 0 to 1"
            )

    def system(self) -> tuple[LinearOperator, Tensor]:
        """GᵀG + αI and Gᵀξ + αθ, whose solution is the minimiser."""
        ridge = torch.full_like(self.anchors[:, 0], self.precision)
        operator = self.features.T @ self.features + Diagonal(ridge)
        return operator, self._adjoint_targets() + self.precision * self.anchors

    def pull(self) -> Tensor:  # (d, k)
        """αθ + (1 − c) Gᵀξ: what the gradient subtracts outside the fit term; one product unless c = 1."""
        pull = self.precision * self.anchors
        return pull if self.fraction == 1 else pull + (1 - self.fraction) * self._adjoint_targets()

    def gradient(self, z: Tensor) -> Tensor:  # (d, k)
        """The gradient at z, the same for every fraction up to round-off."""
        every = torch.arange(self.features.shape[0], device=self.anchors.device)
        return self.fit_gradient(z, every, self.features) + self.precision * z - self.pull()

    def fit_gradient(self, z: Tensor, rows: Tensor, features: LinearOperator) -> Tensor:  # (d, k)
        """The part of the gradient that comes from some rows, `features` being those rows of G."""
        fitted = features.matmat(z)
        return features.rmatmat(fitted if self.fraction == 0 else fitted - self.fraction * self._target_rows(rows))

    def bound(self) -> float:
        """A number that the norm of the minimiser cannot exceed: its objective is no larger than that of z = 0."""
        fit = float(over_parts(self.features, lambda a, b, _: self.between(a, b).square().sum()).sqrt())
        anchor = float(self.anchors.norm())
        return anchor + hypot(fit / self.precision**0.5, anchor)

    def _adjoint_targets(self) -> Tensor:  # (d, k)
        return over_parts(self.features, lambda a, b, part: part.rmatmat(self.between(a, b)))

    def _target_rows(self, rows: Tensor) -> Tensor:
        if isinstance(self.targets, Tensor):
            return self.targets[rows]
        if len(rows) != int(rows[-1]) + 1 - int(rows[0]):
            raise ValueError("targets that are made when needed serve consecutive rows only: pass a tensor")
        return self.between(int(rows[0]), int(rows[-1]) + 1)

    def between(self, start: int, stop: int) -> Tensor:  # (stop - start, k)
        """Rows of the targets."""
        targets = self.targets
        rows = targets[start:stop] if isinstance(targets, Tensor) else targets.rows(start, stop)
        return rows.to(self.anchors)


def best_fraction(weights: Tensor, leverages: Tensor) -> float:
    """c = Σ w_i h_i / Σ w_i, with which minibatch gradients at the minimiser vary least.

    `weights` are the squared norms of the rows of G and h_i = g_iᵀ(GᵀG + αI)⁻¹g_i; the mean over draws of
    (G z)_i² estimates the latter. The expected squared gradient of row i is w_i (h_i − 2c h_i + c²) for standard
    normal ξ and √α θ, so c = 1 gives w_i (1 − h_i), c = 0 gives w_i h_i, and this c never more than either.

    >>> best_fraction(torch.tensor([1.0, 3.0]), torch.tensor([0.2, 0.6]))
    0.5
    """
    return float(((weights * leverages).sum() / weights.sum()).clamp(0, 1))


def gradient_moments(objective: Objective, z: Tensor) -> Tensor:  # (k,)
    """Σ_i ‖g_i‖², the squared gradients of the rows' fit terms at z, summed: two passes."""
    residual = objective.features.matmat(z) - objective.fraction * objective.between(0, objective.features.shape[0])
    return objective.features.row_squares() @ residual.square()


def gradient_variances(objective: Objective, z: Tensor, batch_size: int) -> Tensor:  # (k,)
    """E‖ĝ − g‖² of the gradient from `batch_size` rows, drawn without replacement and scaled up: exact."""
    n = objective.features.shape[0]
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size is {batch_size}, expected a number of rows from 1 to {n}")
    residual = objective.features.matmat(z) - objective.fraction * objective.between(0, objective.features.shape[0])
    total = objective.features.rmatmat(residual).square().sum(0)
    return (n - batch_size) / (batch_size * max(1, n - 1)) * (n * gradient_moments(objective, z) - total)


@final
@dataclass(frozen=True)
class StochasticGradients:
    """Nesterov's momentum on minibatch gradients, with linearly decaying steps and an average of the iterates.

    The step length is half of what the mean square of the iterates stands, for a curvature and a spread of curvatures
    from a short power iteration on a few minibatches: there is nothing to tune but the number of steps. Rows are drawn
    at random where the matrix is stored, dense or sparse; other operators give blocks of consecutive rows in random
    order: shuffle such data beforehand.

    >>> features = Dense(torch.eye(6, 3).double())
    >>> objective = Objective(features, torch.ones(6, 2).double(), torch.zeros(3, 2).double(), precision=1.0)
    >>> method, generator = StochasticGradients(batch_size=2, steps=500), torch.Generator().manual_seed(0)
    >>> solution = method.solve(objective, generator=generator)
    >>> round(float(solution.x[0, 0]), 2)
    0.5
    """

    batch_size: int = 128
    steps: int = 3000
    rtol: float = 0.05
    momentum: float = 0.9
    averaging: float | None = None  # weight of the newest iterate; None is 20 / steps, at least 0.01
    step_length: float | None = None  # None measures the curvature
    reshuffled: bool = True  # False draws every batch independently of those before

    def __post_init__(self) -> None:
        _check_settings(self.batch_size, self.steps, self.momentum)

    def solve(self, objective: Objective, *, generator: Generator, start: Tensor | None = None) -> Solution:
        """The minimiser, from the anchors unless a start is given; `steps` minibatches and some three whole passes."""
        batches = Minibatches(objective.features, self.batch_size, self.momentum, self.reshuffled)
        length = self.step_length or batches.step_length(objective.precision, generator)
        pull, z = objective.pull(), objective.anchors if start is None else start
        velocity, average, weight = torch.zeros_like(z), z, _averaging(self.averaging, self.steps)
        limit = 10 * (float(z.norm()) + objective.bound())
        for step, (rows, features) in enumerate(islice(batches.stream(generator), self.steps)):
            ahead = z + self.momentum * velocity
            fit = batches.count * objective.fit_gradient(ahead, rows, features)
            gradient = fit + objective.precision * ahead - pull
            velocity = self.momentum * velocity - _decay(step, self.steps) * length * gradient
            z = z + velocity
            average = torch.lerp(average, z, weight)
            if _due(step, self.steps) and not float(z.norm()) <= limit:
                average = z * torch.nan
                break
        return batches.solution(objective, average, step + 1, length, self.rtol)


@final
@dataclass(frozen=True)
class DualDescent:
    """Stochastic dual descent (Lin et al. 2024): random blocks of coordinates of the dual.

    It solves (I + GGᵀ/α) a = ξ − Gθ and returns θ + Gᵀa/α. Its gradient noise vanishes at the solution, so steps
    keep their length and the error falls geometrically, past SGD's after some epochs even where n > d. A step reads
    one block of rows, because Gᵀa is carried along, and touches n numbers a column.

    >>> features = Dense(torch.eye(3, 6).double())
    >>> objective = Objective(features, torch.ones(3, 2).double(), torch.zeros(6, 2).double(), precision=1.0)
    >>> DualDescent(batch_size=2, steps=500).solve(objective, generator=torch.Generator().manual_seed(0)).converged
    True
    """

    batch_size: int = 128
    steps: int = 3000
    rtol: float = 1e-2
    momentum: float = 0.9
    averaging: float | None = None  # weight of the newest iterate; None is 20 / steps, at least 0.01
    step_length: float | None = None  # None measures the curvature

    def __post_init__(self) -> None:
        _check_settings(self.batch_size, self.steps, self.momentum)

    def solve(self, objective: Objective, *, generator: Generator) -> Solution:
        """The minimiser; `steps` minibatches and some three whole passes."""
        batches, alpha = Minibatches(objective.features, self.batch_size, self.momentum), objective.precision
        length = self.step_length or self._length(batches, alpha, generator)
        b = objective.between(0, objective.features.shape[0]) - objective.features.matmat(objective.anchors)
        a, velocity, average = (torch.zeros_like(b) for _ in range(3))
        primal, primal_velocity = (torch.zeros_like(objective.anchors) for _ in range(2))  # Gᵀ times a, velocity
        limit, weight = 10 * float(b.norm()), _averaging(self.averaging, self.steps)
        for step, (rows, features) in enumerate(islice(batches.stream(generator), self.steps)):
            ahead = a[rows] + self.momentum * velocity[rows]
            gradient = ahead - b[rows] + features.matmat(primal + self.momentum * primal_velocity) / alpha
            change = -length * batches.count * gradient
            velocity.mul_(self.momentum).index_add_(0, rows, change)
            primal_velocity = self.momentum * primal_velocity + features.rmatmat(change)
            a += velocity
            primal = primal + primal_velocity
            average.lerp_(a, weight)
            if _due(step, self.steps) and not float(a.norm()) <= limit:
                average = a * torch.nan
                break
        z = objective.anchors + objective.features.rmatmat(average) / alpha
        return batches.solution(objective, z, step + 1, length, self.rtol)

    def _length(self, batches: Minibatches, alpha: float, generator: Generator) -> float:
        joint, worst = batches.curvatures(generator)
        spread = batches.count + max(worst, batches.longest_row()) / alpha
        return CAUTION * stable_length(1 + joint / alpha, spread, self.momentum)


@final
@dataclass(frozen=True, eq=False)
class Minibatches:
    """The rows of an operator in `count` batches, anew in every epoch.

    The mean over an epoch of `count` times a batch's sum is the sum over all rows, the last batch included.
    """

    features: LinearOperator
    batch_size: int
    momentum: float
    reshuffled: bool = True  # False draws every batch independently of those before

    @property
    def count(self) -> int:
        """How many batches make an epoch."""
        return ceil(self.features.shape[0] / self.batch_size)

    @property
    def window(self) -> int:
        """How many batches momentum averages: the curvature is measured on as many."""
        return min(self.count, ceil(1 / (1 - self.momentum)))

    def stream(self, generator: Generator) -> Iterator[tuple[Tensor, LinearOperator]]:
        """Row numbers and those rows, without end."""
        while True:
            batches = self._epoch(generator) if self.reshuffled else [self._batch(generator)]
            for rows in batches:
                yield rows, self._restricted(rows)

    def _epoch(self, generator: Generator) -> list[Tensor]:
        """All rows once, in batches in random order."""
        n, device = self.features.shape[0], self.features.like.device
        rows = torch.arange(n, device=device)
        if scattered(self.features):
            rows = torch.randperm(n, generator=generator, device=generator.device).to(device)
        order = torch.randperm(self.count, generator=generator, device=generator.device).tolist()
        batches = rows.tensor_split(self.count)
        return [batches[number] for number in order]

    def _batch(self, generator: Generator) -> Tensor:
        """One batch, without a look at the rows outside; every row is in it with probability 1 / count."""
        n, like = self.features.shape[0], self.features.like
        height, longer = divmod(n, self.count)
        number = int(torch.randint(self.count, (), generator=generator, device=generator.device))
        start, size = number * height + min(number, longer), height + (number < longer)
        if not scattered(self.features):
            return torch.arange(start, start + size, device=like.device)
        if 2 * size > n:
            return torch.randperm(n, generator=generator, device=generator.device)[:size].to(like.device)
        rows = torch.empty(0, dtype=torch.long, device=generator.device)
        while missing := size - len(rows):  # those drawn twice are drawn again
            more = torch.randint(n, (missing,), generator=generator, device=generator.device)
            rows = torch.cat([rows, more]).unique()
        return rows.to(like.device)

    def step_length(self, precision: float, generator: Generator) -> float:
        """Half of the largest step that the mean square of the iterates of SGD stands: some batches and a pass.

        Batches of rows drawn one by one spread around GᵀG by `count` · max ‖gᵢ‖² at most, relative to it; those of
        consecutive rows may be alike within, so there it is the curvature of the worst one.
        """
        joint, worst = self.curvatures(generator)
        spread = self.longest_row() if scattered(self.features) else max(worst, self.longest_row())
        return CAUTION * stable_length(joint + precision, spread, self.momentum)

    def longest_row(self) -> float:
        """`count` times the largest squared norm of a row."""
        return self.count * float(self.features.row_squares().max())

    def curvatures(self, generator: Generator) -> tuple[float, float]:
        """The largest eigenvalue of GᵀG, and that of the worst single batch times `count`: by power iteration.

        Both are seen through the batches of one window.
        """
        n, d = self.features.shape
        rows = [rows for rows, _ in islice(self.stream(generator), self.window)]
        v = torch.randn(d, 1, generator=generator, dtype=torch.float64, device=generator.device).to(self.features.like)
        joint = self._largest_eigenvalue(rows, v) * n / sum(len(batch) for batch in rows)
        worst = max(self._largest_eigenvalue([batch], v) for batch in rows)
        return joint, self.count * worst

    def _largest_eigenvalue(self, rows: list[Tensor], v: Tensor) -> float:
        for _ in range(POWER_STEPS):
            v = v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
            parts = (self._restricted(batch) for batch in rows)
            v = reduce(torch.add, (part.rmatmat(part.matmat(v)) for part in parts))
        return float(v.norm())

    def solution(self, objective: Objective, z: Tensor, steps: int, length: float, rtol: float) -> Solution:
        """z with the true residual of every column; infinite if z is not a number because it diverged."""
        operator, b = objective.system()
        size = b.norm(dim=0)
        residuals = torch.nan_to_num((b - operator.matmat(z)).norm(dim=0), nan=torch.inf)
        advice = "allow more steps, larger batches or a larger rtol, or use conjugate gradients"
        if not bool(residuals.isfinite().all()):
            advice = f"the iterates diverged with step length {length:.1e}: pass a smaller one, or larger batches"
        passes = (2 * POWER_STEPS * self.window + steps) / self.count + 3
        return Solution(z, residuals / torch.where(size > 0, size, 1), steps, rtol, passes, advice)

    def _restricted(self, rows: Tensor) -> LinearOperator:
        chosen = _selected(self.features, rows)
        return chosen if chosen is not None else Dense(self.features.rows(int(rows[0]), int(rows[-1]) + 1))


def scattered(operator: LinearOperator) -> bool:
    """Whether batches of an operator are rows drawn one by one, its parts being stored; else they are consecutive."""
    return _selected(operator, torch.zeros(1, dtype=torch.long, device=operator.like.device)) is not None


def reads_rows(operator: LinearOperator) -> bool:
    """Whether a batch of rows can be had for less than a product with all of them."""
    match operator:
        case Product(Diagonal(), right):
            return reads_rows(right)
        case Product(left, _):
            return reads_rows(left)
        case Scaled(inner, _):
            return reads_rows(inner)
    return type(operator).rows is not LinearOperator.rows


def _selected(operator: LinearOperator, rows: Tensor) -> LinearOperator | None:
    """Scattered rows of an operator whose parts are stored, None for others."""
    match operator:
        case Dense(matrix):
            return Dense(matrix[rows])
        case Sparse(matrix):
            return Sparse(matrix[rows.numpy()])
        case Scaled(inner, factor) if (chosen := _selected(inner, rows)) is not None:
            return Scaled(chosen, factor)
        case Product(Diagonal(diagonal), right) if (chosen := _selected(right, rows)) is not None:
            return Product(Diagonal(diagonal[rows]), chosen)
        case Product(left, right) if (chosen := _selected(left, rows)) is not None:
            return Product(chosen, right)
    return None


def stable_length(curvature: float, spread: float, momentum: float) -> float:
    """The largest step length at which Nesterov's method on random curvatures converges in mean square.

    With a curvature a of mean λ and variance λ · spread, drawn anew at every step, z ← (1 − h a)(z + μ (z − z₋)) has
    second moments E z², E z z₋, E z₋² that shrink as long as, with c = 1 − hλ,
    (c² + h² λ · spread) · ((1 + μ)² + μ² − 2μ (1 + μ)² c / (1 + μc)) < 1.
    Without spread that is hλ < (2 + 2μ) / (1 + 2μ), for small λ it is h · spread < 2 (1 − μ); the two ends of the
    spectrum, 0 and `curvature`, are what limits h. Of minibatch curvatures H_b around H the spread is the least number
    with E (H_b − H)² ⪯ spread · H.

    >>> round(stable_length(2.0, 0.0, 0.9), 4), round(stable_length(2.0, 100.0, 0.9), 4)
    (0.6786, 0.002)
    """
    low, high = 0.0, (2 + 2 * momentum) / (1 + 2 * momentum) / curvature
    high = min(high, 2 * (1 - momentum) / spread) if spread > 0 else high
    for _ in range(60):
        middle = (low + high) / 2
        kept = 1 - middle * curvature
        grown = (1 + momentum) ** 2 + momentum**2 - 2 * momentum * (1 + momentum) ** 2 * kept / (1 + momentum * kept)
        stable = (kept**2 + middle**2 * curvature * spread) * grown < 1
        low, high = (middle, high) if stable else (low, middle)
    return low


def _averaging(weight: float | None, steps: int) -> float:
    return weight if weight is not None else min(1.0, max(0.01, 20 / steps))


def _decay(step: int, steps: int) -> float:
    """From 1 to 3 %, linearly."""
    return 1 - 0.97 * step / max(1, steps - 1)


def _due(step: int, steps: int) -> bool:
    """Whether to look for divergence."""
    return step % 32 == 31 or step == steps - 1


def _check_settings(batch_size: int, steps: int, momentum: float) -> None:
    if batch_size < 1 or steps < 1 or not 0 <= momentum < 1:
        raise ValueError(
            f"batch_size is {batch_size}, steps {steps} and momentum {momentum}, "
            "expected at least 1, at least 1, and a number from 0 to below 1"
        )
