"""Pictures turned about their middle."""

from __future__ import annotations

from math import cos, radians, sin

import torch
from torch import Tensor


def rotate(images: Tensor, degrees: float) -> Tensor:
    """The pictures turned counter-clockwise about their middle, bilinearly, with black where nothing was.

    Parameters
    ----------
    images : Tensor
        (n, channels, height, width), in [0, 1].
    degrees : float
        Counter-clockwise.

    Returns
    -------
    Tensor
        Of the same shape.

    Raises
    ------
    ValueError
        If the pictures have another form, or are not in [0, 1].

    Examples
    --------
    >>> rotate(torch.tensor([[[[0.0, 1.0], [0.0, 0.0]]]]), 90).round().tolist()
    [[[[1.0, 0.0], [0.0, 0.0]]]]
    """
    check_images(images)
    height, width = images.shape[2:]
    turn = radians(degrees)
    aspect = height / width  # the grid runs from −1 to 1 along both sides, whatever their lengths
    matrix = [[cos(turn), -sin(turn) * aspect, 0.0], [sin(turn) / aspect, cos(turn), 0.0]]
    theta = torch.tensor(matrix, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def check_images(images: Tensor) -> None:
    """Refuses what is not a stack of pictures in [0, 1]."""
    if images.ndim != 4 or 0 in images.shape[1:] or not images.is_floating_point():
        raise ValueError(
            f"pictures must be (n, channels, height, width) floating-point numbers, not {images.dtype} of shape "
            f"{tuple(images.shape)}"
        )
    if len(images) and not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError(
            f"pictures must lie in [0, 1], but theirs run from {float(images.min()):.4g} to {float(images.max()):.4g}: "
            "corrupt first, normalise after"
        )
