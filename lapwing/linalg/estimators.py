"""Numbers that carry their own standard error, and traces, diagonals and determinants that come as such.

Every estimator takes products with random signs, and is exact where those leave no chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import LinearOperator
from lapwing.runtime.memory import check_memory


@final
@dataclass(frozen=True)
class Estimate:
    """A value and the standard error of its estimator; the error of an exact value is 0.

    Parameters
    ----------
    value : float
        The estimate.
    standard_error : float
        Its standard error, 0 where it is exact.

    Examples
    --------
    >>> Estimate(2.5, 0.1)
    2.5 ± 0.1
    """

    value: float
    standard_error: float = 0.0

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:.6g}" + (f" ± {self.standard_error:.2g}" if self.standard_error else "")


@final
@dataclass(frozen=True, eq=False)
class Estimates:
    """Values and their standard errors, entry by entry; indexing gives an Estimate."""

    value: Tensor  # (n,)
    standard_error: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: int) -> Estimate:
        return Estimate(float(self.value[index]), float(self.standard_error[index]))


def trace(operator: LinearOperator, *, probes: int, generator: Generator) -> Estimate:
    """tr(A) by Hutchinson's unbiased estimator; its variance is 2 Σ_{i≠j} a_ij² / probes for a symmetric A.

    >>> from lapwing.linalg.operators import Diagonal
    >>> trace(Diagonal(torch.arange(4.0)), probes=2, generator=torch.Generator().manual_seed(0))
    6
    """
    v = _signs(operator, probes, generator)
    return _mean((v * operator.matmat(v)).sum(0))


def diagonal(operator: LinearOperator, *, probes: int, generator: Generator) -> Estimates:
    """The diagonal of A, unbiased; the variance of entry i is Σ_{j≠i} a_ij² / probes.

    >>> from lapwing.linalg.operators import Diagonal
    >>> diagonal(Diagonal(torch.arange(4.0)), probes=2, generator=torch.Generator().manual_seed(0))[3]
    3
    """
    v = _signs(operator, probes, generator)
    terms = v * operator.matmat(v)
    return Estimates(terms.mean(1), terms.std(1) / probes**0.5)


def log_determinant(operator: LinearOperator, *, probes: int, steps: int, generator: Generator) -> Estimate:
    """log det(I + M) of a positive semi-definite M, by stochastic Lanczos quadrature.

    `steps` products with a block of `probes` columns, each column with a Krylov space of its own, fully
    reorthogonalised. Gauss quadrature is never below vᵀ log(I + M) v and Gauss–Radau with a node at zero never
    above (Golub and Meurant 2010, chapter 6): the value is halfway, and half the gap is part of the standard
    error. Converge the quadrature by `steps`, the chance by `probes`.

    >>> from lapwing.linalg.operators import Diagonal
    >>> M = Diagonal(torch.tensor([1.0, 3.0, 7.0]).double())
    >>> round(float(log_determinant(M, probes=2, steps=3, generator=torch.Generator().manual_seed(0))), 6)
    4.158883
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}, expected at least 1")
    v = _signs(operator, probes, generator)
    n, steps = len(v), min(steps, len(v))
    check_memory(
        float(v.element_size()) * n * steps * probes, f"{probes} Krylov spaces of {steps} steps in {n:,} dimensions",
        "use fewer probes a call and average the calls, or fewer steps",
    )  # fmt: skip
    diagonals, couplings, last, _ = _lanczos(operator, v / n**0.5, steps)
    upper = n * _quadrature(diagonals, couplings[:-1])
    lower = n * _quadrature(torch.cat([diagonals, last]), couplings)
    between = _mean((upper + lower) / 2)
    return Estimate(between.value, hypot(between.standard_error, float((upper - lower).mean()) / 2))


