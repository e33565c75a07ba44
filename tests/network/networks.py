"""Small networks of different kinds, in double precision and eval mode, with data; every axis at least 2, none equal."""

import torch
from torch import Tensor, nn


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Tied(nn.Module):
    """One matrix used twice, once transposed."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Linear(5, 3, bias=False)
        self.second.weight = nn.Parameter(self.first.weight.detach().mT.contiguous())
        self.again = nn.Linear(5, 3)
        self.again.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.first(self.second(torch.tanh(self.first(x))))))


class Residual(nn.Module):
    """A residual block with BatchNorm, then a linear head."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.inner_norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(x + self.inner_norm(self.inner(x))).mean((2, 3)))


class Attention(nn.Module):
    """One Transformer layer with LayerNorm over short sequences."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


def seeded(make, inputs: Tensor) -> tuple[nn.Module, Tensor]:
    """A network with reproducible weights and running statistics that are not the initial ones."""
    with torch.random.fork_rng():  # layers initialise themselves from the global generator
        model = make().double()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "running_var" in name or (name.endswith("weight") and tensor.ndim == 1):
                tensor.copy_(1 + tensor.abs())
    return model.eval(), inputs


NETWORKS = {
    "mlp": lambda: seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), normal(7, 3, seed=1)),
    "cnn": lambda: seeded(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 4, 3)),
        normal(8, 2, 5, 6, seed=2),
    ),
    "residual": lambda: seeded(Residual, normal(9, 2, 5, 6, seed=3)),
    "tied": lambda: seeded(Tied, normal(11, 3, seed=4)),
    "attention": lambda: seeded(Attention, normal(6, 4, 3, seed=5)),
}
