"""Block-diagonal matrices whose blocks are Kronecker products, with a diagonal added: the sum stays diagonalised.

For factors L ⊗ R and D = diag(s⁻²), s = l ⊗ r, the eigenvectors of (l L l) ⊗ (r R r) give V with Vᵀ D V = I and
Vᵀ (L ⊗ R) V = diag(values). So L ⊗ R + λD = V⁻ᵀ diag(values + λ) V⁻¹ for every λ, with no damping shared out over
the factors. A dense block is one with L = 1, a diagonal one has V = diag(s).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from lapwing.linalg.operators import LinearOperator
from lapwing.linalg.spectral import Spectrum

Kind = Literal["kronecker", "exact", "diagonal"]
SEPARABLE = 1e-6  # a scale may differ this much, relatively, from a product of one per row and one per column


@final
@dataclass(frozen=True, eq=False)
class Factors:
    """One block as left ⊗ right, one such product per group; a factor of shape (groups, size) is diagonal."""

    name: str
    kind: Kind
    index: Tensor  # (groups, o, i), places of its rows in the whole matrix
    left: Tensor  # (groups, o, o) or (groups, o)
    right: Tensor  # (groups, i, i) or (groups, i)

    def diagonal(self) -> Tensor:  # (groups, o, i)
        """The block's own diagonal."""
        left, right = (part.diagonal(dim1=1, dim2=2) if part.ndim == 3 else part for part in (self.left, self.right))
        return left[:, :, None] * right[:, None, :]

    def decomposed(self, scale: Tensor) -> Block:  # (groups, o, i)
        """The block with its eigenvectors; `scale` is s, separable where a factor is not diagonal."""
        rows, columns = self._split(scale)
        left, left_values = _eigen(self.left, rows)
        right, right_values = _eigen(self.right, columns)
        values = left_values[:, :, None] * right_values[:, None, :]
        if self.left.ndim == self.right.ndim == 2:
            values = self.diagonal() * scale.square()
            return Block(self.name, self.kind, self.index, values, torch.ones_like(left), torch.ones_like(right), scale)
        return Block(self.name, self.kind, self.index, values, left, right, scale)

    def _split(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = separated(scale)
        error = float((rows[:, :, None] * columns[:, None, :] / scale - 1).abs().max())
        if error > SEPARABLE and max(self.left.ndim, self.right.ndim) == 3:
            raise ValueError(
                f"the prior's scale differs from weight to weight within {self.name!r} by a factor {1 + error:.3g}, "
                "which a Kronecker product cannot hold: use one precision per layer, a scale made by `fitting`, or a "
                "diagonal structure"
            )
        return rows, columns


@final
@dataclass(frozen=True, eq=False)
class Block:
    """A block diagonalised together with D = diag(scale⁻²), by V = left ⊗ right."""

    name: str
    kind: Kind
    index: Tensor  # (groups, o, i)
    values: Tensor  # (groups, o, i), not negative
    left: Tensor  # (groups, o, o), or (groups, o) for a diagonal
    right: Tensor  # (groups, i, i), or (groups, i)
    scale: Tensor  # (groups, o, i)

    @property
    def is_diagonal(self) -> bool:
        """Whether V is diag(scale), so that every precision fits."""
        return self.left.ndim == self.right.ndim == 2

    def turned(self, x: Tensor) -> Tensor:  # (groups, o, i, k)
        """Vᵀ x, in the precision of x."""
        return self.scale[..., None].to(x) * x if self.is_diagonal else _turn(x, self.left, self.right, back=False)

    def back(self, x: Tensor) -> Tensor:  # (groups, o, i, k)
        """V x, in the precision of x."""
        return self.scale[..., None].to(x) * x if self.is_diagonal else _turn(x, self.left, self.right, back=True)

    def spread(self, values: Tensor) -> Tensor:  # (groups, o, i)
        """The diagonal of Q diag(values) Qᵀ, Q = diag(1/scale) V orthogonal."""
        if self.is_diagonal:
            return values
        squares = [part.square() for part in (self.left, self.right)]
        return _turn(values[..., None], *squares, back=True)[..., 0] / self.scale.square()

    def precision(self, given: Tensor) -> Tensor:  # () or (p,) -> (groups, o, i)
        """λ in the order of the values, for precisions that are equal wherever V mixes weights."""
        if given.ndim == 0:
            return given.expand_as(self.values)
        found = given[self.index]
        for part, axis in ((self.left, 1), (self.right, 2)):
            if part.ndim == 3 and bool((found != found.narrow(axis, 0, 1)).any()):
                raise ValueError(
                    f"the prior precision differs from weight to weight within {self.name!r}, which is one Kronecker "
                    "block: give its weights one precision, or use a diagonal structure"
                )
        return found


@final
@dataclass(frozen=True, eq=False)
class Kronecker(LinearOperator):
    """M, a symmetric block-diagonal matrix (p, p), and what follows from M + λD, with D = diag(scale⁻²).

    `precision` is λ, a number or one per weight. Weights that are in no block have no curvature.

    >>> left, right = torch.eye(2)[None], torch.eye(3)[None]
    >>> matrix = kronecker((Factors("layer", "kronecker", torch.arange(6).reshape(1, 2, 3), left, right),), 6)
    >>> float(matrix.log_det(1.0)), float(matrix.effective_dimension(1.0))
    (4.15888..., 3.0)
    """

    blocks: tuple[Block, ...]
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.size, self.size)

    @property
    def like(self) -> Tensor:
        return self.blocks[0].values

    def matmat(self, x: Tensor) -> Tensor:
        def product(block: Block, part: Tensor) -> Tensor:
            inverse = block.scale.square().reciprocal()[..., None]
            return inverse * block.back(block.values[..., None] * block.turned(inverse * part))

        return self._each(x, product)

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.matmat(y)

    def times(self, factor: float) -> Kronecker:
        """The same with M multiplied, as by a noise precision."""
        return replace(self, blocks=tuple(replace(block, values=factor * block.values) for block in self.blocks))

    @property
    def scale(self) -> Tensor:  # (p,)
        """s, with D = diag(s⁻²)."""
        return self._gather(lambda block: block.scale)

    def ratios(self, precision: Tensor | float) -> Tensor:  # (p,)
        """The eigenvalues k of M relative to λD: how many times the prior's precision the data add."""
        return torch.cat([(b.values / b.precision(_as(precision, b))).flatten() for b in self.blocks])

    def whitened(self, precision: Tensor | float) -> Spectrum:
        """M in units of the prior's standard deviations: precisions are equal wherever V mixes, so V only stretches."""
        return Spectrum(Basis(self.blocks, self.size), self.ratios(precision), keeps_precision=True)

    def log_det(self, precision: Tensor | float) -> Tensor:  # ()
        """log det(M + λD), over the weights whose precision is finite."""

        def of_block(block: Block) -> Tensor:
            given = block.precision(_as(precision, block))
            terms = (block.values + given).log() - 2 * block.scale.log()
            return torch.where(given.isinf(), 0, terms).sum()

        return torch.stack([of_block(block) for block in self.blocks]).sum()

    def effective_dimension(self, precision: Tensor | float) -> Tensor:  # ()
        """tr M (M + λD)⁻¹."""
        return self.determined(precision).sum()

    def determined(self, precision: Tensor | float) -> Tensor:  # (p,)
        """1 − λ D_jj Σ_jj for every weight, from 0 (prior) to 1 (data); the sum over a group is its dimension γ."""

        def of_block(block: Block) -> Tensor:
            return block.spread(block.values / (block.values + block.precision(_as(precision, block))))

        return self._gather(of_block)

    def variances(self, precision: Tensor | float) -> Tensor:  # (p,)
        """The diagonal of (M + λD)⁻¹."""

        def of_block(block: Block) -> Tensor:
            inverse = 1 / (block.values + block.precision(_as(precision, block)))
            return block.scale.square() * block.spread(inverse)

        return self._gather(of_block)

    def solve(self, x: Tensor, precision: Tensor | float) -> Tensor:  # (p, k) -> (p, k)
        """(M + λD)⁻¹ x."""

        def of_block(block: Block, part: Tensor) -> Tensor:
            shifted = block.values + block.precision(_as(precision, block))
            return block.back(block.turned(part) / shifted[..., None])

        return self._each(x, of_block)

    def draw(self, normals: Tensor, precision: Tensor | float) -> Tensor:  # (p, k) -> (p, k)
        """Columns of N(0, (M + λD)⁻¹) from standard normals; where M is zero they are scale/√λ times the normals."""

        def of_block(block: Block, part: Tensor) -> Tensor:
            shifted = block.values + block.precision(_as(precision, block))
            return block.back(block.turned(part / block.scale[..., None]) * shifted.rsqrt()[..., None])

        return self._each(normals, of_block)

    def variance(self, rows: Tensor, precision: Tensor | float) -> Tensor:  # (r, p) -> (r,)
        """φ (M + λD)⁻¹ φᵀ for every row φ, block by block."""
        total = torch.zeros(len(rows), dtype=self.like.dtype, device=self.like.device)
        for block in self.blocks:
            turned = block.turned(rows.mT[block.index].to(block.values))
            shifted = block.values + block.precision(_as(precision, block))
            total += (turned.square() / shifted[..., None]).sum((0, 1, 2))
        return total

    def _each(self, x: Tensor, function: Callable[[Block, Tensor], Tensor]) -> Tensor:
        result = torch.zeros(x.shape, dtype=self.like.dtype, device=self.like.device)
        for block in self.blocks:
            part = function(block, x[block.index].to(block.values))
            result[block.index.flatten()] = part.reshape(-1, x.shape[1])
        return result

    def _gather(self, function: Callable[[Block], Tensor]) -> Tensor:  # (p,)
        result = torch.zeros(self.size, dtype=self.like.dtype, device=self.like.device)
        for block in self.blocks:
            result[block.index] = function(block)
        return result


