"""Small networks and data for the variational tests; no two axes are equal."""

import torch
from torch import nn


def normals(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(make, seed=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def mlp(inputs=3, hidden=5, outputs=2):
    return seeded(lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)))


def regression(n=30, inputs=3, outputs=2, noise_std=0.3):
    x = normals(n, inputs, seed=2)
    y = torch.tanh(x @ normals(inputs, outputs, seed=3)) + noise_std * normals(n, outputs, seed=4)
    return x, y


def classes(n=40, inputs=3, count=4):
    x = normals(n, inputs, seed=5)
    return x, (x @ normals(inputs, count, seed=6)).argmax(1)


class Scaled(nn.Module):
    """(1/N) Σ a_j relu(⟨b_j, x⟩ + c_j): the wide network of the theory with several outputs."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.out(self.hidden(x).relu()) / self.hidden.out_features
