"""The prior over a U-Net's filters: one Gaussian process per block, a Matérn-½ kernel over the taps of a filter.

Every k × k filter of a block is N(0, variance · (exp(−distance / lengthscale) + 1e-6 I)); a 1 × 1 convolution has its
variance alone. Biases and the parameters of normalisation layers are not random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from lapwing.bayes.noise import PRIOR, Noise
from lapwing.linalg.operators import LinearOperator
from lapwing.network.parameters import Layout

JITTER = 1e-6
LEAST = 1e-3  # variance that a block begins with at least
NUMBERED = ("down", "skip", "up")  # parts of a U-Net that have a block per scale


@final
@dataclass(frozen=True)
class FilterBlock:
    """Filters that share a prior, and where they stand among the random weights."""

    name: str
    side: int  # k of its k × k filters
    spans: tuple[tuple[int, int], ...]

    @property
    def taps(self) -> int:
        """Weights of one filter."""
        return self.side * self.side

    def of(self, flat: Tensor) -> Tensor:  # (p, …) -> (filters, taps, …)
        """The part of a flat vector, or of columns, that belongs to this block."""
        parts = [flat[start:stop] for start, stop in self.spans]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.reshape(-1, self.taps, *flat.shape[1:])

    def put(self, flat: Tensor, filters: Tensor) -> None:
        """Write filters (filters, taps, …) to their places in a flat vector."""
        values, first = filters.reshape(-1, *flat.shape[1:]), 0
        for start, stop in self.spans:
            flat[start:stop] = values[first : first + stop - start]
            first += stop - start


def blocks_of(model: nn.Module) -> tuple[FilterBlock, ...]:
    """The blocks of a U-Net, over the flat vector of its filters in their own order.

    >>> from lapwing.studies.tomography import UNet
    >>> [(block.name, block.side) for block in blocks_of(UNet((4, 4), (2,)))]
    [('enter', 3), ('down.0', 3), ('skip.0', 1), ('up.0', 3), ('leave', 1)]
    """
    layout = Layout.of(model, is_filter(model))
    found: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    start = 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        head, _, rest = name.partition(".")
        key = f"{head}.{rest.partition('.')[0]}" if head in NUMBERED else head
        side, spans = found.setdefault(key, (shape[-1], []))
        if len(shape) != 4 or shape[-1] != shape[-2] or shape[-1] != side:
            raise ValueError(f"{name} has shape {tuple(shape)}: a block must have square filters of one size")
        spans.append((start, start + shape.numel()))
        start += shape.numel()
    return tuple(FilterBlock(name, side, tuple(spans)) for name, (side, spans) in found.items())


def is_filter(model: nn.Module) -> Callable[[str], bool]:
    """A choice for `select=`: the filters of convolutions."""
    return {name: weight.ndim == 4 for name, weight in model.named_parameters()}.__getitem__


def distances(side: int) -> tuple[Tensor, Tensor]:  # (classes,), (classes, taps, taps)
    """The distinct distances between taps of a filter, and for each the pairs that are so far apart.

    >>> distances(3)[0]
    tensor([0.0000, 1.0000, 1.4142, 2.0000, 2.2361, 2.8284], dtype=torch.float64)
    """
    axis = torch.arange(side)
    places = torch.cartesian_prod(axis, axis).reshape(-1, 2)
    squares = (places[:, None] - places[None]).square().sum(-1)
    distinct = squares.unique()
    return distinct.double().sqrt(), (squares[None] == distinct[:, None, None]).double()


def correlations(side: int, log_lengthscale: Tensor) -> Tensor:  # () -> (classes,)
    """The prior correlation of two taps at each distinct distance, with the jitter on the first."""
    apart = distances(side)[0]
    if side == 1:
        return torch.ones(1, dtype=torch.float64)
    decay = torch.exp(-apart / log_lengthscale.exp())
    return decay + torch.nn.functional.one_hot(torch.tensor(0), len(apart)) * JITTER


@final
@dataclass(frozen=True, eq=False)
class FilterPrior:
    """Variances and lengthscales of all blocks, as logarithms; a lengthscale of a 1 × 1 block means nothing.

    Parameters
    ----------
    blocks : tuple of FilterBlock
        Filters that share a prior.
    log_variance : Tensor
        One for each block.
    log_lengthscale : Tensor
        One for each block.

    Examples
    --------
    >>> from lapwing.studies.tomography import UNet
    >>> prior = FilterPrior.start(blocks_of(UNet((4, 4), (2,))), variance=2.0)
    >>> prior.covariance(0).shape, round(float(prior.covariance(0)[0, 0]), 2)
    (torch.Size([9, 9]), 2.0)
    """

    blocks: tuple[FilterBlock, ...]
    log_variance: Tensor  # (blocks,)
    log_lengthscale: Tensor  # (blocks,)

    @staticmethod
    def start(blocks: Sequence[FilterBlock], variance: float = 1.0, lengthscale: float = 0.1) -> FilterPrior:
        """One variance and one lengthscale for all."""
        if not (variance > 0 and lengthscale > 0):
            raise ValueError(f"variance is {variance} and lengthscale {lengthscale}: both must be positive")
        ones = torch.ones(len(blocks), dtype=torch.float64)
        return FilterPrior(tuple(blocks), ones * math.log(variance), ones * math.log(lengthscale))

    @staticmethod
    def typical(blocks: Sequence[FilterBlock], weights: Tensor, lengthscale: float = 0.1) -> FilterPrior:
        """The variances under which these weights (p,) are typical, block by block: where a search is best begun."""
        found = FilterPrior.start(blocks, 1.0, lengthscale)
        squares = torch.stack([block.of(weights).double().square().mean() for block in blocks])
        return replace(found, log_variance=squares.clamp_min(LEAST).log())

    @property
    def size(self) -> int:
        """Number of random weights."""
        return max(stop for block in self.blocks for _, stop in block.spans)

    def coefficients(self, number: int) -> Tensor:  # (classes,)
        """The covariance of two taps of a filter of one block, at each of their distinct distances."""
        block = self.blocks[number]
        return self.log_variance[number].exp() * correlations(block.side, self.log_lengthscale[number])

    def covariance(self, number: int) -> Tensor:  # (taps, taps)
        """The covariance of the taps of one filter of a block; differentiable."""
        return torch.tensordot(self.coefficients(number), distances(self.blocks[number].side)[1], 1)

    def root(self) -> FilterRoot:
        """L with Σ = L Lᵀ, as an operator over all weights."""
        factors = [torch.linalg.cholesky(self.covariance(number)) for number in range(len(self.blocks))]
        return FilterRoot(self.blocks, tuple(factors), self.size)

    def draw(self, noise: Noise, columns: int) -> Tensor:  # (p, columns)
        """Independent draws of the weights."""
        return self.root() @ replace(noise, stream=PRIOR).rows(0, self.size, columns)

    def log_det(self) -> float:
        """log det of the precision Σ⁻¹."""
        return -sum(
            filters * float(torch.linalg.slogdet(self.covariance(number)).logabsdet)
            for number, filters in self._filters()
        )

    def _filters(self) -> Iterator[tuple[int, int]]:
        for number, block in enumerate(self.blocks):
            yield number, sum(stop - start for start, stop in block.spans) // block.taps


@final
@dataclass(frozen=True, eq=False)
class FilterRoot(LinearOperator):
    """A block-diagonal operator that multiplies every filter of a block by the same small matrix."""

    blocks: tuple[FilterBlock, ...]
    factors: tuple[Tensor, ...]  # (taps, taps) each
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.size, self.size)

    @property
    def like(self) -> Tensor:
        return self.factors[0]

    def to(self, like: Tensor) -> FilterRoot:
        """The same in another precision, that of the network which it multiplies."""
        return replace(self, factors=tuple(factor.to(like) for factor in self.factors))

    def matmat(self, x: Tensor) -> Tensor:
        return self._times(x, list(self.factors))

    def rmatmat(self, y: Tensor) -> Tensor:
        return self._times(y, [factor.mT for factor in self.factors])

    def inverse(self, x: Tensor) -> Tensor:  # (p, k) -> (p, k)
        """L⁻¹ times columns."""
        return self._times(x, [torch.linalg.inv(factor) for factor in self.factors])

    def _times(self, x: Tensor, factors: list[Tensor]) -> Tensor:
        found = torch.empty_like(x)
        for block, factor in zip(self.blocks, factors, strict=True):
            block.put(found, torch.einsum("ij,fjk->fik", factor.to(x), block.of(x)))
        return found
