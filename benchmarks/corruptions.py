"""Pictures made worse on purpose, by rotation or by the corruptions of Hendrycks & Dietterich (2019).

Pictures are (n, channels, height, width) in [0, 1], grey or coloured. The strengths are those the authors chose for
CIFAR-10-C, which suit pictures of about 32 pixels; where their program calls an image library this one does the same
arithmetic itself, so pixels agree in kind but not bit by bit. Left out are the kinds that are made from photographs
(frost) or are drawn by hand (snow, spatter). Chance depends on the seed, the kind and the number of the picture alone:
the same picture comes out whatever the batches, and the five severities share their noise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from io import BytesIO
from math import ceil, cos, radians, sin

import numpy as np
import torch
from numpy.random import Generator
from scipy import ndimage
from torch import Tensor

from lapwing.studies.datasets.rotation import check_images, rotate

SEVERITIES = (1, 2, 3, 4, 5)
ROTATIONS = tuple(range(0, 181, 15))

__all__ = ["CORRUPTIONS", "ROTATIONS", "SEVERITIES", "check_images", "corrupt", "rotate"]

Corruption = Callable[[np.ndarray, int, Generator], np.ndarray]  # (channels, height, width), severity − 1, chance


def corrupt(images: Tensor, kind: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """The pictures after one kind of corruption (a key of CORRUPTIONS), of severity 1 to 5.

    `first` is the number of the first picture in its data set, so that parts come out as the whole would.

    >>> corrupt(torch.full((1, 3, 8, 8), 0.5), "contrast", 5).mean().item()
    0.5
    """
    if kind not in CORRUPTIONS:
        raise ValueError(f"no corruption is called {kind!r}; there are {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise ValueError(f"severities are 1 to 5, not {severity!r}")
    check_images(images)
    pictures = images.detach().cpu().double().numpy()
    worsen, code = CORRUPTIONS[kind], zlib.crc32(kind.encode())
    worse = np.empty_like(pictures)
    for row, picture in enumerate(pictures):
        chance = np.random.default_rng([seed, code, first + row])
        worse[row] = np.clip(worsen(picture, severity - 1, chance), 0, 1)
    return torch.from_numpy(worse).to(images)


def gaussian_noise(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Independent normal noise."""
    return picture + (0.04, 0.06, 0.08, 0.09, 0.10)[level] * chance.standard_normal(picture.shape)


