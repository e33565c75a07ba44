"""Small networks and data for the families; float64, every axis at least 2 and no two equal."""

import torch
from torch import nn


def normals(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(make, seed=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def mlp(inputs=3, hidden=5, outputs=2, seed=1):
    make = lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))  # noqa: E731
    return seeded(make, seed).eval()


def regression(n=30, inputs=3, outputs=2, noise_std=0.3):
    x = normals(n, inputs, seed=2)
    return x, torch.tanh(x @ normals(inputs, outputs, seed=3)) + noise_std * normals(n, outputs, seed=4)


def classes(n=40, inputs=3, count=4):
    x = normals(n, inputs, seed=5)
    return x, (x @ normals(inputs, count, seed=6)).argmax(1)


def linear_posterior(x, y, *, noise_std, prior_precision):
    """Mean and covariance of the weights of nn.Linear(inputs, outputs), flat as torch keeps them: weight, then bias."""
    outputs, n = y.shape[1], len(x)
    rows = torch.cat([x, torch.ones(n, 1).double()], 1)
    inner = torch.linalg.inv(rows.T @ rows / noise_std**2 + prior_precision * torch.eye(rows.shape[1]).double())
    mean = inner @ rows.T @ y / noise_std**2  # (inputs + 1, outputs)
    covariance = torch.kron(torch.eye(outputs).double(), inner.contiguous())  # by output, then input
    inputs = x.shape[1]
    order = [o * (inputs + 1) + i for o in range(outputs) for i in range(inputs)]
    order += [o * (inputs + 1) + inputs for o in range(outputs)]
    return mean.T.reshape(-1)[order], covariance[order][:, order]
