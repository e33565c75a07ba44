"""Any network with an independent Gaussian on each of its weights, without rewriting it.

Weights are replaced in a functional call. Where a weight is used exactly once, by a linear layer or a convolution, its
noise can be drawn at the layer's outputs instead, whose mean and variance are products with the means and variances of
the weights (local reparametrisation, Kingma et al. 2015): less gradient noise, since every datum has noise of its own.
For linear layers on vectors this is exact. Positions of a convolution, or of a sequence, then have independent noise,
an approximation that is made in training only: draws of functions and the reported ELBO are from draws of the weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.network.input_tree import Sample, outputs_at
from lapwing.network.layers.kinds import Convolution, Linear
from lapwing.network.layers.recorder import PRODUCTS, Recorder
from lapwing.network.parameters import Select
from lapwing.training import Weights

LOG_STD = ":log_std"  # what stands after the name of a weight that is random
LAYERS = frozenset(PRODUCTS)
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@final
@dataclass(frozen=True, eq=False)
class MeanField:
    """A copy of a network, and which of its weights are random.

    Values are kept apart from it, in one dict: a tensor per parameter and buffer, the mean where it is random, and
    another with `LOG_STD` after its name.
    """

    model: nn.Module
    random: tuple[str, ...]
    sizes: tuple[int, ...]
    exact: frozenset[str]  # whose noise may as well be drawn at a layer's outputs
    approximate: frozenset[str]  # whose noise may be drawn there too, as an approximation
    prior_variance: float

    @staticmethod
    def of(model: nn.Module, example: Sample, *, select: Select = None, prior_variance: float = 0.2) -> MeanField:
        """A network whose weights are random but for those of normalisation layers, or where `select` says so."""
        if not isinstance(model, nn.Module):
            raise ValueError(f"expected a torch.nn.Module, got {type(model).__name__}")
        if not 0 < prior_variance < float("inf"):
            raise ValueError(f"prior_variance is {prior_variance}, expected a positive number")
        chosen = _chosen(model, select)
        copy = _training(deepcopy(model))
        sizes = tuple(weight.numel() for name, weight in copy.named_parameters() if name in chosen)
        return MeanField(copy, chosen, sizes, *_local(copy, example, chosen), prior_variance)

    @staticmethod
    def restored(
        model: nn.Module, random: tuple[str, ...], exact: frozenset[str], approximate: frozenset[str],
        prior_variance: float,
    ) -> MeanField:  # fmt: skip
        """A mean field whose choices were made before."""
        copy = _training(deepcopy(model))
        found = {name: weight.numel() for name, weight in copy.named_parameters()}
        missing = [name for name in random if name not in found]
        if missing:
            raise ValueError(f"the network has no weight named {missing[0]}: it was made for another one")
        return MeanField(copy, random, tuple(found[name] for name in random), exact, approximate, prior_variance)

    @property
    def size(self) -> int:
        """The number of random weights."""
        return sum(self.sizes)

    def trainable(self) -> list[str]:
        """Names of the values that are learnt: means, log standard deviations and what is not random."""
        learnt = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        return [*learnt, *(name + LOG_STD for name in self.random)]

    def start(self, initial_std: float) -> Weights:
        """The network's own weights as means, and one standard deviation for all."""
        values = _values(self.model)
        spread = {name + LOG_STD: torch.full_like(values[name], math.log(initial_std)) for name in self.random}
        return {**values, **spread}

    def divergence(self, values: Weights) -> float:
        """KL(q | prior) in closed form."""
        return sum(
            divergence(values[name], values[name + LOG_STD], variance, self.prior_variance)
            for name, variance in self.variances(values).items()
        )

    def variances(self, values: Weights) -> Weights:
        """Variances of the random weights."""
        return {name: (2 * values[name + LOG_STD]).exp() for name in self.random}

    def outputs(
        self, values: Weights, variances: Weights, inputs: Sample, generator: Generator, at_layers: frozenset[str]
    ) -> Tensor:
        """Outputs with fresh noise: for some weights at the outputs of their layers, for the others in the weights."""
        weights = self._tensors(values)
        for name in self.random:
            if name not in at_layers:
                noise = torch.randn(weights[name].shape, generator=generator, dtype=weights[name].dtype)
                weights[name] = weights[name] + variances[name].sqrt() * noise.to(weights[name].device)
        with LocalNoise({id(weights[name]): variances[name] for name in at_layers}, generator):
            return outputs_at(self.model, weights, inputs)

    def draw(self, values: Weights, seed: int, column: int) -> Weights:
        """Weights of one draw, the same whenever they are asked for."""
        weights, start = self._tensors(values), 0
        for name, size in zip(self.random, self.sizes, strict=True):
            normals = Noise(seed, SAMPLE).rows(start, start + size, 1, column).reshape(weights[name].shape)
            weights[name] = weights[name] + values[name + LOG_STD].exp() * normals.to(weights[name])
            start += size
        return weights

    def prior(self, values: Weights) -> Weights:
        """The same values with the prior in place of what was learnt about the random weights."""
        means = {name: torch.zeros_like(values[name]) for name in self.random}
        log_std = math.log(self.prior_variance) / 2
        spreads = {name + LOG_STD: torch.full_like(values[name], log_std) for name in self.random}
        return {**values, **means, **spreads}

    def evaluated(self) -> nn.Module:
        """The copy in eval mode, for predictions."""
        return deepcopy(self.model).eval()

    def _tensors(self, values: Weights) -> Weights:
        return {name: value for name, value in values.items() if not name.endswith(LOG_STD)}


