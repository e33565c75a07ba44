"""What does it cost to train five networks side by side, in times of one?

The protocol: `lapwing.training.train` of one network beside `lapwing.training.members` of five, same data, batches and epochs, Adam.
Each is timed in turn, three times after a first run that does not count; the ratio is that of the least times. One thread.

- `mlp, table`: 8 → 50 → 50 → 1 with tanh, 1,000 rows, batches of 64, 20 epochs.
- `mlp, pictures`: 784 → 100 → 10 with ReLU, 1,000 rows, batches of 64, 10 epochs.
- `cnn`: two convolutions and a linear head, 5,994 weights, pictures 28 × 28, 200 rows, batches of 64, 10 epochs.
- `cnn, batchnorm`: three convolutions with BatchNorm, 2,188 weights, pictures 8 × 8, 200 rows, batches of 64, 10 epochs.
- `cnn, dropout`: `cnn` with Dropout of a tenth before the head.
"""

from __future__ import annotations

from typing import Any

import harness

FIVE, TURNS, BATCH = 5, 3, 64
CELLS: dict[str, dict[str, Any]] = {
    "mlp, table": {"kind": "table", "rows": 1000, "epochs": 20},
    "mlp, pictures": {"kind": "pictures", "rows": 1000, "epochs": 10},
    "cnn": {"kind": "cnn", "rows": 200, "epochs": 10},
    "cnn, batchnorm": {"kind": "batchnorm", "rows": 200, "epochs": 10},
    "cnn, dropout": {"kind": "dropout", "rows": 200, "epochs": 10},
}


def network(kind: str, seed: int) -> Any:
    from torch import nn

    from benchmarks.networks import batchnorm_cnn, mlp, seeded

    if kind == "table":
        return mlp([8, 50, 50, 1], seed=seed)
    if kind == "pictures":
        return mlp([784, 100, 10], activation=nn.ReLU, seed=seed)
    if kind == "batchnorm":
        return batchnorm_cnn(width=6, seed=seed)
    dropped = (nn.Dropout(0.1),) if kind == "dropout" else ()

    def make() -> nn.Module:
        convolutions = nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU()
        return nn.Sequential(*convolutions, nn.Flatten(), *dropped, nn.Linear(256, 10))

    return seeded(make, seed)


def data(kind: str, rows: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    if kind == "table":
        x = torch.randn(rows, 8, generator=generator)
        return x, x[:, :1].sin()
    size = 8 if kind == "batchnorm" else 28
    return torch.rand(rows, 1, size, size, generator=generator), torch.arange(rows) % 10


def measure(kind: str, rows: int, epochs: int) -> dict[str, Any]:
    import torch

    import lapwing as lw
    from lapwing.training import members, train

    torch.set_num_threads(1)
    pairs, of = data(kind, rows), lw.Gaussian() if kind == "table" else lw.Categorical()
    options = {"epochs": epochs, "batch_size": BATCH, "progress": False}
    seconds: dict[str, list[float]] = {"one": [], "five": []}
    for turn in range(TURNS + 1):
        one = harness.timed(lambda: train(network(kind, 0), pairs, of, **options))[0]
        five = harness.timed(lambda: members(lambda seed: network(kind, seed), pairs, of, FIVE, **options))[0]
        if turn:
            seconds["one"].append(one)
            seconds["five"].append(five)
    return {**seconds, "ratio": min(seconds["five"]) / min(seconds["one"])}


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