@final
@dataclass(frozen=True, eq=False)
class Basis(LinearOperator):
    """Q = diag(1/scale) V, the orthonormal eigenvectors of M in units of the scale: (weights, directions)."""

    blocks: tuple[Block, ...]
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.size, sum(block.values.numel() for block in self.blocks))

    @property
    def like(self) -> Tensor:
        return self.blocks[0].values

    def matmat(self, x: Tensor) -> Tensor:
        result = x.new_zeros(self.size, x.shape[1])
        for block, part in zip(self.blocks, x.split([block.values.numel() for block in self.blocks]), strict=True):
            shaped = part.reshape(*block.values.shape, x.shape[1])
            result[block.index.flatten()] = (block.back(shaped) / block.scale[..., None].to(x)).flatten(0, 2)
        return result

    def rmatmat(self, y: Tensor) -> Tensor:
        parts = [block.turned(y[block.index] / block.scale[..., None].to(y)) for block in self.blocks]
        return torch.cat([part.flatten(0, 2) for part in parts])


def spectrum(matrix: Kronecker) -> Spectrum:
    """The matrix in units of its scale, S M S = Q diag(values) Qᵀ, in the form that whitened posteriors are made of."""
    values = torch.cat([block.values.flatten() for block in matrix.blocks])
    return Spectrum(Basis(matrix.blocks, matrix.size), values, keeps_precision=True)