def divergence(mean: Tensor, log_std: Tensor, variance: Tensor, prior_variance: float) -> float:
    """KL(N(mean, variance) | N(0, prior_variance)), summed over independent coordinates."""
    flat = mean.reshape(-1)
    squares = float(torch.dot(flat, flat)) + float(variance.sum())
    return 0.5 * (squares / prior_variance + mean.numel() * (math.log(prior_variance) - 1)) - float(log_std.sum())


@final
class _Noisy(torch.autograd.Function):
    """Outputs with noise of a given variance, ε √v: four passes over them and one back.

    Where the variance is zero, or below by round-off, there is neither noise nor a gradient. The noise is written over.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        rate = functional.threshold(variance, torch.finfo(variance.dtype).tiny, math.inf).rsqrt_()  # 1 / √v, or 0
        ratio = noise.mul_(rate)
        ctx.save_for_backward(ratio)
        return torch.addcmul(outputs, variance, ratio)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return gradient, torch.addcmul(gradient.new_zeros(()), gradient, ratio, value=0.5), None


@final
class LocalNoise(TorchFunctionMode):
    """Adds to the output of a layer the noise that its random weights, given by identity, would cause there."""

    def __init__(self, variances: dict[int, Tensor], generator: Generator) -> None:
        super().__init__()
        self.variances, self.generator = variances, generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The layer's output, with noise where its weight is random."""
        del types
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func not in LAYERS:
            return output
        inputs, weight, bias, rest, options = _arguments(args, kwargs)
        if id(weight) not in self.variances:
            return output
        variance = func(inputs.square(), self.variances[id(weight)], self.variances.get(id(bias)), *rest, **options)
        noise = torch.randn(output.shape, generator=self.generator, dtype=output.dtype).to(output.device)
        noisy: Tensor = _Noisy.apply(output, variance, noise)
        return noisy


def _local(model: nn.Module, example: Sample, chosen: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """Random weights that one layer uses, once, and that nothing else uses, and biases whose weight is such a one.

    First those of linear layers on vectors, then the others.
    """
    values = _values(model)
    for name in chosen:
        values[name].requires_grad_()
    recorder = Recorder.of({name: values[name] for name in chosen})
    with torch.random.fork_rng(devices=[]), recorder:
        outputs_at(model, values, example)
    products = [use for use in recorder.uses if isinstance(use.kind, (Linear, Convolution))]
    other = {name for name, _ in recorder.others}
    other |= {name for use in recorder.uses if use not in products for name in (use.weight, use.bias) if name}
    count = Counter(name for use in products for name in (use.weight, use.bias) if name)
    alone = {name for name, times in count.items() if times == 1 and name not in other}
    exact, approximate = set[str](), set[str]()
    for use in products:
        if use.weight in alone:
            on_vectors = isinstance(use.kind, Linear) and use.inputs.ndim <= 2
            names = {name for name in (use.weight, use.bias) if name in alone and name is not None}
            (exact if on_vectors else approximate).update(names)
    return frozenset(exact), frozenset(approximate)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Input, weight, bias, and the rest by place and by name."""
    places = dict(zip(("input", "weight", "bias"), args, strict=False))
    named = {**places, **{name: value for name, value in kwargs.items() if name in ("input", "weight", "bias")}}
    options = {name: value for name, value in kwargs.items() if name not in named}
    return named["input"], named["weight"], named.get("bias"), args[3:], options


def _chosen(model: nn.Module, select: Select) -> tuple[str, ...]:
    if isinstance(select, Tensor):
        raise ValueError("select is a mask: tensors are random as a whole here, choose them by a function of the name")
    norms = {
        f"{place}.{name}" if place else name
        for place, module in model.named_modules() if isinstance(module, NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }  # fmt: skip
    wanted: Callable[[str], bool] = select if select is not None else lambda name: name not in norms
    found = tuple(name for name, weight in model.named_parameters() if weight.requires_grad and wanted(name))
    if not found:
        raise ValueError(
            "no weight is random: the network needs weights with requires_grad=True that `select` chooses, of "
            f"{[name for name, _ in model.named_parameters()][:6]}"
        )
    return found


def _values(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _training(model: nn.Module) -> nn.Module:
    """In training mode, but for dropout: the weights are random already."""
    model.train()
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.eval()
    return model
