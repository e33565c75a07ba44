"""Linear problems as data: every axis at least 2, no two axes equal."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    features: Tensor  # (n * m, d)
    targets: Tensor  # (n,) or (n, m)
    weights: Tensor  # (n,)
    inputs: Tensor  # (b * m, d), held out
    held_out: Tensor  # (b,) or (b, m)

    @property
    def outputs(self) -> int:
        return 1 if self.targets.ndim == 1 else self.targets.shape[1]


def linear(n: int, m: int, d: int, *, noise_std: float = 0.5, signal: float = 1.0, seed: int = 0) -> Linear:
    """Correlated features of different sizes, targets with noise, uneven data weights; 11 held-out data."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mix = normal(d, d) / d**0.5 * torch.logspace(-1, 0.5, d, dtype=torch.float64)
    truth = signal * normal(d)
    features, inputs = normal(n * m, d) @ mix, normal(11 * m, d) @ mix
    targets, held_out = (rows @ truth + noise_std * normal(len(rows)) for rows in (features, inputs))
    weights = 0.3 + 0.7 * torch.rand(n, generator=generator, dtype=torch.float64)
    if m > 1:
        targets, held_out = targets.reshape(n, m), held_out.reshape(-1, m)
    return Linear(features, targets, weights, inputs, held_out)


TALL = linear(40, 1, 7)
WIDE = linear(17, 1, 29, noise_std=1.0, signal=1.5, seed=3)
TALL_OUTPUTS = linear(20, 3, 8, seed=2)
WIDE_OUTPUTS = linear(6, 4, 31, noise_std=1.5, seed=3)
PROBLEMS = {"tall": TALL, "wide": WIDE, "tall outputs": TALL_OUTPUTS, "wide outputs": WIDE_OUTPUTS}
