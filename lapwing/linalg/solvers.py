"""Solvers of symmetric positive definite systems: a solve is a value first, an exception when asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import LinearOperator


class NotConverged(RuntimeError):
    """A solve that did not reach its tolerance; `solution` carries the numbers."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


class NotPositive(ValueError):
    """A matrix that must be positive definite, and is not."""


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found, with the true residual of every column."""

    x: Tensor  # (n, k)
    residuals: Tensor  # (k,), ‖b − A x‖ / ‖b‖, recomputed; 0 for a zero column
    steps: int
    rtol: float
    passes: float = 0.0  # products with the whole of A, those of checks included
    advice: str = "allow more steps, a larger rtol, or a stronger prior"

    @property
    def converged(self) -> bool:
        """Whether every column reached the tolerance."""
        return bool((self.residuals <= self.rtol).all())

    def checked(self) -> Tensor:
        """The solution, or NotConverged."""
        if not self.converged:
            worst = float(self.residuals.max())
            raise NotConverged(
                f"{int((~(self.residuals <= self.rtol)).sum())} of {len(self.residuals)} columns did not converge in "
                f"{self.steps} steps: largest relative residual {worst:.1e}, asked for {self.rtol:.1e}; "
                f"{self.advice}",
                self,
            )
        return self.x


class Preconditioner(Protocol):
    """An approximate inverse of the operator: linear, symmetric, positive definite."""

    def solve(self, x: Tensor) -> Tensor:  # (n, k) -> (n, k)
        """The approximate inverse times a block of columns."""
        ...


@final
@dataclass(frozen=True)
class ConjugateGradients:
    """Preconditioned conjugate gradients on all columns at once, each with its own step lengths.

    Columns that have converged leave the products. Residuals are recomputed at the end, and the descent is
    restarted from them where round-off let the recurrence promise too much.

    >>> from lapwing.linalg.operators import Diagonal
    >>> operator = Diagonal(torch.tensor([1.0, 2.0, 4.0]).double())
    >>> solution = ConjugateGradients(rtol=1e-10).solve(operator, torch.ones(3, 2).double())
    >>> solution.steps, solution.checked()[:, 0]
    (3, tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64))
    """

    rtol: float = 1e-6
    max_steps: int = 1000
    preconditioner: Preconditioner | None = None

    def __post_init__(self) -> None:
        if not (self.rtol > 0 and self.max_steps >= 0):
            raise ValueError(
                f"rtol is {self.rtol} and max_steps is {self.max_steps}, expected rtol > 0 and max_steps >= 0"
            )

    def solve(self, operator: LinearOperator, b: Tensor, start: Tensor | None = None) -> Solution:
        """Solve A x = b for a symmetric positive definite A; one product with A a step, and one to check."""
        _check_system(operator, b, start)
        size = _norms(b)
        scale = torch.where(size > 0, size, 1)
        b = b / scale
        x = torch.zeros_like(b) if start is None else torch.where(size > 0, start / scale, 0)
        residuals = torch.full_like(size, torch.inf)
        todo, steps = torch.arange(b.shape[1], device=b.device), 0
        passes = 0 if start is None else 1
        while True:
            r = b[:, todo] if start is None and passes == 0 else b[:, todo] - operator.matmat(x[:, todo])
            before, residuals[todo] = residuals[todo], _finite(_norms(r), _name(operator), steps)
            # a restart that does not halve the residual has met the precision of the arithmetic
            going = (residuals[todo] > self.rtol) & ~(residuals[todo] > 0.5 * before)
            todo, r = todo[going], r[:, going]
            if not len(todo) or steps >= self.max_steps:
                return Solution(x * scale, residuals, steps, self.rtol, passes)
            change, used = self._descend(operator, r, self.max_steps - steps)
            x[:, todo] += change
            steps, passes = steps + used, passes + used + 1

    def _descend(self, operator: LinearOperator, r: Tensor, max_steps: int) -> tuple[Tensor, int]:
        """The change of x that takes the residuals r to rtol, as the recurrence sees them, and the steps used."""
        x, todo = torch.zeros_like(r), torch.arange(r.shape[1], device=r.device)
        p = z = self._precondition(r)
        rho = _positive((r * z).sum(0), "the preconditioner", 0)
        for step in range(1, max_steps + 1):
            q = operator.matmat(p)
            length = rho / _positive((p * q).sum(0), _name(operator), step)
            x[:, todo] += length * p
            r = r - length * q
            going = _norms(r) > self.rtol
            if not bool(going.any()):
                return x, step
            if not bool(going.all()):
                todo, rho, r, p = todo[going], rho[going], r[:, going], p[:, going]
            z = self._precondition(r)
            rho, previous = _positive((r * z).sum(0), "the preconditioner", step), rho
            p = z + (rho / previous) * p
        return x, max_steps

    def _precondition(self, r: Tensor) -> Tensor:
        return r if self.preconditioner is None else self.preconditioner.solve(r)


@final
@dataclass(frozen=True, eq=False)
class Deflation:
    """Preconditioner of A + shift·I that knows A on a subspace and takes it for zero outside.

    P⁻¹ = I + V diag(shift / (values + shift) − 1) Vᵀ. It is a multiple of the exact inverse where V holds every
    eigenvector with a positive eigenvalue. Ritz pairs of a Krylov space serve well; `replace` changes the shift.
    """

    vectors: Tensor  # (n, rank), orthonormal columns
    values: Tensor  # (rank,), approximate eigenvalues of A, not negative
    shift: float

    def __post_init__(self) -> None:
        _check_subspace(self.vectors, self.values, self.shift)

    def solve(self, x: Tensor) -> Tensor:
        """The approximate inverse times a block of columns, up to a constant."""
        return _rescaled(x, self.vectors, self.shift / (self.values + self.shift))


@final
@dataclass(frozen=True, eq=False)
class Nystrom:
    """Preconditioner of A + shift·I from a randomised Nyström approximation V diag(values) Vᵀ ⪯ A.

    Outside its space it takes A for the smallest value it kept (Frangella, Tropp and Udell 2021, eq. 5.3). The
    approximation does not know the shift: `replace(preconditioner, shift=…)` serves another one for free.

    >>> from lapwing.linalg.operators import Dense, Diagonal
    >>> A = Dense(torch.ones(5, 5).double())
    >>> preconditioner = Nystrom.of(A, rank=2, shift=0.1, generator=torch.Generator().manual_seed(0))
    >>> system = A + Diagonal(torch.full((5,), 0.1).double())
    >>> ConjugateGradients(preconditioner=preconditioner).solve(system, torch.eye(5, 2).double()).steps
    1
    """

    vectors: Tensor  # (n, rank), orthonormal columns
    values: Tensor  # (rank,), decreasing, not negative
    shift: float

    def __post_init__(self) -> None:
        _check_subspace(self.vectors, self.values, self.shift)

    @staticmethod
    def of(operator: LinearOperator, *, rank: int, shift: float, generator: Generator) -> Nystrom:
        """The approximation of a positive semi-definite operator: one product with `rank` random columns."""
        n = operator.shape[0]
        if operator.shape != (n, n) or not 1 <= rank <= n:
            raise ValueError(
                f"cannot approximate an operator of shape {operator.shape} with rank {rank}: "
                "expected a square operator and a rank from 1 to its size"
            )
        normals = torch.randn(n, rank, generator=generator, dtype=torch.float64, device=generator.device)
        test = torch.linalg.qr(normals)[0].to(operator.like)
        sketch = operator.matmat(test)
        precision = torch.finfo(sketch.dtype)
        nudge = float(n**0.5 * precision.eps * sketch.norm()) + precision.tiny  # keeps the core definite
        sketch = sketch + nudge * test
        core = test.mT @ sketch
        factor, failed = torch.linalg.cholesky_ex((core + core.mT) / 2)
        if int(failed):
            raise ValueError(
                f"{_name(operator)} is not positive semi-definite: a Nyström approximation needs A = Aᵀ ⪰ 0"
            )
        half = torch.linalg.solve_triangular(factor, sketch.mT, upper=False).mT
        vectors, singular, _ = torch.linalg.svd(half, full_matrices=False)
        return Nystrom(vectors, (singular.square() - nudge).clamp_min(0), shift)

    def solve(self, x: Tensor) -> Tensor:
        """The approximate inverse times a block of columns, up to a constant."""
        return _rescaled(x, self.vectors, (self.values[-1] + self.shift) / (self.values + self.shift))


def _rescaled(x: Tensor, vectors: Tensor, factors: Tensor) -> Tensor:
    """(I − V Vᵀ) x + V diag(factors) Vᵀ x.

    The part outside of V is taken twice: once leaves round-off of x in it, which outweighs factors below the precision
    of the arithmetic, and makes a product that should be positive negative.
    """
    inside = vectors.mT @ x
    outside = x - vectors @ inside
    outside = outside - vectors @ (vectors.mT @ outside)
    return outside + vectors @ (factors[:, None] * inside)


def _norms(x: Tensor) -> Tensor:
    """The norm of every column, without overflow or underflow of its squares."""
    largest = x.abs().amax(0) if len(x) else x.new_zeros(x.shape[1])
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    return scale * (x / scale).square().sum(0).sqrt()


def _name(operator: LinearOperator) -> str:
    return f"{type(operator).__name__} of shape {operator.shape}"


def _finite(values: Tensor, culprit: str, step: int) -> Tensor:
    """The values given, one a column, which come from products with the culprit."""
    if not bool(values.isfinite().all()):
        raise FloatingPointError(
            f"a product with {culprit} was infinite or not a number in {int((~values.isfinite()).sum())} of "
            f"{len(values)} columns at step {step}: look for such values in the data, or for overflow"
        )
    return values


def _positive(products: Tensor, culprit: str, step: int) -> Tensor:
    """The products given, one a column, which a symmetric positive definite culprit makes positive."""
    if not bool((_finite(products, culprit, step) > 0).all()):
        raise NotPositive(
            f"{culprit} is not positive definite: ⟨p, A p⟩ = {float(products.min()):.1e} at step {step}; "
            "check that it is symmetric, add a multiple of the identity, or use float64"
        )
    return products


def _check_system(operator: LinearOperator, b: Tensor, start: Tensor | None) -> None:
    n = operator.shape[0]
    if operator.shape != (n, n) or b.ndim != 2 or len(b) != n:
        raise ValueError(
            f"cannot solve with {_name(operator)} and right-hand sides of shape "
            f"{tuple(b.shape)}: expected a square operator and a matrix with as many rows"
        )
    if start is not None and start.shape != b.shape:
        raise ValueError(f"start has shape {tuple(start.shape)}, expected that of b, {tuple(b.shape)}")
    for name, columns in (("b", b), ("start", start)):
        if columns is not None and not bool(columns.isfinite().all()):
            raise ValueError(f"{name} holds values that are infinite or not a number: remove or replace them")


def _check_subspace(vectors: Tensor, values: Tensor, shift: float) -> None:
    if vectors.ndim != 2 or values.shape != vectors.shape[1:] or vectors.shape[0] < vectors.shape[1]:
        raise ValueError(
            f"vectors have shape {tuple(vectors.shape)} and values {tuple(values.shape)}, "
            "expected (n, rank) and (rank,) with rank <= n"
        )
    if not (shift > 0 and bool((values >= 0).all())):
        raise ValueError(
            f"shift is {shift} and the smallest value {float(values.min()):.1e}, "
            "expected a positive shift and values that are not negative"
        )
    gram = vectors.mT @ vectors
    error = float((gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max())
    if not error <= torch.finfo(gram.dtype).eps ** 0.5:
        raise ValueError(f"vectors are not orthonormal: VᵀV differs from I by {error:.1e}; use torch.linalg.qr first")
