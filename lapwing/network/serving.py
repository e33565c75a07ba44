"""A posterior's predictions as one module of plain tensor operations, which torch.export, ONNX and torch.compile take.

torch.export does not trace Jacobians of torch.func with a batch of any size (torch 2.13). So tangents are carried
through the layers by hand: J C for columns C of weights, by one rule for each kind of layer. A last layer needs none:
its features are its inputs, whatever the network before it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from math import pi
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lapwing.bayes.likelihoods import Likelihood, Spread
from lapwing.bayes.likelihoods.spread import POINTS, Link, binary_logits, class_logits
from lapwing.bayes.noise import PREDICTIVE, Noise
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.posterior.alternatives import Alternative, Averaged, Itself, OtherGaussian, ScaledNetwork
from lapwing.network.jacobian import Network
from lapwing.network.last_layer import LastLayer

LARGEST = 8_000  # weights whose covariance is written into the file as a matrix
CLASSES = 64  # beyond these no factor of a covariance is unrolled into a graph

Slope = Callable[[Tensor], Tensor]


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / 2**0.5)) + x * torch.exp(-x.square() / 2) / (2 * pi) ** 0.5


def _silu(x: Tensor) -> Tensor:
    return x.sigmoid() * (1 + x * (1 - x.sigmoid()))


SLOPES: dict[type[nn.Module], Slope] = {  # derivatives of activations
    nn.ReLU: lambda x: (x > 0).to(x),
    nn.Tanh: lambda x: 1 - x.tanh().square(),
    nn.Sigmoid: lambda x: x.sigmoid() * (1 - x.sigmoid()),
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.Softplus: lambda x: x.sigmoid(),
}
AFFINE = (
    nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d,
    nn.BatchNorm2d, nn.Unflatten,
)  # fmt: skip


class Tangents(nn.Module):
    """Outputs (n, c) of a network, and J C (n, c, k) for columns C (d, k) of its chosen weights."""

    def __init__(self, columns: Tensor) -> None:
        super().__init__()
        self.register_buffer("columns", columns)
        self.columns: Tensor


class LayerTangents(Tangents):
    """Those of a sequence of layers."""

    def __init__(self, network: Network, columns: Tensor) -> None:
        super().__init__(columns)
        model = _frozen(network)
        layers = list(_leaves(model, ""))
        for name, layer in layers:
            _check(name, layer, network)
        self.layers = nn.ModuleList([layer for _, layer in layers])
        parts = network.layout.unflatten_each(columns.mT)  # (k, *shape) each
        self.of_layer = []
        for number, (name, _) in enumerate(layers):
            own = {key: parts[f"{name}.{key}"] for key in ("weight", "bias") if f"{name}.{key}" in parts}
            for key, part in own.items():
                self.register_buffer(
                    f"{key}_{number}", part.clone(memory_format=torch.contiguous_format)
                )  # views of one tensor are written in full
            self.of_layer.append(tuple(own))
        del self.columns

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tangents = None  # (k, n, *shape)
        for number, layer in enumerate(self.layers):
            tangents = self._moved(number, layer, x, tangents)
            x = layer(x)
        assert tangents is not None
        return x, tangents.permute(1, 2, 0)

    def _moved(self, number: int, layer: nn.Module, x: Tensor, tangents: Tensor | None) -> Tensor | None:
        """Tangents after a layer, of the weights before it and of its own."""
        slope = SLOPES.get(type(layer))
        if slope is not None:
            return None if tangents is None else tangents * slope(x)
        found = None if tangents is None else _linear_part(layer, x, tangents)
        own = {key: getattr(self, f"{key}_{number}") for key in self.of_layer[number]}
        if not own:
            return found
        added = _by_weights(layer, x, own)
        return added if found is None else found + added


class LastLayerTangents(Tangents):
    """Those of the last layer of any network: its features are what it is given."""

    def __init__(self, last: LastLayer, columns: Tensor) -> None:
        super().__init__(columns)
        c, q = last.layer.out_features, last.layer.in_features
        self.before = _frozen(last.before)
        self.layer = deepcopy(last.layer).requires_grad_(False)
        self.register_buffer(
            "of_weights", columns[: c * q].reshape(c, q, -1).clone(memory_format=torch.contiguous_format)
        )
        self.register_buffer(
            "of_bias",
            columns[c * q :].clone(memory_format=torch.contiguous_format)
            if len(columns) > c * q
            else columns.new_zeros(c, 1),
        )
        self.of_weights: Tensor
        self.of_bias: Tensor
        del self.columns

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        given = self.before(x).flatten(1)
        return self.layer(given), torch.einsum("nq,cqk->nck", given, self.of_weights) + self.of_bias


@final
@dataclass(frozen=True)
class Part:
    """One candidate for the predictions: its columns, where its mean is, and how it becomes probabilities."""

    share: float
    link: Link
    temperature: float
    is_network: bool  # whether it is the network's own outputs, certain
    from_network: bool = True  # whether the mean is the network's output plus its own column, or that column only
    first: int = 0  # of its columns
    last: int = 0


class Served(nn.Module):
    """The predictions of a posterior, as a module.

    For numbers `mean`, `std` (of a new observation) and `epistemic_std`; for classes `probs`, `entropy`,
    `mutual_information` and `score_variance`.
    """

    def __init__(self, tangents: Tangents, parts: tuple[Part, ...], of: Likelihood, noise: Tensor, normals: Tensor):
        super().__init__()
        self.tangents, self.parts, self.of = tangents, parts, of
        self.register_buffer("noise_variance", noise)
        self.register_buffer("normals", normals)
        self.noise_variance: Tensor
        self.normals: Tensor  # (points, c), for averages over draws

    @staticmethod
    def of_posterior(network: Network, last: LastLayer | None, posterior: Posterior, link: Link | None) -> Served:
        """That of a posterior, or an error that says why there is none."""
        of = posterior.likelihood
        if not (of.constant_curvature or of.has_classes):
            raise ValueError(f"export is for Gaussian(), Categorical() and Bernoulli(), not {type(of).__name__}()")
        columns, parts = _columns(posterior, link)
        like = network.fixed[network.layout.names[0]]
        columns = columns.to(like)
        found: Tangents = LayerTangents(network, columns) if last is None else LastLayerTangents(last, columns)
        normals = Noise(posterior.seed, PREDICTIVE).rows(0, POINTS // 2, posterior.map.outputs or 1).to(like)
        return Served(found, parts, of, _noise(posterior, like), torch.cat([normals, -normals])).eval()

    @property
    def names(self) -> tuple[str, ...]:
        """Of what it returns."""
        if self.of.has_classes:
            return ("probs", "entropy", "mutual_information", "score_variance")
        return ("mean", "std", "epistemic_std")

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Predictions at a batch of inputs."""
        outputs, images = self.tangents(x)
        if self.of.has_classes:
            return self._labels(outputs, images)
        centre, covariance = self._known(self.parts[0], outputs, images)
        variance = covariance.diagonal(dim1=1, dim2=2)
        return {"mean": centre, "std": (variance + self.noise_variance).sqrt(), "epistemic_std": variance.sqrt()}

    def _known(self, part: Part, outputs: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the outputs under a part."""
        own = images[:, :, part.first : part.last]
        shift, root = own[:, :, 0], own[:, :, 1:]
        return (outputs + shift if part.from_network else shift), root @ root.mT

    def _labels(self, outputs: Tensor, images: Tensor) -> dict[str, Tensor]:
        probs = torch.zeros_like(outputs)
        for part in self.parts:
            if part.share > 0:
                probs = probs + part.share * self._probabilities(part, outputs, images)
        centre, covariance = self._known(self.parts[0], outputs, images)
        t = self.parts[0].temperature
        variance = covariance.diagonal(dim1=1, dim2=2)
        if self._is_categorical:
            draws = (centre / t + self._deviations(covariance) / t).softmax(-1)
            information = _entropy(draws.mean(0)) - _entropy(draws).mean(0)
            score = (variance.sum(1) - covariance.sum((1, 2)) / outputs.shape[1]).clamp_min(0) / outputs.shape[1]
            return {
                "probs": probs, "entropy": _entropy(probs), "mutual_information": information.clamp_min(0),
                "score_variance": score,
            }  # fmt: skip
        draws = (centre / t + self._deviations(torch.diag_embed(variance)) / t).sigmoid()
        information = (_binary_entropy(draws.mean(0)) - _binary_entropy(draws).mean(0)).clamp_min(0)
        return {
            "probs": probs, "entropy": _binary_entropy(probs), "mutual_information": information,
            "score_variance": variance.mean(1),
        }  # fmt: skip

    @property
    def _is_categorical(self) -> bool:
        """Whether there is one label for all outputs of a datum, or one for each."""
        return self.of.targets_shape(torch.Size((2, 2))) != (2, 2)

    def _probabilities(self, part: Part, outputs: Tensor, images: Tensor) -> Tensor:
        if part.is_network:
            scaled = outputs / part.temperature
            return scaled.softmax(-1) if self._is_categorical else scaled.sigmoid()
        centre, covariance = self._known(part, outputs, images)
        centre, covariance = centre / part.temperature, covariance / part.temperature**2
        variance = covariance.diagonal(dim1=1, dim2=2)
        if not self._is_categorical:
            return binary_logits(part.link, centre, Spread(variance, None)).sigmoid()
        if part.link == "monte carlo":
            return (centre + self._deviations(covariance)).softmax(-1).mean(0)
        return class_logits(part.link, centre, Spread(variance, covariance)).softmax(-1)

    def _deviations(self, covariance: Tensor) -> Tensor:  # (points, n, c)
        """As many points as eager predictions average over, by a triangular factor: ONNX has no decompositions."""
        return torch.einsum("nck,sk->snc", triangular(covariance), self.normals)


def triangular(covariance: Tensor) -> Tensor:  # (n, c, c)
    """The Cholesky factor, written out; columns of a direction without variance are zero.

    >>> given = torch.tensor([[[4.0, 2.0], [2.0, 2.0]]])
    >>> triangular(given)
    tensor([[[2., 0.],
             [1., 1.]]])
    """
    c = covariance.shape[-1]
    small = 1e-6 * covariance.diagonal(dim1=1, dim2=2).sum(1) + torch.finfo(covariance.dtype).tiny
    columns: list[Tensor] = []
    for j in range(c):
        left = covariance[:, :, j]
        for column in columns:
            left = left - column * column[:, j : j + 1]
        size = left[:, j]
        found = left[:, j:] * size.clamp_min(torch.finfo(covariance.dtype).tiny).rsqrt()[:, None]
        kept = (size > small).to(covariance)[:, None]
        columns.append(functional.pad(found * kept, (j, 0)))
    return torch.stack(columns, dim=2)


def _entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(-1)


def _binary_entropy(probs: Tensor) -> Tensor:
    tiny = torch.finfo(probs.dtype).tiny
    other = 1 - probs
    return -(probs * probs.clamp_min(tiny).log() + other * other.clamp_min(tiny).log())


def _columns(posterior: Posterior, link: Link | None) -> tuple[Tensor, tuple[Part, ...]]:
    """Columns of weights, for each part its mean and a root of its covariance; the first part is the posterior."""
    t, alternative = posterior.temperature, posterior.alternative
    own = 1.0 if alternative is None or link is not None else _share(alternative, Itself)
    first = _of_gaussian(posterior, posterior.map.centre)
    blocks, width = [first], first.shape[1]
    from_network = _from_network(posterior, posterior.map.centre)
    parts = [Part(own, link or posterior.link, t, False, from_network, 0, width)]
    if alternative is not None and link is None:
        for part, share in _listed(alternative):
            if isinstance(part, ScaledNetwork):
                parts.append(Part(share, "probit", part.temperature, True))
            elif isinstance(part, OtherGaussian):
                other = posterior.with_gaussian(part.gaussian)
                block = _of_gaussian(other, part.centre)
                ends = width, width + block.shape[1]
                parts.append(Part(share, part.link, t, False, _from_network(other, part.centre), *ends))
                blocks.append(block)
                width = ends[1]
    _check_classes(posterior)
    return torch.cat(blocks, dim=1), tuple(parts)


def _check_classes(posterior: Posterior) -> None:
    classes = posterior.map.outputs or 1
    if posterior.likelihood.has_classes and classes > CLASSES:
        raise ValueError(f"export is for up to {CLASSES} classes, this posterior has {classes}")


def _listed(alternative: Alternative) -> list[tuple[Alternative, float]]:
    if isinstance(alternative, Averaged):
        return list(zip(alternative.parts, alternative.shares, strict=True))
    return [(alternative, 1.0)]


def _share(alternative: Alternative, kind: type[Alternative]) -> float:
    return sum(share for part, share in _listed(alternative) if isinstance(part, kind))


def _from_network(posterior: Posterior, centre: str) -> bool:
    point = posterior.map.point
    assert point is not None
    return centre == "network" or not point.through_zero


def _of_gaussian(posterior: Posterior, centre: str) -> Tensor:  # (d, 1 + rank)
    """The shift of the mean and a root of the covariance: by its closed form, or by the stored draws."""
    point, gaussian = posterior.map.point, posterior.gaussian
    assert point is not None
    if gaussian.is_closed_form:
        d = posterior.map.weights
        if d > LARGEST:
            raise ValueError(
                f"the covariance of {d:,} weights is too large for a file, {LARGEST:,} is the most: fit with "
                "select=lw.last_layer(network)"
            )
        root = gaussian.root(torch.eye(d, dtype=torch.float64))
    else:
        draws = gaussian.deviations.shape[1]
        if draws == 0:
            raise ValueError("this posterior has no draws: infer it with draws=32 to export it")
        root = gaussian.deviations.double() / draws**0.5
    shift = torch.zeros(len(root), 1, dtype=torch.float64)
    if centre == "linear":
        origin = torch.zeros_like(point.weights) if point.through_zero else point.weights
        shift = (posterior.mean.double() - origin.double())[:, None]
    return torch.cat([shift, root.double()], dim=1)


def _noise(posterior: Posterior, like: Tensor) -> Tensor:  # (1, c)
    """The variance of an observation around its output; zero for labels, which have none."""
    of = posterior._around(posterior.map.centre)
    if not of.constant_curvature:
        return like.new_zeros(1, posterior.map.outputs or 1)
    nothing = torch.zeros(1, posterior.map.outputs or 1, dtype=torch.float64)
    found = of.noise_variance(nothing, Spread(nothing, None))
    if isinstance(found, str):
        raise ValueError(found)
    return torch.as_tensor(found).to(like).expand(1, posterior.map.outputs or 1).clone()


def _frozen(network: Network) -> nn.Module:
    """A copy of the module with the weights it was fitted at."""
    model = deepcopy(network.model).eval().requires_grad_(False)
    model.load_state_dict(network.fixed, strict=False)
    return model


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Layers in the order in which they are called, of a module that is a sequence."""
    if isinstance(module, nn.Sequential):
        for key, part in module.named_children():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    else:
        yield name, module


def _check(name: str, layer: nn.Module, network: Network) -> None:
    """Refuse a layer without a rule."""
    kind = type(layer)
    weighted = isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    chosen = any(key.startswith(f"{name}.") for key in network.layout.names)
    plain = not isinstance(layer, nn.GELU) or layer.approximate == "none"
    fits = not isinstance(layer, nn.Softplus) or (layer.beta == 1 and layer.threshold >= 20)
    if weighted or (kind in SLOPES and plain and fits) or (isinstance(layer, AFFINE) and not chosen):
        return
    where = name or "the network"
    raise ValueError(
        f"{where} is a {kind.__name__}: the Jacobian of all weights is exported for nn.Sequential of Linear, Conv2d, "
        f"{', '.join(one.__name__ for one in SLOPES)}, Flatten and average pooling, with weights of Linear and Conv2d "
        "selected. For other networks fit the last layer, select=lw.last_layer(network)"
    )


def _linear_part(layer: nn.Module, x: Tensor, tangents: Tensor) -> Tensor:
    """What a layer that is affine in its inputs does with their tangents (k, n, …)."""
    flat = tangents.flatten(0, 1)
    if isinstance(layer, nn.Linear):
        moved = functional.linear(flat, layer.weight)
    elif isinstance(layer, nn.Conv2d):
        moved = layer._conv_forward(flat, layer.weight, None)
    else:
        moved = layer(flat) - layer(torch.zeros_like(flat))
    return moved.unflatten(0, (tangents.shape[0], x.shape[0]))


def _by_weights(layer: nn.Module, x: Tensor, own: dict[str, Tensor]) -> Tensor:
    """What changes of the layer's own weights do, (k, n, …): one for each column."""
    found: Tensor | float = 0.0
    if "weight" in own and isinstance(layer, nn.Linear):
        found = torch.einsum("nq,kdq->knd", x, own["weight"])
    elif "weight" in own and isinstance(layer, nn.Conv2d):
        k, o = own["weight"].shape[:2]
        found = layer._conv_forward(x, own["weight"].flatten(0, 1), None).unflatten(1, (k, o)).movedim(1, 0)
    if "bias" in own:
        bias = own["bias"]
        trailing = (1,) * (2 if isinstance(layer, nn.Conv2d) else 0)
        found = found + bias.reshape(bias.shape[0], 1, bias.shape[1], *trailing)
    if not isinstance(found, Tensor):
        raise TypeError("a layer without chosen weights has no tangents of its own")
    return found
