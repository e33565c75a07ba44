"""The kinds of layers whose weights enter linearly: what the weights are multiplied with, and what is felt there.

The gradient of a datum in a layer's matrix is Σ_t g_t a_tᵀ over positions t, with a what the matrix is multiplied with
and g the gradient in the layer's output. A grouped convolution has one such matrix for each group. Where weights are a
vector, as in a normalisation, the gradient is Σ_t g_t ⊙ a_t. The gradient in a bias is Σ_t g_t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

Sizes = tuple[int, ...]


class Kind(ABC):
    """How a layer uses its weights."""

    groups: int = 1
    is_vector: ClassVar[bool] = False  # weights are multiplied with elements, not with vectors
    by_entry: ClassVar[bool] = False  # what they are multiplied with is the number of a row

    @property
    def in_order(self) -> bool:
        """Whether the entries of the matrices are in the order of the weight's."""
        return True

    @abstractmethod
    def features(self, x: Tensor, data: int, axis: int = 0) -> Tensor:  # (groups, data, positions, i)
        """What the weights are multiplied with at every position; `axis` is that of the data."""

    @abstractmethod
    def signals(self, gradient: Tensor, data: int, axis: int = 0) -> Tensor:  # (groups, data, positions, o)
        """The gradient in the layer's output, position by position."""

    @abstractmethod
    def index(self, shape: torch.Size) -> Tensor:  # (groups, o, i)
        """Where the entries of the matrices are in a weight of some shape."""

    def bias_index(self, size: int) -> Tensor:  # (groups, o, 1), or (1, 1, o) of a vector
        """Where those of the bias are."""
        return torch.arange(size).reshape(self.groups, -1, 1)

    def ones(self, shape: torch.Size, data: int, like: Tensor) -> Tensor:  # (groups, data, positions, 1)
        """What the bias is multiplied with, of an output of some shape."""
        positions = shape.numel() // (data * self.outputs(shape))
        return torch.ones(self.groups, data, positions, 1, dtype=like.dtype, device=like.device)

    def outputs(self, shape: torch.Size) -> int:
        """Features at one position of an output."""
        return shape[-1]


@final
@dataclass(frozen=True)
class Linear(Kind):
    """x Wᵀ along the last axis."""

    def features(self, x: Tensor, data: int, axis: int = 0) -> Tensor:
        return _by_datum(x, data, axis)[None]

    def signals(self, gradient: Tensor, data: int, axis: int = 0) -> Tensor:
        return _by_datum(gradient, data, axis)[None]

    def index(self, shape: torch.Size) -> Tensor:
        return torch.arange(shape.numel()).reshape(1, *shape)


