"""Networks around one kind of layer each, in double precision and eval mode, with data."""

import torch
from torch import Tensor, nn

from tests.network.networks import normal, seeded


class Text(nn.Module):
    """An embedding with a padding entry, averaged, then a linear head."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(7, 4, padding_idx=2), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.embed(x))).mean(1))


class Twice(nn.Module):
    """One linear layer used twice, then flattened rows of positions, then a head."""

    def __init__(self):
        super().__init__()
        self.inner, self.rows, self.head = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(5 * 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inner(torch.tanh(self.inner(x))))
        return self.head(torch.tanh(self.rows(x.reshape(-1, 4))).reshape(len(x), -1))


class SequenceFirst(nn.Module):
    """Positions before data inside."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x.transpose(0, 1)) ** 2).cumsum(0)[-1])


class Owned(nn.Module):
    """A parameter of its own, a head whose weights are used without its module, and a convolution whose output is changed in place."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))
        self.filter, self.head = nn.Conv1d(2, 3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.filter(x)).mean(2) * self.scale
        return nn.functional.linear(x, self.head.weight, self.head.bias)


def around(layer, features: int, act=nn.Tanh):
    return lambda: nn.Sequential(layer(), act(), nn.Flatten(), nn.Linear(features, 2))


IMAGES = normal(5, 4, 6, 7, seed=12)
LAYERS = {
    "conv1d": lambda: seeded(around(lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), 6 * 4), normal(5, 4, 7, seed=11)),
    "conv2d": lambda: seeded(around(lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), 6 * 3 * 6), IMAGES),
    "grouped": lambda: seeded(around(lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), 6 * 4 * 5), IMAGES),
    "depthwise": lambda: seeded(around(lambda: nn.Conv2d(4, 8, 3, groups=4, padding="same"), 8 * 6 * 7), IMAGES),
    "circular": lambda: seeded(around(lambda: nn.Conv2d(4, 3, 3, padding=(1, 2), padding_mode="circular"), 3 * 6 * 9), IMAGES),
    "conv3d": lambda: seeded(around(lambda: nn.Conv3d(2, 3, (2, 3, 2), dilation=(1, 1, 2)), 3 * 3 * 3 * 4), normal(4, 2, 4, 5, 6, seed=13)),
    "transposed": lambda: seeded(
        around(lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 0), groups=2, dilation=(1, 2)), 6 * 6 * 4),
        normal(5, 4, 3, 2, seed=12),
    ),
    "transposed1d": lambda: seeded(around(lambda: nn.ConvTranspose1d(4, 3, 4, stride=2), 3 * 16), normal(5, 4, 7, seed=11)),
    "text": lambda: seeded(Text, torch.randint(7, (6, 5), generator=torch.Generator().manual_seed(3))),
    "twice": lambda: seeded(Twice, normal(6, 5, 4, seed=14)),
    "sequence first": lambda: seeded(SequenceFirst, normal(6, 5, 4, seed=14)),
    "owned": lambda: seeded(Owned, normal(6, 2, 5, seed=15)),
    "instance norm": lambda: seeded(around(lambda: nn.InstanceNorm2d(4, affine=True), 4 * 6 * 7), IMAGES),
    "rms norm": lambda: seeded(around(lambda: nn.RMSNorm((6, 7)), 4 * 6 * 7), IMAGES),
}  # fmt: skip


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank update, as two layers or as two parameters of its own."""

    def __init__(self, modules: bool):
        super().__init__()
        self.base = nn.Linear(5, 4)
        self.lora_A, self.lora_B = nn.Linear(5, 2, bias=False), nn.Linear(2, 4, bias=False)
        if not modules:
            self.lora_A, self.lora_B = nn.Parameter(torch.zeros(5, 2)), nn.Parameter(torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.lora_A, Tensor):
            return self.base(x) + x @ self.lora_A @ self.lora_B
        return self.base(x) + self.lora_B(self.lora_A(x))
