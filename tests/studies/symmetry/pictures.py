"""Pictures whose symmetries are known."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from lapwing.linalg.estimators import Estimate
from lapwing.studies.datasets import digits as bundled


def smooth(size: int, seed: int = 0, waves: int = 4) -> Tensor:
    """A band-limited picture that fades towards the rim of its disc, float64: (1, 1, size, size) in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.linspace(-1, 1, size, dtype=torch.float64)
    y, x = torch.meshgrid(place, place, indexing="ij")
    total = torch.zeros_like(x)
    for _ in range(waves):
        a, b, phase, height = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        total += height * torch.cos(3 * (a - 0.5) * x + 3 * (b - 0.5) * y + 6 * phase)
    fade = torch.exp(-4 * (x**2 + y**2))
    total = (total - total.min()) / (total.max() - total.min()) * fade
    return total[None, None]


def digits(kinds: tuple[int, ...], size: int = 14) -> tuple[Tensor, Tensor]:
    """Bundled digits of some kinds with a margin, float32, and their labels."""
    (x, y), (more_x, more_y) = bundled().train, bundled().test
    x, y = torch.cat([x, more_x]).float(), torch.cat([y, more_y])
    chosen = torch.isin(y, torch.tensor(kinds))
    inner = functional.interpolate(x[chosen], size=(10, 10), mode="bilinear", align_corners=True)
    return functional.pad(inner, [(size - 10) // 2] * 4), y[chosen]


def turned(images: Tensor, degrees: float, seed: int) -> tuple[Tensor, Tensor]:
    """Every picture turned by its own angle, uniform in ±degrees; and the angles in radians."""
    from lapwing.studies.symmetry.group import Affine
    from lapwing.studies.symmetry.warping import warp

    unit = torch.rand(len(images), generator=torch.Generator().manual_seed(seed)).to(images)
    angle = (2 * unit - 1) * math.radians(degrees)
    return warp(images, Affine.of(rotation=math.pi).matrix(angle[:, None])).clamp(0, 1), angle


def kl(log_q: Callable[[Tensor], Tensor], log_p: Callable[[Tensor], Tensor], draws: Tensor) -> Estimate:
    """KL(q ‖ p) = E_q[log q − log p] from draws of q: equal bases of two flows say nothing of it."""
    terms = (log_q(draws) - log_p(draws)).detach()
    return Estimate(float(terms.mean()), float(terms.std() / math.sqrt(terms.numel())))
