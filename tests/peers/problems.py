"""Networks, data and losses on which packages are compared; imports nothing of lapwing."""

import torch
from torch import Tensor, nn

PRECISION = 0.7


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(model: nn.Module) -> nn.Module:
    model, generator = model.double(), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return model.eval()


def problem(model: nn.Module, shape: tuple[int, ...], kind: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    model, inputs, new = seeded(model), normal(9, *shape, seed=1), normal(4, *shape, seed=2)
    outputs = model(inputs).detach()
    targets = outputs + 0.5 * normal(*outputs.shape, seed=3)
    return model, inputs, targets if kind == "gaussian" else targets.argmax(1), new


def perceptron(bias: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5, bias=bias), nn.Tanh(), nn.Linear(5, 4, bias=bias))


def convolutional(bias: bool) -> nn.Module:
    first = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=bias)
    return nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(4 * 3 * 4, 3, bias=bias))


PROBLEMS = {
    "perceptron": lambda kind: problem(perceptron(True), (3,), kind),
    "convolutional": lambda kind: problem(convolutional(True), (2, 6, 7), kind),
    "perceptron without biases": lambda kind: problem(perceptron(False), (3,), kind),
    "convolutional without biases": lambda kind: problem(convolutional(False), (2, 6, 7), kind),
}
LOSSES = {"gaussian": nn.MSELoss(reduction="sum"), "categorical": nn.CrossEntropyLoss(reduction="sum")}
