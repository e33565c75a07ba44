"""Eigen-decompositions of Gram matrices, from the smaller side or from the matrix itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, final

import torch
from scipy.linalg.lapack import dsyevd
from torch import Tensor

from lapwing.linalg.operators import Dense, LinearOperator, gram, row_gram
from lapwing.runtime.memory import check_memory

Side = Literal["primal", "dual", "svd"]
COARSE = 1e-8  # round-off of a Gram matrix, relative to the prior, that calls for singular values
LARGE = 256  # rows of a matrix
STORED_BYTES = 2**29  # eigenvectors beyond this size are not stored but made from the data


@final
@dataclass(frozen=True, eq=False)
class Spectrum:
    """V and s with GᵀG = V diag(s) Vᵀ for a matrix G (n × d).

    V has orthonormal columns. Rank d means that they span everything; otherwise G is zero on what they leave out.
    Where V would be large, it is the product of Gᵀ with a small matrix.
    """

    right: LinearOperator  # V: (d, rank)
    values: Tensor  # (rank,), not negative
    own: Tensor | None = None  # (n, rank), U where it came with V, orthonormal even where √s is round-off
    keeps_precision: bool = False  # whether products with V are in the precision of what it is given

    @property
    def vectors(self) -> Tensor:  # (d, rank)
        """V as a matrix."""
        return self.right.dense().double()

    @property
    def complete(self) -> bool:
        """Whether the vectors span the whole space."""
        return self.right.shape[0] == self.right.shape[1]

    @cached_property
    def determined(self) -> Tensor:  # (rank,)
        """1/√s where s is above round-off, and 0 elsewhere."""
        return torch.where(self.values > cutoff(self.values, self.right.shape[0]), self.values, torch.inf).rsqrt()

    def expand(self, coefficients: Tensor) -> Tensor:  # (rank, k) -> (d, k)
        """V times coefficients, in double precision."""
        return (self.right @ coefficients.to(self.right.like)).double()

    def coordinates(self, rows: Tensor) -> Tensor:  # (k, d) -> (k, rank)
        """Rows times V: in double precision, or in that of the rows where V keeps it."""
        if self.keeps_precision:
            return (self.right.T @ rows.mT).mT
        return (self.right.T @ rows.mT.to(self.right.like)).mT.double()

    def left(self, operator: LinearOperator, columns: Tensor, start: int = 0) -> Tensor:  # (n, k) -> (rank, k)
        """Uᵀ times columns, with G = U diag(√s) Vᵀ: one product with Gᵀ; of a part of G, `start` is its first row."""
        if self.own is not None:
            return self.own[start : start + len(columns)].mT @ columns.double()
        back = operator.rmatmat(columns.to(operator.like))
        return self.determined[:, None] * (self.right.T @ back.to(self.right.like)).double()

    def left_adjoint(
        self, operator: LinearOperator, coefficients: Tensor, start: int = 0
    ) -> Tensor:  # (rank, k) -> (n, k)
        """U times coefficients: one product with G; of a part of G, `start` is its first row."""
        if self.own is not None:
            return self.own[start : start + operator.shape[0]] @ coefficients
        return operator.matmat(self.expand(self.determined[:, None] * coefficients).to(operator.like))


def round_off(operator: LinearOperator) -> float:
    """The relative precision of the numbers of an operator."""
    return torch.finfo(operator.like.dtype).eps


def cutoff(values: Tensor, size: int) -> float:
    """The eigenvalue below which a Gram matrix of this size holds only round-off."""
    largest = float(values.max()) if len(values) else 0.0
    return largest * max(size, len(values)) * torch.finfo(values.dtype).eps


def decompose(operator: LinearOperator, side: Side | None = None, least: int = LARGE) -> Spectrum:
    """The spectrum of GᵀG: by default from the smaller of GᵀG and GGᵀ.

    Both Gram sides are good to about eps · s_max / ρ when used at a ratio ρ of prior to noise precision;
    `side="svd"` takes the singular values of G itself, several times slower, for very small ρ. `least` is for `eigh`.
    """
    n, d = operator.shape
    side = side or ("primal" if d <= n else "dual")
    check_memory(
        needed_bytes(operator.shape, side, operator.like.element_size()),
        f"an exact posterior with {n:,} observations and {d:,} weights",
        advice,
    )
    if side == "primal":
        return _primal(operator, least)
    return {"dual": _dual, "svd": _svd}[side](operator)


def decompose_whitened(operator: LinearOperator) -> Spectrum:
    """The spectrum of GᵀG, G in units of noise and prior; from singular values where a Gram matrix is too coarse."""
    spectrum = decompose(operator)
    largest = float(spectrum.values.max()) if len(spectrum.values) else 0.0
    return spectrum if largest * torch.finfo(spectrum.values.dtype).eps <= COARSE else decompose(operator, "svd")


advice = "use fewer columns (or rows), or select a part of the weights"


def needed_bytes(shape: tuple[int, int], side: Side, item: int = 8) -> float:
    """Peak memory of `decompose` for an operator with numbers of `item` bytes, the operator itself not counted.

    A Gram matrix, its eigenvectors and the workspace of their computation are together about 4.5 matrices.
    """
    n, d = shape
    rank, coarse = min(n, d), item / 8 if item < 8 else 0.0  # products in single precision, then the vectors in double
    dual = 4.5 * n * n + ((1 + coarse) * d * n if is_stored(d, n) else 0)
    return 8.0 * {"primal": 4.5 * d * d, "dual": dual, "svd": 2 * n * d + 2 * rank * (n + d)}[side]


def is_stored(d: int, rank: int) -> bool:
    """Whether eigenvectors of this size are kept as a matrix."""
    return 8.0 * d * rank <= STORED_BYTES


def eigh(matrix: Tensor, least: int = LARGE) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a symmetric matrix, which may be overwritten.

    Those of at least so many rows on a processor by SciPy's LAPACK: it takes two thirds of the time of torch's where
    they are large, and small ones do not wait for the threads of another library.
    """
    if matrix.device.type != "cpu" or len(matrix) < least:
        found = torch.linalg.eigh(matrix)
        return found.eigenvalues, found.eigenvectors
    values, vectors, failed = dsyevd(matrix.numpy().T, overwrite_a=1)  # columns first, as LAPACK has them
    if failed:
        raise RuntimeError(f"no eigenvalues of a matrix of {len(matrix):,} rows were found")
    return torch.from_numpy(values), torch.from_numpy(vectors)


def _primal(operator: LinearOperator, least: int) -> Spectrum:
    values, vectors = eigh(gram(operator), least)
    return Spectrum(Dense(vectors), values.clamp_min(0))


def _dual(operator: LinearOperator) -> Spectrum:
    return by_rows(operator)[0]


def by_rows(operator: LinearOperator) -> tuple[Spectrum, Tensor]:
    """The spectrum of GᵀG from GGᵀ, and U diag(√s), G in the coordinates of its row space: (n, rank)."""
    values, left = eigh(row_gram(operator))
    kept = values > cutoff(values, operator.shape[1])
    values, left = values[kept], left[:, kept]
    reduced = left * values.sqrt()
    if is_stored(operator.shape[1], len(values)):
        return Spectrum(Dense(operator.rmatmat(left.to(operator.like)).double().div_(values.sqrt())), values), reduced
    return Spectrum(operator.T @ Dense((left / values.sqrt()).to(operator.like)), values), reduced


def _svd(operator: LinearOperator) -> Spectrum:
    left, singular, right = torch.linalg.svd(operator.dense().double(), full_matrices=False)
    return Spectrum(Dense(right.mT.contiguous()), singular.square(), left)