@final
@dataclass(frozen=True)
class Convolution(Kind):
    """A convolution along any number of axes, or with `output_padding` the transpose of one."""

    kernel: Sizes
    stride: Sizes
    padding: tuple[tuple[int, int], ...]  # before and after, by axis
    dilation: Sizes
    groups: int = 1
    output_padding: Sizes | None = None

    @property
    def in_order(self) -> bool:
        return self.output_padding is None

    def features(self, x: Tensor, data: int, axis: int = 0) -> Tensor:
        del axis
        return _rows_by_datum(self._patches(x).mT, data)

    def signals(self, gradient: Tensor, data: int, axis: int = 0) -> Tensor:
        del axis
        grouped = gradient.reshape(len(gradient), self.groups, -1, gradient[0, 0].numel())
        return _rows_by_datum(grouped.transpose(0, 1).mT, data)

    def index(self, shape: torch.Size) -> Tensor:
        places = torch.arange(shape.numel()).reshape(shape)
        if self.output_padding is None:
            return places.reshape(self.groups, shape[0] // self.groups, -1)
        grouped = places.flatten(2).flip(-1).unflatten(0, (self.groups, -1))  # (inputs, outputs of a group, kernel)
        return grouped.transpose(1, 2).flatten(2)

    def outputs(self, shape: torch.Size) -> int:
        return shape[1]

    def _patches(self, x: Tensor) -> Tensor:  # (groups, rows, i, positions)
        """The input under the kernel at every position of the output.

        Positions come last in memory, so that they are copied in long runs.
        """
        dims = len(self.kernel)
        step = self.stride if self.output_padding is None else (1,) * dims
        wide = self.padded(x) if self.output_padding is None else self._spread(x, self.output_padding)
        x = self._unfolded(wide, step, range(dims))
        x = x.unflatten(1, (self.groups, -1))  # rows, groups, channels, *positions, *kernel
        x = x.permute(1, 0, 2, *range(3 + dims, 3 + 2 * dims), *range(3, 3 + dims))
        return x.flatten(3 + dims).flatten(2, 2 + dims)

    def strips(self, x: Tensor) -> Tensor:  # (groups, channels · rest of the kernel, height, rows · rest of positions)
        """The input under the kernel in every direction but the first, of whose height it is."""
        dims = len(self.kernel)
        x = self._unfolded(self.padded(x), self.stride, range(1, dims)).unflatten(1, (self.groups, -1))
        x = x.permute(1, 2, *range(3 + dims, 2 + 2 * dims), 3, 0, *range(4, 3 + dims))
        return x.flatten(2 + dims).flatten(1, dims)

    def padded(self, x: Tensor) -> Tensor:
        """The input with its margins."""
        return F.pad(x, [number for pair in reversed(self.padding) for number in pair])

    def _unfolded(self, x: Tensor, step: Sizes, axes: range) -> Tensor:
        for axis in axes:
            gap = self.dilation[axis]
            width = gap * (self.kernel[axis] - 1) + 1
            x = x.unfold(2 + axis, width, step[axis])[..., ::gap]
        return x

    def _spread(self, x: Tensor, output_padding: Sizes) -> Tensor:
        """The input of a transpose with zeros between: a convolution of stride one gives the output."""
        size = [step * (n - 1) + 1 for step, n in zip(self.stride, x.shape[2:], strict=True)]
        spread = x.new_zeros(*x.shape[:2], *size)
        places: Any = (..., *(slice(None, None, step) for step in self.stride))
        spread[places] = x
        numbers = zip(self.kernel, self.dilation, self.padding, output_padding, strict=True)
        pairs = [(gap * (kernel - 1) - cut, gap * (kernel - 1) - cut + more) for kernel, gap, (cut, _), more in numbers]
        return F.pad(spread, [number for pair in reversed(pairs) for number in pair])


@final
@dataclass(frozen=True)
class Embedding(Kind):
    """Rows of a table; what they are multiplied with is a unit vector, of which the place is kept."""

    padding_entry: int = -1  # which gets no gradient, −1 for none
    by_entry = True

    def features(self, x: Tensor, data: int, axis: int = 0) -> Tensor:
        return _by_datum(x[..., None], data, axis)[None]

    def signals(self, gradient: Tensor, data: int, axis: int = 0) -> Tensor:
        return _by_datum(gradient, data, axis)[None]

    def index(self, shape: torch.Size) -> Tensor:
        return torch.arange(shape.numel()).reshape(shape).mT[None]


@final
@dataclass(frozen=True)
class Elementwise(Kind):
    """w ⊙ x + b, along the second axis or along the last ones: what a normalisation does last."""

    axes: int | None  # how many last axes w has, None for the second axis
    is_vector = True

    def features(self, x: Tensor, data: int, axis: int = 0) -> Tensor:
        return _by_datum(self._last(x), data, axis)[None]

    def signals(self, gradient: Tensor, data: int, axis: int = 0) -> Tensor:
        return _by_datum(self._last(gradient), data, axis)[None]

    def index(self, shape: torch.Size) -> Tensor:
        return torch.arange(shape.numel()).reshape(1, 1, -1)

    def bias_index(self, size: int) -> Tensor:
        return torch.arange(size).reshape(1, 1, -1)

    def _last(self, x: Tensor) -> Tensor:
        """The features of a position as the last axis."""
        return x.movedim(1, -1) if self.axes is None else x.flatten(-self.axes)


@final
@dataclass(frozen=True)
class Shift(Kind):
    """x + w for every datum, as positions are added: w is a bias that may be broadcast."""

    shape: torch.Size  # of w, without an axis of data

    def features(self, x: Tensor, data: int, axis: int = 0) -> Tensor:
        del data, axis
        raise ValueError(f"a sum multiplies nothing of shape {tuple(x.shape)} with weights")

    def signals(self, gradient: Tensor, data: int, axis: int = 0) -> Tensor:
        del axis
        _check_rows(len(gradient), data)
        gradient = gradient if len(gradient) == data else gradient.unflatten(0, (data, -1))
        first = gradient.ndim - len(self.shape)
        given = range(max(first, 1), gradient.ndim)
        kept = [a for a in given if self.shape[a - first] == gradient.shape[a]]
        summed = [a for a in range(1, gradient.ndim) if a not in kept]
        return (gradient.sum(summed) if summed else gradient).reshape(1, data, 1, -1)

    def index(self, shape: torch.Size) -> Tensor:
        return torch.arange(shape.numel()).reshape(1, 1, -1)


def _by_datum(x: Tensor, data: int, axis: int) -> Tensor:  # (data, positions, features)
    x = x.transpose(0, axis) if axis else x
    _check_rows(len(x), data)
    return x.reshape(data, -1, x.shape[-1])


def _rows_by_datum(x: Tensor, data: int) -> Tensor:  # (groups, rows, positions, features)
    """(groups, data, positions, features); nothing is copied where a datum is a row."""
    groups, rows, positions, size = x.shape
    _check_rows(rows, data)
    return x if rows == data else x.reshape(groups, data, rows // data * positions, size)


def _check_rows(rows: int, data: int) -> None:
    if rows % data:
        raise ValueError(f"{rows} rows are no multiple of {data} data")
