"""Pictures read through an affine map, differentiable in the picture and in the map."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Interpolation = Literal["bilinear", "bicubic"]
LOST = 0.02  # share of what differs from the fill that may lie outside the disc before it is said


def warp(images: Tensor, matrix: Tensor, *, fill: float = 0.0, interpolation: Interpolation = "bilinear") -> Tensor:
    """x(p) = x̂(T p) for pictures (n, channels, size, size) and maps (n, 3, 3); `fill` is what lies outside.

    Pixel centres of the first and the last row and column are at −1 and 1.

    Parameters
    ----------
    images : Tensor
        (n, channels, size, size).
    matrix : Tensor
        (n, 3, 3).
    fill : float
        What lies outside.
    interpolation : "bilinear" or "bicubic"
        Between pixels.

    Returns
    -------
    Tensor
        (n, channels, size, size).

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> from lapwing.studies.symmetry.group import Affine
    >>> quarter = Affine.of(rotation=torch.pi).matrix(torch.tensor([[torch.pi / 2]]))  # counter-clockwise
    >>> warp(torch.arange(9.0).reshape(1, 1, 3, 3), quarter)[0, 0].round().tolist()
    [[2.0, 5.0, 8.0], [1.0, 4.0, 7.0], [0.0, 3.0, 6.0]]
    """
    if images.ndim != 4 or matrix.shape[-2:] != (3, 3) or len(matrix) != len(images):
        raise ValueError(
            f"pictures of shape {tuple(images.shape)} and maps of shape {tuple(matrix.shape)}: expected "
            "(n, channels, size, size) and (n, 3, 3)"
        )
    grid = functional.affine_grid(matrix[:, :2], list(images.shape), align_corners=True)
    read = functional.grid_sample(images - fill, grid, mode=interpolation, align_corners=True)
    return read + fill


def disc(size: int, like: Tensor) -> Tensor:
    """One inside the largest disc of a picture, which a rotation keeps, and zero in its corners: (size, size).

    Parameters
    ----------
    size : int
        Pixels along a side.
    like : Tensor
        Whose dtype and device to take.

    Returns
    -------
    Tensor
        (size, size).

    Examples
    --------
    >>> disc(4, torch.zeros(1)).int().tolist()
    [[0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]]
    """
    place = torch.linspace(-1, 1, size, dtype=torch.float64)
    return (place[:, None].square() + place.square() <= 1 + 1.5 / size).to(like)


def masked(images: Tensor, fill: float) -> Tensor:
    """Pictures whose corners are the fill."""
    mask = disc(images.shape[-1], images)
    return images * mask + fill * (1 - mask)


def lost_in_corners(images: Tensor, fill: float) -> float:
    """Share of what differs from the fill that lies outside the disc, and leaves the picture when it is turned."""
    energy = (images - fill).square()
    outside = energy * (1 - disc(images.shape[-1], images))
    return float(outside.sum() / energy.sum().clamp_min(1e-30))


def checked(images: Tensor, *, turned: bool, fill: float = 0.0) -> Tensor:
    """Pictures as (n, channels, size, size) in [0, 1], corners masked where they are turned; or says what is wrong."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"pictures are {kind}: expected a tensor of floating-point numbers in [0, 1]")
    if images.ndim not in (3, 4):
        raise ValueError(
            f"pictures of shape {tuple(images.shape)}: expected (n, size, size) or (n, channels, size, size); "
            "a single picture is x[None]"
        )
    pictures = images[:, None] if images.ndim == 3 else images
    if not len(pictures) or pictures.shape[-1] != pictures.shape[-2] or pictures.shape[-1] < 3:
        raise ValueError(
            f"pictures of shape {tuple(images.shape)}: expected some, square, of at least 3 × 3 pixels; pad those "
            "that are not with their background"
        )
    if not bool(pictures.isfinite().all()) or float(pictures.min()) < -1e-6 or float(pictures.max()) > 1 + 1e-6:
        low, high = float(pictures.min()), float(pictures.max())
        raise ValueError(f"pictures have values from {low:.3g} to {high:.3g}: expected [0, 1]; divide by their largest")
    flat = pictures.flatten(1)
    constant = (flat.max(1).values - flat.min(1).values) < 1e-6
    if bool(constant.any()):
        first = int(constant.nonzero()[0, 0])
        raise ValueError(
            f"{int(constant.sum())} of {len(flat)} pictures are constant, first number {first}: they have no pose; "
            "leave them out"
        )
    if turned and (lost := lost_in_corners(pictures, fill)) > LOST:
        warnings.warn(
            f"{lost:.0%} of what these pictures show lies in their corners, which rotations lose: they are masked; "
            "pad the pictures with background to keep all", stacklevel=3,
        )  # fmt: skip
    return masked(pictures, fill) if turned else pictures