def kronecker(factors: tuple[Factors, ...], size: int, scale: Tensor | None = None) -> Kronecker:
    """The matrix of these blocks with D = diag(scale⁻²), the identity by default; costs two `eigh` a block."""
    if scale is not None and (scale.shape != (size,) or not bool((scale > 0).all())):
        raise ValueError(f"scale has shape {tuple(scale.shape)}, expected {size} positive numbers")
    blocks = []
    for part in factors:
        given = torch.ones(part.index.shape) if scale is None else scale.to(part.left)[part.index]
        blocks.append(part.decomposed(given.to(part.left)))
    return Kronecker(tuple(blocks), size)


def fitting(factors: tuple[Factors, ...], scale: Tensor) -> Tensor:  # (p,) -> (p,)
    """The nearest scale, in logarithms, that these blocks can hold: one per row times one per column of each."""
    scale = scale.to(factors[0].index.device)
    result = scale.clone()
    for part in factors:
        if max(part.left.ndim, part.right.ndim) == 3:
            rows, columns = separated(scale[part.index])
            result[part.index] = rows[:, :, None] * columns[:, None, :]
    return result


def separated(scale: Tensor) -> tuple[Tensor, Tensor]:  # (groups, o, i) -> (groups, o), (groups, i)
    """Rows and columns whose product is nearest to a positive matrix in the mean square of its logarithm."""
    logs = scale.log()
    rows = logs.mean(2)
    columns = logs.mean(1) - rows.mean(1, keepdim=True)
    return rows.exp(), columns.exp()


def _eigen(factor: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """diag(scale) times the eigenvectors of the scaled factor, and its eigenvalues."""
    if factor.ndim == 2:
        return scale, factor * scale.square()
    values, vectors = torch.linalg.eigh(scale[:, :, None] * factor * scale[:, None, :])
    return scale[:, :, None] * vectors, values.clamp_min(0)


def _turn(x: Tensor, left: Tensor, right: Tensor, *, back: bool) -> Tensor:
    """(left ⊗ right) x, or its transpose, for x of shape (groups, o, i, k)."""
    groups, o, i, k = x.shape
    left, right = left.to(x), right.to(x)
    if left.ndim == 2:
        x = left[:, :, None, None] * x
    else:
        x = ((left if back else left.mT) @ x.reshape(groups, o, i * k)).reshape(groups, o, i, k)
    if right.ndim == 2:
        return right[:, None, :, None] * x
    return (right if back else right.mT)[:, None] @ x


def _as(precision: Tensor | float, block: Block) -> Tensor:
    return torch.as_tensor(precision, dtype=torch.float64).to(block.values)
