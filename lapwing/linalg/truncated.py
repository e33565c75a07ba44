"""The leading eigenpairs of GᵀG from products alone, and the matrix they make with a prior outside their span."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.linalg.spectral import Spectrum


@final
@dataclass(frozen=True, eq=False)
class Leading:
    """The largest eigenvalues of GᵀG with their vectors, and how well they are known."""

    values: Tensor  # (rank,), falling
    vectors: Tensor  # (d, rank), orthonormal
    residuals: Tensor  # (rank,), ‖M v − value · v‖ / value
    dropped: float  # the largest Ritz value that was left out
    passes: int  # products of G or Gᵀ with a block
    limited_by: str | None  # "steps" where residuals are larger than asked for


def leading(
    operator: LinearOperator, rank: int, *, generator: Generator, rtol: float = 1e-3, max_steps: int = 100
) -> Leading:
    """The `rank` largest eigenpairs of M = GᵀG by block Lanczos, fewer where M has a smaller rank.

    An eigenvalue is wrong by at most its residual, and by the residual's square over the gap to the others.

    >>> from lapwing.linalg.operators import Diagonal
    >>> found = leading(Diagonal(torch.arange(9).double()), 3, generator=torch.Generator().manual_seed(0), rtol=1e-9)
    >>> found.values.round(decimals=6)
    tensor([64., 49., 36.], dtype=torch.float64)
    """
    (n, d), like = operator.shape, operator.like
    if not 1 <= rank <= d:
        raise ValueError(f"rank is {rank}, expected 1 to {d}, the number of columns")
    width = min(-(-rank // 6) + 1, n)  # the block has two columns for each of these
    noise = [torch.randn(size, width, generator=generator, dtype=torch.float64).to(like) for size in (d, n)]
    space = krylov.grow(operator, krylov.StartBlock(noise[0], noise[1]), 1)
    while not space.exhausted and space.steps < max_steps and _worst(space, rank) > rtol:
        space = krylov.grow(operator, space, max(1, space.steps // 4))
    kept = [number for number in space.ritz.argsort(descending=True).tolist() if space.ritz[number] > _floor(space)]
    chosen = torch.tensor(kept[:rank], dtype=torch.long)
    units = space.ritz.new_zeros(len(space.ritz), len(chosen))
    units[chosen, torch.arange(len(chosen))] = 1
    vectors = torch.linalg.qr(krylov.expand(space, units, operator).double())[0]  # orthonormal but for round-off
    return Leading(
        values=space.ritz[chosen], vectors=vectors, residuals=_residuals(space)[chosen],
        dropped=float(space.ritz[kept[rank]]) if len(kept) > rank else 0.0, passes=space.chain.passes,
        limited_by=None if space.exhausted or _worst(space, rank) <= rtol else "steps",
    )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class Truncated(LinearOperator):
    """M = S⁻¹ V diag(values) Vᵀ S⁻¹ with S = diag(scale), and what follows from M + λ S⁻² : the prior outside V's span.

    >>> matrix = Truncated(torch.eye(3)[:, :1].double(), torch.tensor([3.0]).double(), torch.ones(3).double())
    >>> matrix.variances(1.0)
    tensor([0.2500, 1.0000, 1.0000], dtype=torch.float64)
    """

    vectors: Tensor  # (p, rank), orthonormal
    values: Tensor  # (rank,); of a Hessian, of rank p, some may be negative
    scale: Tensor  # (p,)
    power: int = 1  # of a noise precision that it grows with: an empirical Fisher has the square

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.scale), len(self.scale))

    @property
    def like(self) -> Tensor:
        return self.vectors

    def matmat(self, x: Tensor) -> Tensor:
        inside = self.vectors.mT @ (x / self.scale[:, None])
        return self.vectors @ (self.values[:, None] * inside) / self.scale[:, None]

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.matmat(y)

    def times(self, factor: float) -> Truncated:
        """The same with M multiplied, as by a noise precision."""
        return replace(self, values=factor**self.power * self.values)

    def ratios(self, precision: Tensor | float) -> Tensor:  # (rank,)
        """The eigenvalues k of M relative to the prior's precision λ S⁻²; outside the span they are zero."""
        return self._whitened(precision)[2]

    def whitened(self, precision: Tensor | float) -> Spectrum:
        """M in units of the prior's standard deviations, by its eigenvectors and values."""
        _, vectors, ratios = self._whitened(precision)
        return Spectrum(Dense(vectors), ratios)

    def log_det(self, precision: Tensor | float) -> Tensor:  # ()
        """log det(M + λS⁻²), over the weights whose precision is finite."""
        std, _, ratios = self._whitened(precision)
        return ratios.log1p().sum() - 2 * torch.where(std > 0, std, 1).log().sum()

    def effective_dimension(self, precision: Tensor | float) -> Tensor:  # ()
        """tr M (M + λS⁻²)⁻¹."""
        ratios = self.ratios(precision)
        return (ratios / (1 + ratios)).sum()

    def determined(self, precision: Tensor | float) -> Tensor:  # (p,)
        """How far each weight is determined by the data, 0 to 1; sums to the effective dimension."""
        _, vectors, ratios = self._whitened(precision)
        return vectors.square() @ (ratios / (1 + ratios))

    def variances(self, precision: Tensor | float) -> Tensor:  # (p,)
        """The diagonal of (M + λS⁻²)⁻¹."""
        return self._whitened(precision)[0].square() * (1 - self.determined(precision))

    def solve(self, x: Tensor, precision: Tensor | float) -> Tensor:  # (p, k) -> (p, k)
        """(M + λS⁻²)⁻¹ x."""
        std, vectors, ratios = self._whitened(precision)
        whitened = std[:, None] * x
        return std[:, None] * (whitened - vectors @ ((ratios / (1 + ratios))[:, None] * (vectors.mT @ whitened)))

    def draw(self, normals: Tensor, precision: Tensor | float) -> Tensor:  # (p, k) -> (p, k)
        """Columns of N(0, (M + λS⁻²)⁻¹) from standard normals."""
        std, vectors, ratios = self._whitened(precision)
        return std[:, None] * (normals + vectors @ (((1 + ratios).rsqrt() - 1)[:, None] * (vectors.mT @ normals)))

    def variance(self, rows: Tensor, precision: Tensor | float) -> Tensor:  # (r, p) -> (r,)
        """φ (M + λS⁻²)⁻¹ φᵀ for every row φ."""
        std, vectors, ratios = self._whitened(precision)
        whitened = rows.to(std) * std
        return whitened.square().sum(1) - (whitened @ vectors).square() @ (ratios / (1 + ratios))

    def _whitened(self, precision: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """The prior's standard deviations, and the eigenpairs of M in their units."""
        given = torch.as_tensor(precision, dtype=torch.float64).to(self.scale)
        if given.ndim == 0:
            return self.scale * given.rsqrt(), self.vectors, self.values / given
        root = given.rsqrt()  # several precisions turn the eigenvectors
        if bool((self.values < 0).any()):
            turned = root[:, None] * self.vectors
            values, vectors = torch.linalg.eigh((turned * self.values) @ turned.mT)
            return self.scale * root, vectors, values
        vectors, singular, _ = torch.linalg.svd(root[:, None] * self.vectors * self.values.sqrt(), full_matrices=False)
        return self.scale * root, vectors, singular.square()


def truncated(found: Leading, scale: Tensor) -> Truncated:
    """M from the leading eigenpairs of GᵀG, where the columns of G carry the scale."""
    return Truncated(found.vectors, found.values, scale.to(found.vectors))


def _residuals(space: krylov.Space) -> Tensor:
    return space.remainder.norm(dim=0) / space.ritz.clamp_min(1e-300)


def _floor(space: krylov.Space) -> float:
    return 1e3 * space.chain.roundoff


def _worst(space: krylov.Space, rank: int) -> float:
    """The largest relative residual of the pairs wanted; infinite while there are too few."""
    order = space.ritz.argsort(descending=True)[:rank]
    if len(order) < rank:
        return float("inf")
    order = order[space.ritz[order] > _floor(space)]
    return float(_residuals(space)[order].max()) if len(order) else 0.0
