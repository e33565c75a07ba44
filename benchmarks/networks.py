"""Networks for benchmarks and demonstrations; all take pictures in [0, 1] (or rows) and return logits (or means).

Weights come from the seed and leave the global random state alone. They are made in train mode, as torch does: train
them, then call eval().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pickle import UnpicklingError
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lapwing.studies.datasets.storage import find

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHECKPOINT = "checkpoints/resnet20_cifar10_akamaster.pt"
Network = TypeVar("Network", bound=nn.Module)


def seeded(make: Callable[[], Network], seed: int) -> Network:
    """What `make` returns when torch's own initialisation starts from this seed; the global state stays as it was.

    >>> torch.equal(seeded(lambda: nn.Linear(3, 2), 1).weight, seeded(lambda: nn.Linear(3, 2), 1).weight)
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def mlp(sizes: Sequence[int], *, activation: Callable[[], nn.Module] = nn.Tanh, seed: int = 0) -> nn.Sequential:
    """Linear layers from sizes[0] inputs to sizes[-1] outputs with activations in between; pictures are flattened.

    >>> mlp([4, 50, 2])(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """
    if len(sizes) < 2:
        raise ValueError(f"a network needs the sizes of its inputs and outputs at least, not {list(sizes)}")

    def make() -> nn.Sequential:
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), activation()]
        return nn.Sequential(*layers[:-1])

    return seeded(make, seed)


class Wide(nn.Module):
    """(1/N) Σ_j a_j relu(⟨b_j, x⟩ + c_j), one hidden layer of N units whose output is an average over them."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) to (n, outputs)."""
        return self.out(self.hidden(x).relu()) / self.hidden.out_features