def shot_noise(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Poisson noise of so many photons at full brightness."""
    photons = (500, 250, 100, 75, 50)[level]
    return chance.poisson(picture * photons) / photons


def impulse_noise(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """A share of the values put to 0 or 1, half each."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    where, high = chance.random(picture.shape), chance.random(picture.shape) < 0.5
    return np.where(where < share, high, picture)


def defocus_blur(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """The mean over a disc, its rim softened by a narrow Gaussian."""
    del chance
    radius, softness = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[level]
    reach = ceil(radius) + 1
    offsets = np.arange(-reach, reach + 1)
    disc = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(float)
    soft = np.exp(-(np.array([-1, 0, 1]) ** 2) / (2 * softness**2))
    kernel = ndimage.convolve(disc / disc.sum(), np.outer(soft, soft) / soft.sum() ** 2, mode="constant")
    return ndimage.correlate(picture, kernel[None], mode="mirror")


def motion_blur(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """A trail that fades as half a Gaussian, in a direction within 45° of the horizontal."""
    radius, fading = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[level]
    angle = radians(chance.uniform(-45, 45))
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * fading**2))
    reach = 2 * radius
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    rows, columns = (np.rint(steps * part).astype(int) + reach for part in (sin(angle), cos(angle)))
    np.add.at(kernel, (rows, columns), weights / weights.sum())
    return ndimage.correlate(picture, kernel[None], mode="nearest")


def zoom_blur(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """The mean of the picture and of ever larger ones about the same middle."""
    del chance
    last = (5, 10, 15, 20, 25)[level]
    zooms = [1.0, *(1 + percent / 100 for percent in range(last + 1))]
    return np.mean([_zoomed(picture, zoom) for zoom in zooms], axis=0)


def brightness(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """The largest channel raised by a constant, hue and saturation kept (the value of HSV)."""
    del chance
    value = picture.max(0, keepdims=True)
    raised = np.minimum(value + (0.05, 0.1, 0.15, 0.2, 0.3)[level], 1)
    return np.where(value > 0, picture * raised / np.where(value > 0, value, 1), raised)


def contrast(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Drawn towards the mean of each channel."""
    del chance
    mean = picture.mean((1, 2), keepdims=True)
    return mean + (0.75, 0.5, 0.4, 0.3, 0.15)[level] * (picture - mean)


def pixelate(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Made smaller by the means of boxes, and larger again by repeating pixels."""
    del chance
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    down, across = (_boxes(size, max(1, int(size * share))) for size in picture.shape[1:])
    return down @ picture @ across.T


def jpeg(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Compressed as a JPEG file; needs Pillow, which lapwing[plot] and lapwing[ct] bring."""
    del chance
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "JPEG compression needs Pillow, which comes with lapwing[plot]: pip install pillow"
        ) from error
    if len(picture) not in (1, 3):
        raise ValueError(f"JPEG compression takes pictures of 1 or 3 channels, not {len(picture)}")
    colours = np.rint(picture * 255).astype(np.uint8).transpose(1, 2, 0)
    file = BytesIO()
    Image.fromarray(colours if len(picture) == 3 else colours[..., 0]).save(
        file, "JPEG", quality=(80, 65, 58, 50, 40)[level]
    )
    with Image.open(file) as decoded:
        return np.atleast_3d(np.asarray(decoded)).transpose(2, 0, 1) / 255


def elastic(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Bent: a random affine map, then a smooth random displacement, in shares of the picture's size."""
    strength, smoothness, corner = (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[level]
    shape = picture.shape[1:]
    size = min(shape)
    inverse = _inverse_affine(shape, corner * size, chance)
    pushes = chance.uniform(-1, 1, (2, *shape))
    smooth = [ndimage.gaussian_filter(push, smoothness * size, mode="reflect", truncate=3) for push in pushes]
    places = np.indices(shape) + strength * size * np.array(smooth)
    sources = np.einsum("ij,jhw->ihw", inverse[:, :2], places) + inverse[:, 2, None, None]
    return np.stack([ndimage.map_coordinates(channel, sources, order=1, mode="reflect") for channel in picture])


def fog(picture: np.ndarray, level: int, chance: Generator) -> np.ndarray:
    """Under a cloud of fractal noise, and darkened to the old range."""
    density, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[level]
    height, width = picture.shape[1:]
    cloud = _plasma(max(height, width), decay, chance)[:height, :width]
    top = picture.max()
    return (picture + density * cloud) * top / (top + density)


def _zoomed(picture: np.ndarray, zoom: float) -> np.ndarray:
    middle = (np.array(picture.shape[1:]) - 1) / 2
    offset = middle - middle / zoom
    return np.stack(
        [ndimage.affine_transform(c, np.full(2, 1 / zoom), offset, order=1, mode="nearest") for c in picture]
    )


def _boxes(size: int, smaller: int) -> np.ndarray:
    """What shrinking a side to `smaller` boxes and repeating them does to it: (size, size)."""
    scale = size / smaller
    from_middle = (np.arange(size) + 0.5 - (np.arange(smaller)[:, None] + 0.5) * scale) / scale
    shrink = ((from_middle > -0.5) & (from_middle <= 0.5)).astype(float)
    repeat = ((np.arange(size) + 0.5) / scale).astype(int)
    return (shrink / shrink.sum(1, keepdims=True))[repeat]


def _inverse_affine(shape: tuple[int, ...], reach: float, chance: Generator) -> np.ndarray:
    """Where pixels come from when three points about the middle are each moved by up to `reach`: (2, 3)."""
    middle, side = np.array(shape) // 2, min(shape) // 3
    points = middle + side * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = points + chance.uniform(-reach, reach, points.shape)
    return np.linalg.solve(np.column_stack([moved, np.ones(3)]), points.astype(float)).T


def _plasma(size: int, decay: float, chance: Generator) -> np.ndarray:
    """Heights in [0, 1] by the diamond-square method on a periodic grid; roughness falls by decay² at each halving."""
    side = 1 << (size - 1).bit_length()
    heights, step, rough = np.zeros((side, side)), side, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        centres = _mean_of_four(corners, (0, 0), (-1, 0), (0, -1), (-1, -1))
        heights[half::step, half::step] = centres + _wobble(centres, rough, chance)
        centres = heights[half::step, half::step]
        beside = (corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 0)) / 4
        below = (corners + np.roll(corners, -1, 0) + centres + np.roll(centres, 1, 1)) / 4
        heights[::step, half::step] = beside + _wobble(beside, rough, chance)
        heights[half::step, ::step] = below + _wobble(below, rough, chance)
        step, rough = half, rough / decay**2
    heights -= heights.min()
    return heights / max(heights.max(), np.finfo(float).tiny)


def _mean_of_four(values: np.ndarray, *shifts: tuple[int, int]) -> np.ndarray:
    return np.mean([np.roll(values, shift, (0, 1)) for shift in shifts], axis=0)


def _wobble(values: np.ndarray, rough: float, chance: Generator) -> np.ndarray:
    return rough * chance.uniform(-1, 1, values.shape)


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic": elastic,
    "pixelate": pixelate,
    "jpeg": jpeg,
}
