"""Scores of a reconstruction against the truth."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d

WINDOW = 7  # pixels along a side of the window of SSIM


def psnr(image: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio in decibel, the peak being the range of the truth.

    >>> round(psnr(torch.tensor([[0.1, 1.0]]), torch.tensor([[0.0, 1.0]])), 2)
    23.01
    """
    mse = float((image.double() - truth.double()).square().mean())
    peak = float(truth.max() - truth.min()) or 1.0
    return math.inf if mse == 0 else 10 * math.log10(peak**2 / mse)


def ssim(image: Tensor, truth: Tensor) -> float:
    """Structural similarity (Wang et al. 2004), uniform windows of 7 × 7 pixels that lie inside the image.

    >>> picture = torch.rand(9, 9, generator=torch.Generator().manual_seed(0))
    >>> round(ssim(picture, picture), 6)
    1.0
    """
    x, y = image.double(), truth.double()
    if min(x.shape) < WINDOW:
        raise ValueError(f"an image of shape {tuple(x.shape)} is smaller than the window of {WINDOW} pixels")
    peak = float(y.max() - y.min()) or 1.0
    unbiased = WINDOW**2 / (WINDOW**2 - 1)
    mean_x, mean_y = _mean(x), _mean(y)
    var_x, var_y = (unbiased * (_mean(z * z) - m * m) for z, m in ((x, mean_x), (y, mean_y)))
    both = unbiased * (_mean(x * y) - mean_x * mean_y)
    a, b = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    top, bottom = (2 * mean_x * mean_y + a) * (2 * both + b), (mean_x**2 + mean_y**2 + a) * (var_x + var_y + b)
    return float((top / bottom).mean())


def _mean(image: Tensor) -> Tensor:
    kernel = torch.full((1, 1, WINDOW, WINDOW), 1 / WINDOW**2, dtype=torch.float64)
    return conv2d(image[None, None], kernel)[0, 0]


def histogram_distance(std: Tensor, error: Tensor) -> float:
    """The largest gap of the distributions of |error| and of |N(0, std²)|, in [0, 1]: Kolmogorov's distance.

    If every error is N(0, std²), this is of order 1/√pixels.

    >>> std = torch.linspace(0.5, 2, 4000)
    >>> histogram_distance(std, std * torch.randn(4000, generator=torch.Generator().manual_seed(0))) < 0.03
    True
    """
    seen = error.abs().reshape(-1).double().sort().values
    spread = std.reshape(-1).double().clamp_min(1e-12)
    expected = torch.stack([torch.erf(value / (spread * math.sqrt(2))).mean() for value in seen])
    steps = torch.arange(1, len(seen) + 1, dtype=torch.float64) / len(seen)
    return float(torch.maximum((steps - expected).abs(), (steps - 1 / len(seen) - expected).abs()).max())