def inverse_root(operator: LinearOperator, columns: Tensor, *, steps: int) -> Tensor:  # (n, k) -> (n, k)
    """A^{-½} times columns for a positive definite A, each in its own Krylov space: `steps` products with a block.

    Columns of standard normals become draws from N(0, A⁻¹). Draws by perturb-and-solve, which start from the prior,
    need fewer products; this is the independent road to the same covariance.

    >>> from lapwing.linalg.operators import Diagonal
    >>> inverse_root(Diagonal(torch.tensor([4.0, 16.0]).double()), torch.ones(2, 1).double(), steps=2)[:, 0]
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    lengths = columns.norm(dim=0)
    diagonals, couplings, _, basis = _lanczos(operator, _ratio(columns, lengths), min(steps, len(columns)))
    off = torch.diag_embed(couplings[:-1].mT, 1)
    nodes, vectors = torch.linalg.eigh(torch.diag_embed(diagonals.mT) + off + off.mT)
    first = vectors[:, 0]  # a space that closed early has zero nodes, which its first vector does not see
    used = (first.square() > torch.finfo(nodes.dtype).eps) & (lengths > 0)[:, None]
    if not bool((nodes[used] > 0).all()):
        raise ValueError("the operator is not positive definite: add a multiple of the identity")
    functions = torch.where(used, nodes, 1).rsqrt() * torch.where(used, first, 0)
    return lengths * ((vectors @ functions[:, :, None]).mT @ basis)[:, 0].mT


def _lanczos(operator: LinearOperator, q: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tridiagonal matrices of unit columns q: diagonals (steps, k), couplings (steps, k), Radau entry (1, k); bases.

    The last coupling leads out of the space. The Radau entry, put below the diagonal's end, makes the extended
    matrix singular: the coupling squared over the last pivot. A space that closes early goes on with zeros.
    """
    basis = q.new_zeros(q.shape[1], steps, len(q))
    diagonals, couplings = q.new_zeros(steps, q.shape[1]), q.new_zeros(steps, q.shape[1])
    largest = pivot = radau = q.new_zeros(q.shape[1])
    round_off = 10 * torch.finfo(q.dtype).eps * len(q) ** 0.5
    for j in range(steps):
        basis[:, j] = q.mT
        w = operator.matmat(q)
        diagonals[j] = (q * w).sum(0)
        w = _orthogonal(_orthogonal(w, basis[:, : j + 1]), basis[:, : j + 1])
        coupling = w.norm(dim=0)
        largest = torch.maximum(largest, torch.maximum(coupling, diagonals[j].abs()))
        couplings[j] = torch.where(coupling > round_off * largest, coupling, 0)
        pivot = diagonals[j] - radau
        radau = _ratio(couplings[j].square(), torch.where(pivot > round_off * largest, pivot, 0))
        q = _ratio(w, couplings[j])
    return diagonals, couplings, radau[None], basis


def _orthogonal(w: Tensor, basis: Tensor) -> Tensor:  # (n, k), (k, steps, n) -> (n, k)
    """Each column less its projection on its own basis."""
    columns = w.mT[:, :, None]
    return (columns - basis.mT @ (basis @ columns))[:, :, 0].mT


def _quadrature(diagonals: Tensor, couplings: Tensor) -> Tensor:  # (steps, k), (steps - 1, k) -> (k,)
    """e₁ᵀ log(I + T) e₁ of every tridiagonal matrix."""
    off = torch.diag_embed(couplings.mT, 1)
    nodes, vectors = torch.linalg.eigh(torch.diag_embed(diagonals.mT) + off + off.mT)
    if not bool((nodes >= -(torch.finfo(nodes.dtype).eps ** 0.5) * nodes.abs().max()).all()):
        raise ValueError(
            f"the operator has an eigenvalue of {float(nodes.min()):.1e} or less, "
            "expected none below zero: log det(I + M) is for positive semi-definite M"
        )
    return (vectors[:, 0].square() * nodes.clamp_min(0).log1p()).sum(1)


def _signs(operator: LinearOperator, probes: int, generator: Generator) -> Tensor:  # (n, probes)
    """Independent random signs for a square operator."""
    n, d = operator.shape
    if n != d or probes < 2:
        raise ValueError(
            f"given an operator of shape {operator.shape} and {probes} probes, "
            "expected a square operator and at least 2 probes, without which there is no standard error"
        )
    bits = torch.randint(2, (n, probes), generator=generator, device=generator.device)
    return (2 * bits - 1).to(operator.like)


def _mean(terms: Tensor) -> Estimate:
    return Estimate(float(terms.mean()), float(terms.std()) / len(terms) ** 0.5)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)
