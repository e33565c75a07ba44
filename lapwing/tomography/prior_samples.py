"""What the priors believe images look like: total variation, filters with TV-PredCP, and independent filter taps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Generator, Tensor

from lapwing.bayes.noise import Noise
from lapwing.tomography.expected_tv import DifferenceMoments, TvPredCp, sweep
from lapwing.tomography.filter_prior import FilterPrior
from lapwing.tomography.linear import Linearised

FACTORISED = 1e-2  # a lengthscale at which the taps of a filter are independent


def tv_samples(
    size: int, weight: float, *, draws: int = 4, sweeps: int = 500, seed: int = 0
) -> Tensor:  # (draws, size, size)
    """Images from p(x) ∝ exp(−weight · TV(x)) on [0, 1], by Gibbs sampling from uniform noise.

    Given its neighbours a pixel has a density that is exponential between them: it is drawn exactly, and half of the
    pixels at once, as the black fields of a chessboard have white neighbours only.

    >>> flat = tv_samples(6, 100.0, draws=2)
    >>> float((flat.amax((1, 2)) - flat.amin((1, 2))).max()) < 0.2
    True
    """
    if size < 2 or draws < 1 or sweeps < 1 or not weight > 0:
        raise ValueError(
            f"size is {size}, draws {draws}, sweeps {sweeps} and weight {weight}: expected two pixels or more a side, "
            "one draw and sweep or more, and a positive weight"
        )
    generator = Generator().manual_seed(seed)
    x = torch.rand(draws, size, size, generator=generator, dtype=torch.float64)
    place = torch.arange(size)
    black = (place[:, None] + place) % 2 == 0
    for _ in range(sweeps):
        for colour in (black, ~black):
            uniform = torch.rand(draws, size, size, generator=generator, dtype=torch.float64)
            x = torch.where(colour, _pixels(x, weight, uniform), x)
    return x


def _pixels(x: Tensor, weight: float, uniform: Tensor) -> Tensor:  # (draws, size, size)
    """Every pixel drawn given its neighbours, by its inverse distribution function at a uniform number."""
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1), value=torch.nan)
    beside = torch.stack([padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:]], dim=-1)
    count = beside.isfinite().sum(-1, keepdim=True)
    knots = beside.nan_to_num(1.0).sort(-1).values  # beyond the edge: at 1, where nothing is left of them
    ends = torch.cat([torch.zeros_like(knots[..., :1]), knots, torch.ones_like(knots[..., :1])], dim=-1)
    start, width = ends[..., :-1], ends.diff(dim=-1)
    below = torch.minimum(torch.arange(5), count)  # neighbours below each piece
    slope = weight * (count - 2.0 * below)  # of the logarithm
    energy = (knots.unsqueeze(-2) - start.unsqueeze(-1)).abs()
    real = torch.arange(4) < count
    height = -weight * (energy * real.unsqueeze(-2)).sum(-1)  # log-density at the start of each piece
    mass = height + width.clamp_min(1e-300).log() + _log_mean_exp(slope * width)
    mass = (mass - mass.amax(-1, keepdim=True)).exp() * (width > 0)
    edges = mass.cumsum(-1)
    aim = uniform.unsqueeze(-1) * edges[..., -1:]
    piece = (aim > edges).sum(-1, keepdim=True).clamp_max(4)
    inside = ((aim - (edges - mass).gather(-1, piece)) / mass.gather(-1, piece).clamp_min(1e-300)).clamp(0, 1)
    rise = (slope * width).gather(-1, piece)
    share = torch.where(rise.abs() > 1e-8, torch.log1p(inside * torch.expm1(rise)) / rise, inside)
    return (start.gather(-1, piece) + width.gather(-1, piece) * share)[..., 0].clamp(0, 1)


def _log_mean_exp(rise: Tensor) -> Tensor:
    """log ∫₀¹ exp(rise · t) dt."""
    small = rise.abs() < 1e-8
    safe = torch.where(small, 1.0, rise)
    return torch.where(small, rise / 2, safe.clamp_min(0) + (-torch.expm1(-safe.abs())).log() - safe.abs().log())


def filter_samples(linear: Linearised, prior: FilterPrior, *, draws: int = 4, seed: int = 0) -> Tensor:
    """J θ with filters θ from the prior: images as the linearised network makes them before any data, (draws, …)."""
    size = linear.projector.size
    return (linear.jacobian @ prior.draw(Noise(seed), draws)).mT.reshape(draws, size, size)


def factorised(prior: FilterPrior) -> FilterPrior:
    """The same variances with independent taps."""
    return replace(prior, log_lengthscale=torch.full_like(prior.log_lengthscale, math.log(FACTORISED)))


def predcp_lengthscales(
    density: TvPredCp, moments: DifferenceMoments, prior: FilterPrior, *, seed: int = 0, points: int = 400
) -> FilterPrior:
    """The prior with every lengthscale drawn from the hyperprior: κ is exponential, and ℓ the place where it is met.

    Where κ is not monotone in ℓ there is no such density, and the lengthscale stays.
    """
    generator = Generator().manual_seed(seed)
    lengths = prior.log_lengthscale.clone()
    for number, block in enumerate(prior.blocks):
        uniform = torch.rand((), generator=generator, dtype=torch.float64)
        seen = sweep(moments, prior, number, points) if block.side > 1 else None
        if seen is not None and seen.monotone:
            lengths[number] = _met(seen.kappa, seen.lengthscales.log(), density.rate, uniform)
    return replace(prior, log_lengthscale=lengths)


def _met(kappa: Tensor, logs: Tensor, rate: float, uniform: Tensor) -> Tensor:
    """log ℓ at which κ is an exponential variable between its smallest and largest value."""
    order = kappa.argsort()
    kappa, logs = kappa[order], logs[order]
    above = kappa - kappa[0]
    aim = -torch.log1p(uniform * torch.expm1(-rate * above[-1])) / rate
    right = torch.searchsorted(above, aim).clamp(1, len(above) - 1)
    share = (aim - above[right - 1]) / (above[right] - above[right - 1]).clamp_min(1e-300)
    return torch.lerp(logs[right - 1], logs[right], share.clamp(0, 1))
