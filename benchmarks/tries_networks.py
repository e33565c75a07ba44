"""The networks of first tries and how they are trained: plain PyTorch, as a newcomer writes it."""

from __future__ import annotations

from typing import Any

import torch
import tries_data
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {
    "Tanh": nn.Tanh, "ReLU": nn.ReLU, "SiLU": nn.SiLU, "GELU": nn.GELU, "ELU": nn.ELU, "LeakyReLU": nn.LeakyReLU,
    "Softplus": nn.Softplus,
}  # fmt: skip


def mlp(inputs: int, outputs: int, about: dict[str, Any]) -> nn.Sequential:
    """Hidden layers, each with its norm, its nonlinearity and its dropout."""
    layers: list[nn.Module] = []
    for _ in range(about["layers"]):
        layers += [nn.Linear(inputs, about["units"]), *between(about["units"], about)]
        inputs = about["units"]
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def between(units: int, about: dict[str, Any]) -> list[nn.Module]:
    norms = {"none": [], "batch": [nn.BatchNorm1d(units)], "layer": [nn.LayerNorm(units)]}
    dropout = [nn.Dropout(about["dropout"])] if about["dropout"] else []
    return [*norms[about["norm"]], ACTIVATIONS[about["activation"]](), *dropout]


class Tied(nn.Module):
    """A hidden layer that is gone through twice."""

    def __init__(self, inputs: int, outputs: int, about: dict[str, Any]) -> None:
        super().__init__()
        units = about["units"]
        self.first = nn.Sequential(nn.Linear(inputs, units), *between(units, about))
        self.hidden = nn.Linear(units, units)
        self.activation = ACTIVATIONS[about["activation"]]()
        self.head = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = self.activation(self.hidden(x))
        return self.head(x)


class Tokens(nn.Module):
    """An embedding of each place, then hidden layers."""

    def __init__(self, outputs: int, about: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tries_data.TOKENS, 6)
        self.rest = mlp(6 * tries_data.PLACES, outputs, about)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.embedding(x).flatten(1))


class TiedEmbedding(nn.Module):
    """A model of the next token whose last layer has the weights of its embedding."""

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__()
        width = 12
        self.embedding = nn.Embedding(tries_data.WORDS, width)
        self.rest = mlp(width * tries_data.CONTEXT, width, about)
        self.head = nn.Linear(width, tries_data.WORDS)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rest(self.embedding(x).flatten(1)))


class Recurrent(nn.Module):
    """An LSTM, read at its last step."""

    def __init__(self, inputs: int, outputs: int, about: dict[str, Any]) -> None:
        super().__init__()
        units = min(about["units"], 40)
        self.lstm = nn.LSTM(inputs, units, batch_first=True)
        self.head = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    """One layer of a Transformer with learnt positions, averaged over its steps."""

    def __init__(self, inputs: int, outputs: int, about: dict[str, Any]) -> None:
        super().__init__()
        width = 2 * min(max(about["units"] // 4, 4), 12)
        self.embed = nn.Linear(inputs, width)
        self.position = nn.Parameter(0.1 * torch.randn(tries_data.LENGTH, width))
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, about["dropout"], activation="gelu", batch_first=True
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x) + self.position).mean(1))


def cnn(outputs: int, about: dict[str, Any]) -> nn.Sequential:
    """Two convolutions with pooling, for 1 × 8 × 8 pixels."""
    channels, layers, before = 4 + about["units"] // 12, [], 1
    for after in (channels, 2 * channels):
        norms = {"none": [], "batch": [nn.BatchNorm2d(after)], "layer": [nn.GroupNorm(1, after)]}
        layers += [nn.Conv2d(before, after, 3, padding=1), *norms[about["norm"]]]
        layers += [ACTIVATIONS[about["activation"]](), nn.MaxPool2d(2)]
        before = after
    dropout = [nn.Dropout(about["dropout"])] if about["dropout"] else []
    return nn.Sequential(*layers, nn.Flatten(), *dropout, nn.Linear(4 * before, outputs))


def network(inputs: Tensor, outputs: int, about: dict[str, Any]) -> nn.Module:
    """An untrained network of the described form; its weights come from torch's global random state."""
    match about["form"]:
        case "mlp":
            return mlp(inputs.shape[1], outputs, about)
        case "tied":
            return Tied(inputs.shape[1], outputs, about)
        case "cnn":
            return cnn(outputs, about)
        case "lstm":
            return Recurrent(inputs.shape[2], outputs, about)
        case "transformer":
            return Transformer(inputs.shape[2], outputs, about)
        case "embedding":
            return Tokens(outputs, about)
        case "tied embedding":
            return TiedEmbedding(about)
    raise ValueError(f"no network of the form {about['form']!r}")


def densities(target: str, outputs: Tensor, y: Tensor, std: Tensor | None = None) -> Tensor:  # (n,)
    """log p of each row by the raw network; numbers have this standard deviation for each output, or one."""
    outputs, rows = outputs.reshape(len(y), -1), y.reshape(len(y), -1)
    match target:
        case "classes":
            return -functional.cross_entropy(outputs, y, reduction="none")
        case "labels":
            return -functional.binary_cross_entropy_with_logits(outputs, rows, reduction="none").sum(1)
        case "counts":
            return torch.distributions.Poisson(outputs.exp(), validate_args=False).log_prob(rows).sum(1)
        case "numbers":
            scale = torch.ones(()) if std is None else std
            return torch.distributions.Normal(outputs, scale, validate_args=False).log_prob(rows).sum(1)
        case "spread numbers":
            mean, log_variance = outputs.chunk(2, dim=1)
            scale = (0.5 * log_variance).exp()
            return torch.distributions.Normal(mean, scale, validate_args=False).log_prob(rows).sum(1)
    raise ValueError(f"no targets of the kind {target!r}")


def trained(kind: tries_data.Kind, data: tuple[Tensor, Tensor], about: dict[str, Any]) -> tuple[nn.Module, float]:
    """The network after Adam, in eval mode, and the learning rate: a tenth of the drawn one as often as it diverges."""
    rate = about["learning_rate"]
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(about["number"])
            model = _descended(network(data[0], kind.outputs, about), kind, data, about, rate)
        weights = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
        if all(bool(weight.isfinite().all()) for weight in weights):
            with torch.no_grad():
                if bool(densities(kind.target, model(data[0]), data[1]).isfinite().all()):
                    return model, rate
        rate /= 10


def _descended(
    model: nn.Module, kind: tries_data.Kind, data: tuple[Tensor, Tensor], about: dict[str, Any], rate: float
) -> nn.Module:
    x, y = data
    adam = torch.optim.Adam(model.train().parameters(), lr=rate, weight_decay=about["weight_decay"])
    for _ in range(about["epochs"]):
        for batch in torch.randperm(len(x)).split(about["batch"] or len(x)):
            if len(batch) == 1:  # BatchNorm takes no single row
                continue
            adam.zero_grad()
            (-densities(kind.target, model(x[batch]), y[batch]).mean()).backward()
            adam.step()
    return model.eval()
