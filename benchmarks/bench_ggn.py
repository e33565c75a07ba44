"""How fast are products of the generalised Gauss–Newton matrix with a block of columns, beside curvlinops?

Both sides get the same network, data, batches and columns, in one process, and take turns. The product is Jᵀ B J V with
B the Hessian of the softmax, in float32. `passes` counts forward passes of the network that take as long; a textbook
implementation needs 4k + 1 of them for k columns. `prepare_seconds` is what our probe costs, once per network.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

import harness
import peer_environment
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapwing.network.batches import Inputs
from lapwing.network.jacobian import Jacobian, Network, prepared

CLASSES, REPEATS = 10, 3


class Residual(nn.Module):
    """Two convolutions with BatchNorm and a shortcut without weights."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.two, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        return F.relu(inner + x)


class Attention(nn.Module):
    """A pre-norm Transformer block of plain operations, which curvlinops can differentiate too."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.fall(F.gelu(self.rise(self.norm2(x))))


class Transformer(nn.Module):
    """Patches of 7 × 7 with learned positions, two blocks of width 64, a linear head on the mean."""

    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Conv2d(1, 64, 7, 7), nn.Parameter(0.02 * torch.randn(16, 64))
        self.blocks = nn.Sequential(Attention(64, 4), Attention(64, 4))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x).flatten(2).mT + self.positions)).mean(1))


def lenet(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
    )  # fmt: skip


def resnet20() -> nn.Module:
    widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
    blocks = [Residual(a, b, 1 + (a != b)) for a, b in pairwise(widths)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


NETWORKS = {
    "lenet": (lenet, (1, 28, 28)), "resnet20": (resnet20, (3, 32, 32)), "transformer": (Transformer, (1, 28, 28))
}  # fmt: skip
SIZES = {"lenet": (256, 128), "resnet20": (32, 32), "transformer": (256, 128)}  # data, and data in a batch
CELLS = {
    "lenet, 4 columns, small": {"network": "lenet", "n": 32, "batch": 16, "columns": 4},
    **{
        f"{name}, {columns} columns": {"network": name, "n": n, "batch": batch, "columns": columns}
        for name, (n, batch) in SIZES.items()
        for columns in (16, 64)
    },
}


def measure(network: str, n: int, batch: int, columns: int) -> dict:
    from curvlinops import GGNLinearOperator

    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = make().eval()
    inputs, labels = torch.rand(n, *shape), torch.randint(CLASSES, (n,))
    pairs = list(zip(inputs.split(batch), labels.split(batch), strict=True))
    theirs = GGNLinearOperator(
        model, nn.CrossEntropyLoss(reduction="sum"), list(model.parameters()), pairs, check_deterministic=False
    )
    prepare_seconds, jacobian = harness.timed(
        lambda: prepared(Jacobian(Network.of(model), Inputs.of(inputs.split(batch)), CLASSES))
    )
    block, weigh = torch.randn(jacobian.shape[1], columns), softmax_hessian(jacobian.network, inputs)

    def forward() -> None:
        with torch.no_grad():
            for part in inputs.split(batch):
                model(part)

    calls: dict[str, Callable] = {
        "forward": forward, "theirs": lambda: theirs @ block, "ours": lambda: jacobian.normal(block, weigh)[1]
    }  # fmt: skip
    values = {name: call() for name, call in calls.items()}  # the first calls warm up
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            seconds[name].append(harness.timed(call)[0])
    forward_seconds, their, our = (median(seconds[name]) for name in ("forward", "theirs", "ours"))
    return {
        "weights": jacobian.shape[1], "their_seconds": seconds["theirs"], "our_seconds": seconds["ours"],
        "forward_seconds": seconds["forward"], "prepare_seconds": prepare_seconds, "speedup": their / our,
        "our_passes": our / forward_seconds, "their_passes": their / forward_seconds, "textbook_passes": 4 * columns + 1,
        "product_difference": float((values["ours"] - values["theirs"]).norm() / values["theirs"].norm()),
        "threads": torch.get_num_threads(), "plan": repr(jacobian.plan),
    }  # fmt: skip


def softmax_hessian(network: Network, inputs: Tensor) -> Callable[[Tensor, int], Tensor]:
    """Blocks of rows times diag(π) − π πᵀ of their data."""
    probabilities = network.outputs(inputs).softmax(-1)

    def weigh(block: Tensor, start: int) -> Tensor:
        u = block.reshape(-1, CLASSES, block.shape[1])
        p = probabilities[start // CLASSES : start // CLASSES + len(u), :, None]
        return (p * u - p * (p * u).sum(1, keepdim=True)).reshape(block.shape)

    return weigh


if __name__ == "__main__":
    peer_environment.enter()
    harness.main(__file__, CELLS, measure)