def lenet(classes: int = 10, *, channels: int = 1, size: int = 28, seed: int = 0) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling for square pictures: 61,706 weights for MNIST.

    >>> lenet()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    side = (size // 2 - 4) // 2  # the first convolution is padded, the second is not
    if side < 1:
        raise ValueError(f"pictures of {size} × {size} are too small for LeNet: 12 × 12 at least")

    def make() -> nn.Sequential:
        convolutions = (
            *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        )
        head = nn.Linear(16 * side**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        return nn.Sequential(*convolutions, *head)

    return seeded(make, seed)


def batchnorm_cnn(classes: int = 10, *, channels: int = 1, width: int = 16, seed: int = 0) -> nn.Sequential:
    """Three convolutions with BatchNorm and a linear head on the mean over pixels, for pictures of any size from 4 × 4.

    >>> batchnorm_cnn()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def block(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()

    def make() -> nn.Sequential:
        blocks = (*block(channels, width, 1), *block(width, 2 * width, 2), *block(2 * width, 2 * width, 2))
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes))

    return seeded(make, seed)


class Attention(nn.Module):
    """A pre-norm Transformer block; plain operations, so that forward and reverse mode both differentiate it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be shared by {heads} heads")
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens in, tokens out: (n, tokens, width)."""
        x = x + self.out(self.mix(self.qkv(self.norm1(x))))
        return x + self.fall(functional.gelu(self.rise(self.norm2(x))))

    def mix(self, projected: Tensor) -> Tensor:
        """Each token's values, averaged with weights softmax(queries · keys / √(width of a head))."""
        q, k, v = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (n, heads, tokens, width)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(-2)


class Transformer(nn.Module):
    """A small vision Transformer: patches with learned positions, blocks, a linear head on their mean."""

    def __init__(self, classes: int, channels: int, size: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(f"pictures of {size} × {size} cannot be cut into patches of {patch} × {patch}")
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Attention(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: (n, classes)."""
        tokens = self.embed(x).flatten(2).mT + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def transformer(
    classes: int = 10, *, channels: int = 1, size: int = 28, patch: int = 7, width: int = 64, heads: int = 4,
    layers: int = 2, seed: int = 0,
) -> Transformer:  # fmt: skip
    """A Transformer for square pictures.

    >>> transformer()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return seeded(lambda: Transformer(classes, channels, size, patch, width, heads, layers), seed)


class Residual(nn.Module):
    """Two convolutions and a shortcut without weights: every second pixel, new channels zero (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + _widened(x, self.stride, self.extra))


def _widened(x: Tensor, stride: int, extra: int) -> Tensor:
    if not extra and stride == 1:
        return x
    return functional.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra, extra))


class PreActivation(nn.Module):
    """The same with each normalisation before its convolution (He et al. 2016b): only the first of them feeds one."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        inner = self.conv2(functional.relu(self.bn2(self.conv1(functional.relu(self.bn1(x))))))
        return inner + _widened(x, self.stride, self.extra)


class Fixup(nn.Module):
    """The same without normalisation: scalar biases and a scale, the second convolution zero at first.

    The first is made smaller by the square root of the number of blocks (Zhang et al. 2019, with two convolutions).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__()
        self.biases, self.scale = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(1))
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        nn.init.normal_(self.conv1.weight, std=(2 / (9 * outputs)) ** 0.5 * blocks**-0.5)
        nn.init.zeros_(self.conv2.weight)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        first, second, third, last = self.biases
        inner = functional.relu(self.conv1(x + first) + second)
        inner = self.scale * self.conv2(inner + third) + last
        return functional.relu(inner + _widened(x, self.stride, self.extra))


class SmallResNet(nn.Module):
    """A convolution, three residual blocks of one kind, the second with half the pixels, and a head on their mean."""

    def __init__(
        self, blocks: Sequence[nn.Module], before: nn.Module, after: nn.Module, width: int, ends: Sequence[int]
    ) -> None:
        super().__init__()
        channels, classes = ends
        self.stem, self.before = nn.Conv2d(channels, width, 3, padding=1, bias=False), before
        self.blocks, self.after = nn.Sequential(*blocks), after
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of pictures in [0, 1]: (n, channels, h, w) to (n, classes)."""
        return self.head(self.after(self.blocks(self.before(self.stem(x)))).mean((2, 3)))


def small_resnet(
    kind: Literal["batchnorm", "pre-activation", "fixup"] = "batchnorm", classes: int = 10, *, channels: int = 1,
    width: int = 18, seed: int = 0,
) -> SmallResNet:  # fmt: skip
    """A ResNet of three blocks, with BatchNorm after or before its convolutions or without any: about 47,000 weights.

    >>> small_resnet("fixup")(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    sizes = (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)

    def make() -> SmallResNet:
        ends = channels, classes
        if kind == "batchnorm":
            before = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
            return SmallResNet([Residual(*size) for size in sizes], before, nn.Identity(), width, ends)
        if kind == "pre-activation":
            after = nn.Sequential(nn.BatchNorm2d(2 * width), nn.ReLU())
            return SmallResNet([PreActivation(*size) for size in sizes], nn.Identity(), after, width, ends)
        if kind == "fixup":
            blocks = [Fixup(*size, blocks=len(sizes)) for size in sizes]
            network = SmallResNet(blocks, nn.ReLU(), nn.Identity(), width, ends)
            nn.init.zeros_(network.head.weight)
            nn.init.zeros_(network.head.bias)
            return network
        raise ValueError(f"no small ResNet is of kind {kind!r}; there are batchnorm, pre-activation, fixup")

    return seeded(make, seed)


class ResNet20(nn.Module):
    """The ResNet-20 of He et al. (2016, §4.2) for CIFAR-10, 269,722 weights; normalises its pictures itself.

    Parameter names are those of the widespread checkpoints: conv1, bn1, layer1 to layer3, linear.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Residual(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 32, 1))
        self.layer3 = nn.Sequential(Residual(32, 64, 2), Residual(64, 64, 1), Residual(64, 64, 1))
        self.linear = nn.Linear(64, classes)
        self.register_buffer("pixel_mean", torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(IMAGENET_STD).reshape(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of pictures in [0, 1]: (n, 3, h, w) to (n, classes)."""
        x = (x - self.pixel_mean) / self.pixel_std
        x = functional.relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def resnet20(classes: int = 10, *, seed: int = 0) -> ResNet20:
    """An untrained ResNet-20.

    >>> sum(p.numel() for p in resnet20().parameters())
    269722
    """
    return seeded(lambda: ResNet20(classes), seed)


class Basic(nn.Module):
    """Two convolutions and a shortcut, a convolution of one pixel where the size changes (option B)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = _projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, width, h / stride, w / stride)."""
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


class Bottleneck(nn.Module):
    """A convolution between two of one pixel, the last four times as wide, and a shortcut as in `Basic`."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut = _projection(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, 4 · width, h / stride, w / stride)."""
        inner = functional.relu(self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))))
        return functional.relu(self.bn3(self.conv3(inner)) + self.shortcut(x))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """The ResNets of He et al. (2016) for ImageNet with a first layer for small pictures: 3 × 3, no pooling.

    `width` is that of the first of four stages, each twice as wide as the one before. Pictures are normalised inside.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, block: type[Basic | Bottleneck], blocks: Sequence[int], classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        stages, inputs = [], width
        for stage, count in enumerate(blocks):
            wide, layers = width * 2**stage, []
            for number in range(count):
                layers.append(block(inputs, wide, 2 if stage and not number else 1))
                inputs = wide * block.expansion
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.linear = nn.Linear(inputs, classes)
        self.register_buffer("pixel_mean", torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(IMAGENET_STD).reshape(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of pictures in [0, 1]: (n, 3, h, w) to (n, classes)."""
        x = functional.relu(self.bn1(self.conv1((x - self.pixel_mean) / self.pixel_std)))
        return self.linear(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


def resnet18(classes: int = 10, *, width: int = 64, seed: int = 0) -> ResNet:
    """An untrained ResNet-18 for pictures of 32 × 32.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    return seeded(lambda: ResNet(Basic, (2, 2, 2, 2), classes, width), seed)


def resnet50(classes: int = 10, *, width: int = 64, seed: int = 0) -> ResNet:
    """An untrained ResNet-50 for pictures of 32 × 32.

    >>> sum(p.numel() for p in resnet50().parameters())
    23520842
    """
    return seeded(lambda: ResNet(Bottleneck, (3, 4, 6, 3), classes, width), seed)


def trained_resnet20() -> ResNet20:
    """A ResNet-20 that someone else trained on CIFAR-10 (akamaster/pytorch_resnet_cifar10), in eval mode."""
    path = find(
        CHECKPOINT,
        what="the trained ResNet-20",
        brings="Put there the state dict (tensors only) of resnet20 from github.com/akamaster/pytorch_resnet_cifar10; "
        "`make data` does not bring it.",
    )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path} is damaged or holds more than tensors: {error}") from error
    network = resnet20()
    network.load_state_dict(state)
    return network.eval()
