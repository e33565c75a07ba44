"""Where the rays of a scanner run: lines in the plane, the image centred at the origin, lengths in pixels.

The first image axis runs downwards, the second to the right; x points right and y up. A sinogram has one row per angle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor

from lapwing.linalg.operators import as_tensor


class Geometry(Protocol):
    """What a projector needs to know of a scanner."""

    @property
    def angles(self) -> Any:
        """Angles of the gantry in radians."""

    @property
    def bins(self) -> int:
        """Rays per angle."""

    def rays(self) -> tuple[Tensor, Tensor]:  # (angles · bins, 2) each
        """A point and the unit direction (x, y) of every ray, angle by angle."""


@final
@dataclass(frozen=True, eq=False)
class ParallelBeam:
    """Parallel rays: bin b at angle φ is the line x cos φ + y sin φ = (b − (bins − 1) / 2) · spacing.

    Parameters
    ----------
    angles : sequence of float
        In radians.
    bins : int
        Rays of an angle.
    spacing : float
        Of neighbouring rays, in pixels.

    Examples
    --------
    >>> ParallelBeam.spread(angles=4, size=28).bins
    41
    """

    angles: Any  # (k,), radians
    bins: int
    spacing: float = 1.0  # of neighbouring rays, in pixels

    def __post_init__(self) -> None:
        object.__setattr__(self, "angles", _checked_angles(self.angles))
        _check_detector(self.bins, self.spacing)

    @staticmethod
    def spread(angles: int, size: int) -> ParallelBeam:
        """Equispaced angles over half a turn, and an odd number of unit bins that covers the diagonal of the image."""
        if angles < 1:
            raise ValueError(f"angles is {angles}: a scan needs at least one")
        if size < 1:
            raise ValueError(f"size is {size}, expected the number of pixels along one side of the image")
        bins = math.ceil(math.sqrt(2) * size)
        return ParallelBeam(torch.arange(angles, dtype=torch.float64) * (math.pi / angles), bins + 1 - bins % 2)

    def rays(self) -> tuple[Tensor, Tensor]:
        """A point and the unit direction of every ray."""
        across = _directions(self.angles)  # (k, 2)
        points = _offsets(self.bins, self.spacing)[None, :, None] * across[:, None]
        along = _quarter_turn(across)[:, None].expand_as(points)
        return points.reshape(-1, 2), along.reshape(-1, 2)


@final
@dataclass(frozen=True, eq=False)
class FanBeam:
    """Rays from a point source to a flat detector, both turning about the centre of the image.

    At angle φ the source is at `source` (cos φ, sin φ), and the middle of the detector is opposite, at `detector` from
    the centre; all lengths are in pixels.

    Parameters
    ----------
    angles : sequence of float
        In radians.
    bins : int
        Rays of an angle.
    spacing : float
        Of detector bins, in pixels, on the detector itself.
    source : float
        Distance of the source from the centre, in pixels.
    detector : float
        Distance of the detector from the centre, in pixels.

    Raises
    ------
    ValueError
        If a distance is not positive.

    Examples
    --------
    >>> FanBeam.spread(angles=6, size=32).bins
    64
    """

    angles: Any  # (k,), radians
    bins: int
    spacing: float  # of detector bins, in pixels, on the detector itself
    source: float  # distance from the centre
    detector: float  # distance from the centre

    def __post_init__(self) -> None:
        object.__setattr__(self, "angles", _checked_angles(self.angles))
        _check_detector(self.bins, self.spacing)
        if not (self.source > 0 and self.detector >= 0):
            raise ValueError(
                f"source is {self.source} and detector {self.detector} pixels from the centre: expected a positive "
                "distance of the source, and none below zero of the detector"
            )

    @staticmethod
    def spread(angles: int, size: int, source: float = 2.0, detector: float = 1.0) -> FanBeam:
        """Equispaced angles over a full turn, the fan as wide as the image; distances in multiples of its side."""
        if angles < 1:
            raise ValueError(f"angles is {angles}: a scan needs at least one")
        radius, far = size / math.sqrt(2), source * size
        check_source(far, size)
        half = (far + detector * size) * radius / math.sqrt(far**2 - radius**2)
        full = torch.arange(angles, dtype=torch.float64) * (2 * math.pi / angles)
        return FanBeam(full, 2 * size, half / size, far, detector * size)

    def rays(self) -> tuple[Tensor, Tensor]:
        """The source and the unit direction of every ray."""
        outward = _directions(self.angles)  # (k, 2)
        along = _quarter_turn(outward)
        middle = -self.detector * outward
        targets = middle[:, None] + _offsets(self.bins, self.spacing)[None, :, None] * along[:, None]
        sources = (self.source * outward)[:, None].expand_as(targets)
        directions = targets - sources
        directions = directions / directions.norm(dim=-1, keepdim=True)
        return sources.reshape(-1, 2), directions.reshape(-1, 2)


def check_source(distance: float, size: int) -> None:
    """Refuse a source that may lie inside the image as it turns: rays are whole lines, with what is behind it too."""
    if distance <= size / math.sqrt(2):
        raise ValueError(
            f"the source would be inside the image, or beside it: it is {distance:g} pixels from the centre, and the "
            f"corners of {size} × {size} pixels are {size / math.sqrt(2):.4g} away; move it beyond them, which is 0.71 "
            "sides, or make the image smaller"
        )


def _checked_angles(angles: Any) -> Tensor:
    found = as_tensor(angles).double()
    if found.ndim != 1 or len(found) == 0:
        raise ValueError(
            f"angles have shape {tuple(found.shape)}: a scan needs at least one angle, as a list of radians"
        )
    if not bool(found.isfinite().all()):
        raise ValueError("some angles are NaN or infinite: expected radians")
    return found


def _check_detector(bins: int, spacing: float) -> None:
    if bins < 1 or not (math.isfinite(spacing) and spacing > 0):
        raise ValueError(
            f"bins is {bins} and spacing {spacing}: a detector needs at least one bin, a positive distance apart"
        )


def _directions(angles: Tensor) -> Tensor:  # (k, 2)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _quarter_turn(directions: Tensor) -> Tensor:
    return torch.stack([-directions[..., 1], directions[..., 0]], dim=-1)


def _offsets(bins: int, spacing: float) -> Tensor:  # (bins,)
    return (torch.arange(bins, dtype=torch.float64) - (bins - 1) / 2) * spacing
