"""A small reconstruction, and dense truth about its linear model by another route: jacrev, inverses, determinants."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch
from torch.func import functional_call, jacrev

from lapwing.studies.tomography import (
    FilterPrior,
    Linearised,
    ParallelBeam,
    Reconstruction,
    Settings,
    deep_image_prior,
    linearise,
    projector,
    simulate,
)

SMALL = Settings(channels=(4, 5), skips=(2,), steps=300, learning_rate=1e-2, tv_weight=1e-3)


def phantom(size: int) -> torch.Tensor:
    image = torch.zeros(size, size).double()
    image[2 : size - 2, 3 : size - 2] = 0.8
    image[3 : size - 3, 4 : size - 3] = 0.3
    return image


@cache
def single(angles: int = 4, size: int = 8) -> Reconstruction:
    """As it is fitted, in single precision."""
    scan = simulate(phantom(size), projector(ParallelBeam.spread(angles, size), size), noise=0.05)
    return deep_image_prior(scan, SMALL, progress=False)


@cache
def reconstruction(angles: int = 4, size: int = 8) -> Reconstruction:
    """In double precision, so that references differ by round-off alone."""
    found = single(angles, size)
    model, given = deepcopy(found.model).double(), found.input.double()
    return replace(found, model=model, input=given, image=model(given)[0, 0].detach())


@cache
def linear(angles: int = 4, size: int = 8, store: bool = True) -> Linearised:
    return linearise(reconstruction(angles, size), store=store)


def prior(blocks) -> FilterPrior:
    """Different variances and lengthscales everywhere."""
    start = FilterPrior.start(blocks)
    count = len(blocks)
    return FilterPrior(
        start.blocks, torch.linspace(-4, -2, count).double(), torch.linspace(-1, 0.7, count).double().flip(0)
    )


def dense_jacobian(found: Reconstruction) -> torch.Tensor:
    """∂ image / ∂ filters by reverse mode, all at once."""
    weights = {name: weight.detach() for name, weight in found.model.named_parameters()}
    filters = {name: weight for name, weight in weights.items() if weight.ndim == 4}
    rows = jacrev(lambda w: functional_call(found.model, {**weights, **w}, (found.input,)).reshape(-1))(filters)
    return torch.cat([rows[name].reshape(len(rows[name]), -1) for name in filters], dim=1)


def dense_covariance(model, of: FilterPrior) -> torch.Tensor:
    """Σ_θ tensor by tensor, from distances written out."""
    names = [name for name, weight in model.named_parameters() if weight.ndim == 4]
    blocks = []
    for name in names:
        weight = model.get_parameter(name)
        parts = name.split(".")
        key = ".".join(parts[:2]) if parts[0] in ("down", "up", "skip") else parts[0]
        number = [block.name for block in of.blocks].index(key)
        variance, length = of.log_variance[number].exp(), of.log_lengthscale[number].exp()
        k = weight.shape[-1]
        taps = [(i, j) for i in range(k) for j in range(k)]
        kernel = torch.tensor([
            [float(variance * torch.exp(-(((a - c) ** 2 + (b - d) ** 2) ** 0.5) / length)) for c, d in taps]
            for a, b in taps
        ], dtype=torch.float64)  # fmt: skip
        kernel = kernel + 1e-6 * variance * torch.eye(k * k) if k > 1 else kernel
        blocks += [kernel] * (weight.numel() // (k * k))
    return torch.block_diag(*blocks)
