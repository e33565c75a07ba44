"""The projector: line integrals of an image of pixels, as a sparse matrix of exact intersection lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lapwing.linalg.operators import Sparse
from lapwing.studies.tomography.scanning.geometry import FanBeam, Geometry, check_source

ENTRIES = 2**22  # crossings of rays with grid lines worked on at once
DENSE = 2**22  # a matrix of no more numbers than this multiplies faster stored in full
AXIAL = 1e-9  # a direction with a component below this runs along the grid
NUDGE = 1e-7  # pixels by which such a ray is moved to either side


@final
@dataclass(frozen=True, eq=False)
class Projector:
    """y = A x: the line integrals of a square image along the rays of a geometry.

    `operator` is the matrix (angles · bins, size²), whose adjoint is its transpose; the image is taken row by row.

    Parameters
    ----------
    geometry : ParallelBeam or FanBeam
        Of the scanner.
    size : int
        Pixels along a side of the image.
    operator : LinearOperator
        The matrix, (angles · bins, size²).

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam
    >>> A = projector(ParallelBeam([0.0, 0.5], bins=3), size=2)
    >>> A.shape, A.back_project(A.project([[1.0, 0.0], [0.0, 0.0]])).shape
    ((2, 3), torch.Size([2, 2]))
    """

    geometry: Geometry
    size: int  # pixels along one side of the image
    operator: Sparse

    @property
    def shape(self) -> tuple[int, int]:
        """Of a sinogram: angles and bins."""
        return (len(self.geometry.angles), self.geometry.bins)

    def project(self, image: Any) -> Tensor:  # (size, size) -> (angles, bins)
        """The sinogram of an image, in float64."""
        return (self.operator @ square_image(image, self.size).reshape(-1)).reshape(self.shape)

    def back_project(self, sinogram: Any) -> Tensor:  # (angles, bins) -> (size, size)
        """The adjoint: every pixel sums the rays through it, weighted by length."""
        return (self.operator.T @ self.checked(sinogram).reshape(-1)).reshape(self.size, self.size)

    def checked(self, sinogram: Any) -> Tensor:  # (angles, bins), float64
        """A sinogram of this geometry, or an error."""
        found = torch.as_tensor(sinogram).detach().double()
        if tuple(found.shape) != self.shape:
            raise ValueError(
                f"a sinogram of shape {tuple(found.shape)} does not fit this geometry of {self.shape[0]} angles with "
                f"{self.shape[1]} bins: expected shape {self.shape}, one row per angle (transpose it, or change bins)"
            )
        if not bool(found.isfinite().all()):
            raise ValueError(f"the sinogram has {int((~found.isfinite()).sum())} values that are NaN or infinite")
        return found

    def at(self, indices: Any) -> Sparse:
        """The rows of some angles alone, by their numbers."""
        rows = torch.arange(self.shape[0] * self.shape[1]).reshape(self.shape)[torch.as_tensor(indices)].reshape(-1)
        return Sparse(self.operator.matrix[rows.numpy()])

    def part(self, indices: Any) -> Projector:
        """The same scanner at some of its angles alone, by their numbers or by a mask."""
        chosen = torch.as_tensor(indices)
        geometry: Any = self.geometry
        return replace(self, geometry=replace(geometry, angles=geometry.angles[chosen]), operator=self.at(chosen))

    def differentiable(self, flat: Tensor) -> Tensor:  # (size²,) -> (angles · bins,)
        """A x for a tensor that records gradients, in its own precision."""
        if isinstance(self._single, Tensor):
            return self._single.to(flat) @ flat
        return _Projection.apply(flat, self._single, self._single_transposed)

    @cached_property
    def _single(self) -> Any:
        matrix = self.operator.matrix.astype(np.float32)
        small = matrix.shape[0] * matrix.shape[1] <= DENSE
        return torch.from_numpy(matrix.toarray()) if small else matrix

    @cached_property
    def _single_transposed(self) -> Any:
        return scipy.sparse.csr_array(self._single.T)


class _Projection(torch.autograd.Function):
    """A sparse product of SciPy with its exact adjoint as gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Any, transposed: Any) -> Tensor:
        ctx.transposed = transposed
        return torch.from_numpy(matrix @ x.detach().numpy()).to(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return torch.from_numpy(ctx.transposed @ gradient.numpy()).to(gradient), None, None


def projector(geometry: Geometry, size: int) -> Projector:
    """The projector of a geometry onto images of size × size pixels of unit side.

    Every matrix entry is the length of a ray inside a pixel, from the sorted crossings of the ray with the grid lines;
    a ray along a grid line counts half on either side. The source of a fan has to turn outside the image.

    Parameters
    ----------
    geometry : ParallelBeam or FanBeam
        Of the scanner.
    size : int
        Pixels along a side of the image.

    Returns
    -------
    Projector
        With `project` and `back_project`.

    Raises
    ------
    ValueError
        If the size is below one, or the source would be inside the image.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam
    >>> A = projector(ParallelBeam([0.0, 0.5], bins=3), size=2)
    >>> A.project([[1.0, 2.0], [3.0, 4.0]])[0]
    tensor([2., 5., 3.], dtype=torch.float64)
    """
    if size < 1:
        raise ValueError(f"size is {size}, expected the number of pixels along one side of the image")
    if isinstance(geometry, FanBeam):
        check_source(geometry.source, size)
    points, directions = (part.numpy() for part in geometry.rays())
    height = max(1, ENTRIES // (2 * size + 2))
    blocks = [
        _traced(points[start : start + height], directions[start : start + height], size)
        for start in range(0, len(points), height)
    ]
    return Projector(geometry, size, Sparse(scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr"))))


def _traced(points: np.ndarray, directions: np.ndarray, size: int) -> scipy.sparse.csr_array:
    """Rows of the matrix for some rays; those along the grid are moved a little to both sides, and averaged."""
    axial = (np.abs(directions) < AXIAL).any(1)
    aside = NUDGE * np.stack([-directions[:, 1], directions[:, 0]], axis=1) * axial[:, None]
    one, other = (_lengths(points + shift, directions, size) for shift in (aside, -aside))
    return (one + other) * 0.5 if axial.any() else one


def _lengths(points: np.ndarray, directions: np.ndarray, size: int) -> scipy.sparse.csr_array:
    """Intersection lengths of rays with pixels, by the parameters at which they cross the grid lines."""
    lines = np.arange(size + 1) - size / 2
    moving = np.abs(directions) >= AXIAL
    speed = np.where(moving, directions, 1.0)
    crossings = (lines[None, None] - points[:, :, None]) / speed[:, :, None]  # (rays, 2, size + 1)
    first, last = crossings.min(2), crossings.max(2)
    inside = np.abs(points) < size / 2  # of a ray along the grid: between the outer lines, always; else, never
    first = np.where(moving, first, np.where(inside, -np.inf, np.inf))
    last = np.where(moving, last, np.where(inside, np.inf, -np.inf))
    enter, leave = first.max(1), last.min(1)
    hits = enter < leave
    enter, leave = np.where(hits, enter, 0.0), np.where(hits, leave, 0.0)
    crossings = np.where(moving[:, :, None], crossings, enter[:, None, None]).reshape(len(points), -1)
    crossings = np.sort(np.clip(crossings, enter[:, None], leave[:, None]), axis=1)
    lengths, middles = np.diff(crossings), (crossings[:, 1:] + crossings[:, :-1]) / 2
    rays, steps = np.nonzero(lengths > 1e-12)
    x, y = (points[rays, axis] + middles[rays, steps] * directions[rays, axis] for axis in (0, 1))
    columns = np.clip(np.floor(x + size / 2), 0, size - 1).astype(np.int64)
    rows = np.clip(np.floor(size / 2 - y), 0, size - 1).astype(np.int64)
    entries = (lengths[rays, steps], (rays, rows * size + columns))
    return scipy.sparse.csr_array(scipy.sparse.coo_array(entries, shape=(len(points), size * size)))


def square_image(image: Any, size: int | None = None) -> Tensor:  # (size, size), float64
    """A finite square image in float64, or an error that says what is wrong with it."""
    found = torch.as_tensor(image).detach().double()
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found):
        raise ValueError(
            f"an image of shape {tuple(found.shape)} is not square: expected (size, size); crop or pad it first"
        )
    if size is not None and len(found) != size:
        raise ValueError(f"an image of {len(found)} × {len(found)} pixels does not fit a projector for {size} × {size}")
    if not bool(found.isfinite().all()):
        raise ValueError(
            f"the image has {int((~found.isfinite()).sum())} pixels that are NaN or infinite: replace them first"
        )
    return found
