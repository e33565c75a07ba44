"""What does an epoch of variational training cost, in epochs of the same network trained plainly? And in memory?

One sample a step, Adam, the same batches and the same loop on both sides, in one process; the two take turns. Memory is
the growth of the largest resident size by one epoch, of each side in a process of its own that has trained a tiny network
before. Random pictures serve as data: only the cost is looked at.
"""

from multiprocessing import get_context
from statistics import median

import harness


def network(name: str, hidden: int):
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    return nn.Sequential(
        nn.Conv2d(1, hidden, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(hidden, 2 * hidden, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * hidden * 49, 10),
    )  # fmt: skip


def pictures(count: int):
    """Random pictures and labels, the same on every side."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)


def sides(model, data, batch_size: int) -> tuple:
    """One epoch of each kind, as functions to call."""
    from lapwing.bayes.likelihoods import Categorical
    from lapwing.families import variational
    from lapwing.training import train

    options = {"epochs": 1, "batch_size": batch_size, "progress": False}

    def plain():
        return train(model, data, Categorical(), **options)

    def random():
        return variational.fit(model, data, Categorical(), temperature=1.0, **options)

    return plain, random


def growth(name: str, hidden: int, count: int, batch_size: int, side: int) -> int:
    """Bytes by which one epoch grows this process, which should be a fresh one."""
    sides(network(name, 2), pictures(batch_size), batch_size)[side]()
    epoch = sides(network(name, hidden), pictures(count), batch_size)[side]
    before = harness.peak_memory()
    epoch()
    return harness.peak_memory() - before


def measure(name: str, hidden: int, count: int, batch_size: int, repeats: int) -> dict:
    plain_bytes, random_bytes = (
        get_context("spawn").Pool(1).apply(growth, (name, hidden, count, batch_size, side)) for side in (0, 1)
    )
    plain, random = sides(network(name, hidden), pictures(count), batch_size)
    plain()
    posterior = random()
    seconds = [(harness.timed(plain)[0], harness.timed(random)[0]) for _ in range(repeats)]
    plain_seconds, random_seconds = (list(side) for side in zip(*seconds, strict=True))
    return {
        "weights": posterior.network.size,
        "plain_seconds": plain_seconds,
        "random_seconds": random_seconds,
        "ratio": median(random_seconds) / median(plain_seconds),
        "plain_growth_bytes": plain_bytes,
        "random_growth_bytes": random_bytes,
    }


CELLS = {
    "MLP, 16 units": {"name": "mlp", "hidden": 16, "count": 500, "batch_size": 100, "repeats": 1},
    "MLP, 256 units": {"name": "mlp", "hidden": 256, "count": 10_000, "batch_size": 128, "repeats": 5},
    "MLP, 1,024 units": {"name": "mlp", "hidden": 1024, "count": 10_000, "batch_size": 128, "repeats": 5},
    "MLP, 4,096 units": {"name": "mlp", "hidden": 4096, "count": 10_000, "batch_size": 128, "repeats": 3},
    "CNN, 16 and 32 channels": {"name": "cnn", "hidden": 16, "count": 5_000, "batch_size": 128, "repeats": 5},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
