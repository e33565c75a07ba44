"""What priors believe images look like: total variation, its Gaussian stand-in TV-PredCP, a linearised network."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from lapwing.bayes.noise import Noise
from lapwing.studies.tomography.filter_prior import FilterPrior
from lapwing.studies.tomography.linear import Linearised

START = 10.0  # times 1 / weight: the width of the noise that images of total variation start from


def tv_samples(
    size: int, weight: float, *, draws: int = 4, sweeps: int = 500, seed: int = 0
) -> Tensor:  # (draws, size, size)
    """Images from p(x) ∝ exp(−weight · TV(x)) on [0, 1], by Gibbs sampling.

    Given its neighbours a pixel has a density that is exponential between them: it is drawn exactly, and half of the
    pixels at once, as the black fields of a chessboard have white neighbours only. Then the level of the
    whole image is drawn, which TV does not know. Pixels move by about 1 / weight in a sweep, so images start from noise
    of a few times that, and a heavy prior needs no more sweeps than a light one.

    Parameters
    ----------
    size : int
        Pixels along a side of the image.
    weight : float
        Of total variation.
    draws : int
        Number of draws.
    sweeps : int
        Of the Gibbs sampler.
    seed : int
        Of all random numbers.

    Returns
    -------
    Tensor
        (draws, size, size).

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
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
    x = min(1.0, START / weight) * torch.rand(draws, size, size, generator=generator, dtype=torch.float64)
    place = torch.arange(size)
    black = (place[:, None] + place) % 2 == 0
    for _ in range(sweeps):
        for colour in (black, ~black):
            uniform = torch.rand(draws, size, size, generator=generator, dtype=torch.float64)
            x = torch.where(colour, _pixels(x, weight, uniform), x)
        shape = x - x.amin((1, 2), keepdim=True)
        free = 1 - shape.amax((1, 2), keepdim=True)
        x = (shape + free * torch.rand(draws, 1, 1, generator=generator, dtype=torch.float64)).clamp(0, 1)
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
    return (start.gather(-1, piece) + width.gather(-1, piece) * _share(inside, rise))[..., 0].clamp(0, 1)


def _share(inside: Tensor, rise: Tensor) -> Tensor:
    """Where in [0, 1] a density ∝ exp(rise · t) has this much of its mass below.

    It is counted from the end where the density is high, so that no exponential overflows.
    """
    fall = -rise.abs()
    safe = torch.where(fall < -1e-8, fall, -1.0)
    within = torch.where(rise > 0, 1 - inside, inside)
    found = torch.where(fall < -1e-8, (torch.log1p(within * torch.expm1(safe)) / safe).clamp(0, 1), within)
    return torch.where(rise > 0, 1 - found, found)


def _log_mean_exp(rise: Tensor) -> Tensor:
    """log ∫₀¹ exp(rise · t) dt."""
    small = rise.abs() < 1e-8
    safe = torch.where(small, 1.0, rise)
    return torch.where(small, rise / 2, safe.clamp_min(0) + (-torch.expm1(-safe.abs())).log() - safe.abs().log())


def predcp_samples(
    size: int, rate: float, *, draws: int = 4, std: float = 1.0, seed: int = 0
) -> Tensor:  # (draws, size, size)
    """Images of mean zero from Gaussian processes whose expected total variation κ is exponential: TV-PredCP on pixels.

    The covariance of two pixels is std² · exp(−distance / ℓ), so that κ = c · √(1 − exp(−1 / ℓ)) with c that of
    independent pixels; every image has an ℓ of its own, where κ meets an exponential variable below c.

    Parameters
    ----------
    size : int
        Pixels along a side of the image.
    rate : float
        Of the exponential density.
    draws : int
        Number of draws.
    std : float
        Of a pixel.
    seed : int
        Of all random numbers.

    Returns
    -------
    Tensor
        (draws, size, size).

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> predcp_samples(5, 1.0, draws=3).shape
    torch.Size([3, 5, 5])
    """
    if size < 2 or draws < 1 or not (rate > 0 and std > 0):
        raise ValueError(
            f"size is {size}, draws {draws}, rate {rate} and std {std}: expected two pixels or more a side, one draw "
            "or more, and positive numbers"
        )
    generator = Generator().manual_seed(seed)
    largest = 2 * size * (size - 1) * 2 * std / math.sqrt(math.pi)
    uniform = torch.rand(draws, generator=generator, dtype=torch.float64)
    kappa = -torch.log1p(uniform * math.expm1(-rate * largest)) / rate
    decay = -torch.log1p(-(kappa / largest).square().clamp(1e-300, 1 - 1e-16))  # 1 / ℓ
    axis = torch.arange(size, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis)
    apart = torch.cdist(places, places)
    normals = torch.randn(draws, size * size, generator=generator, dtype=torch.float64)
    images = [_exponential(apart, one, z) for one, z in zip(decay, normals, strict=True)]
    return std * torch.stack(images).reshape(draws, size, size)


def _exponential(apart: Tensor, decay: Tensor, normals: Tensor) -> Tensor:  # (p,)
    """A draw of covariance exp(−decay · apart): the first pixel, then the others given it.

    Given it they have the covariance exp(−decay · dᵢⱼ) − exp(−decay · (dᵢ + dⱼ)), written so that nothing cancels: what
    differs between pixels may be many orders of magnitude below what they share.
    """
    first = apart[0, 1:]
    covariance = torch.exp(-decay * apart[1:, 1:])
    covariance *= -torch.expm1(-decay * (first[:, None] + first - apart[1:, 1:]))
    others = torch.exp(-decay * first) * normals[0] + torch.linalg.cholesky(covariance) @ normals[1:]
    return torch.cat([normals[:1], others])


def filter_samples(
    linear: Linearised, prior: FilterPrior, *, draws: int = 4, seed: int = 0
) -> Tensor:  # (draws, size, size)
    """J θ with filters θ from their prior: images as the linearised network makes them before any data.

    Parameters
    ----------
    linear : Linearised
        A linearised reconstruction.
    prior : FilterPrior
        Of its filters.
    draws : int
        Number of draws.
    seed : int
        Of all random numbers.

    Returns
    -------
    Tensor
        (draws, size, size).

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> filter_samples(linear, prior, draws=2).shape
    torch.Size([2, 6, 6])
    """
    size = linear.projector.size
    return (linear.jacobian @ prior.draw(Noise(seed), draws)).mT.reshape(draws, size, size)
