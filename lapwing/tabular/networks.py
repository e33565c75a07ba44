"""Tanh networks side by side: a batch of networks is a few batches of matrices, and so are its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Generator, Tensor


@final
@dataclass(frozen=True, eq=False)
class LayerMatrices:
    """One matrix a layer for each of b networks, the bias as its last column; also steps, gradients and precisions.

    Flat vectors hold the layers one after another, each by rows.
    """

    of: tuple[Tensor, ...]  # each (b, outputs, inputs + 1)

    def __getitem__(self, chosen: Tensor) -> LayerMatrices:
        return LayerMatrices(tuple(layer[chosen] for layer in self.of))

    def __add__(self, other: LayerMatrices) -> LayerMatrices:
        return self._with(other, torch.add)

    def __sub__(self, other: LayerMatrices) -> LayerMatrices:
        return self._with(other, torch.sub)

    def __mul__(self, other: LayerMatrices) -> LayerMatrices:
        return self._with(other, torch.mul)

    def _with(self, other: LayerMatrices, operation: Callable[[Tensor, Tensor], Tensor]) -> LayerMatrices:
        return LayerMatrices(tuple(operation(mine, theirs) for mine, theirs in zip(self.of, other.of, strict=True)))

    @property
    def weights(self) -> int:
        """Of each network."""
        return sum(layer[0].numel() for layer in self.of)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the layers' matrices."""
        return tuple((layer.shape[1], layer.shape[2]) for layer in self.of)

    def total(self) -> Tensor:  # (b,)
        """The sum of all entries."""
        return torch.stack([layer.sum((1, 2)) for layer in self.of]).sum(0)

    def replaced(self, chosen: Tensor, others: LayerMatrices) -> LayerMatrices:
        """With the networks at these places taken from others."""
        return LayerMatrices(
            tuple(mine.index_copy(0, chosen, new) for mine, new in zip(self.of, others.of, strict=True))
        )

    def flat(self) -> Tensor:  # (b, p)
        """All weights of each network."""
        return torch.cat([layer.flatten(1) for layer in self.of], dim=1)

    def like(self, flat: Tensor) -> LayerMatrices:  # of (b, p)
        """Vectors of weights in the form of these layers."""
        parts = flat.split([layer[0].numel() for layer in self.of], dim=1)
        return LayerMatrices(
            tuple(part.reshape(-1, *layer.shape[1:]) for part, layer in zip(parts, self.of, strict=True))
        )


@final
@dataclass(frozen=True, eq=False)
class LayerJacobian:
    """Derivatives of outputs by weights: the row of a layer's matrix is the outer product of `left` and `right`.

    Nothing of size rows × weights is stored. Kernels, products and the rows themselves come from the two factors.
    """

    left: tuple[Tensor, ...]  # each (b, rows, outputs of the layer)
    right: tuple[Tensor, ...]  # each (b, rows, inputs of the layer + 1)

    @property
    def rows(self) -> int:
        """Of each network."""
        return self.left[0].shape[1]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the layers' matrices."""
        return tuple((left.shape[2], right.shape[2]) for left, right in self._layers())

    def of(self, chosen: Tensor) -> LayerJacobian:
        """Of some of the networks."""
        return LayerJacobian(tuple(part[chosen] for part in self.left), tuple(part[chosen] for part in self.right))

    def __getitem__(self, block: slice) -> LayerJacobian:
        return LayerJacobian(tuple(part[:, block] for part in self.left), tuple(part[:, block] for part in self.right))

    def scaled(self, root: Tensor) -> LayerJacobian:  # (b, rows) or (1, rows)
        """Each row times a number."""
        return LayerJacobian(tuple(part * root[:, :, None] for part in self.left), self.right)

    def times(self, step: LayerMatrices) -> Tensor:  # (b, rows)
        """J δ."""
        parts = zip(self.left, self.right, step.of, strict=True)
        return sum((((right @ layer.mT) * left).sum(2) for left, right, layer in parts), torch.zeros(()))

    def transposed(self, values: Tensor) -> LayerMatrices:  # of (b, rows)
        """Jᵀ u."""
        weighted = ((left * values[:, :, None]).mT for left in self.left)
        return LayerMatrices(tuple(left @ right for left, right in zip(weighted, self.right, strict=True)))

    def kernel(self, other: LayerJacobian, variances: tuple[Tensor, ...]) -> Tensor:  # (b, rows, other rows)
        """J V J'ᵀ for a variance per column of each layer's matrix, (b, inputs + 1) each.

        Network by network, which keeps the matrices at hand small enough for the processor's cache.
        """
        whole = torch.zeros(len(self.left[0]), self.rows, other.rows, dtype=self.left[0].dtype)
        for member, total in enumerate(whole):
            for mine, theirs, variance in zip(self._layers(), other._layers(), variances, strict=True):
                (left, right), (other_left, other_right) = mine, theirs
                part = (right[member] * variance[member]) @ other_right[member].mT
                total += part.mul_(left[member] @ other_left[member].mT)
        return whole

    def kernel_diagonal(self, variances: tuple[Tensor, ...]) -> Tensor:  # (b, rows)
        """The diagonal of `kernel` with itself."""
        parts = [
            left.square().sum(2) * (right.square() * variance[:, None, :]).sum(2)
            for (left, right), variance in zip(self._layers(), variances, strict=True)
        ]
        return torch.stack(parts).sum(0)

    def dense(self) -> Tensor:  # (b, rows, p)
        """The rows themselves."""
        whole = self.left[0].new_empty(*self.left[0].shape[:2], sum(high * wide for high, wide in self.shapes))
        for member, part in enumerate(whole):
            self.write_dense(member, part)
        return whole

    def write_dense(self, member: int, into: Tensor) -> None:  # (rows, p)
        """The rows of one network, into memory that is there."""
        parts = into.split([high * wide for high, wide in self.shapes], dim=1)
        for part, left, right in zip(parts, self.left, self.right, strict=True):
            mine, theirs = left[member], right[member]
            torch.mul(mine[:, :, None], theirs[:, None, :], out=part.unflatten(1, (mine.shape[1], theirs.shape[1])))

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.left, self.right, strict=True))


def initial(sizes: tuple[int, ...], generators: list[Generator]) -> LayerMatrices:
    """Weights N(0, 1 / inputs) and biases N(0, 1), each network from its own generator and independent of others."""
    layers = []
    for inputs, outputs in pairwise(sizes):
        normals = [torch.randn(outputs, inputs + 1, generator=one, dtype=torch.float64) for one in generators]
        spread = torch.ones(inputs + 1, dtype=torch.float64)
        spread[:-1] = inputs**-0.5
        layers.append(torch.stack(normals) * spread)
    return LayerMatrices(tuple(layers))


def outputs(networks: LayerMatrices, inputs: Tensor) -> Tensor:  # (b, n, c) at inputs (n, d)
    """The outputs of every network."""
    return _activations(networks, inputs)[-1]


def linearised(networks: LayerMatrices, inputs: Tensor) -> tuple[Tensor, LayerJacobian]:
    """Outputs (b, n, c) and their Jacobian, whose rows are the outputs of the first datum, then of the next."""
    *hidden, final = _activations(networks, inputs)
    b, n, c = final.shape
    slope = torch.eye(c, dtype=final.dtype).expand(b, n, c, c)  # by the outputs of the layer at hand
    left = []
    for position in reversed(range(len(networks.of))):
        left.append(slope.flatten(1, 2))
        if position:
            back = slope @ networks.of[position][:, None, :, :-1]
            slope = back * (1 - hidden[position - 1].square())[:, :, None, :]
    right = [_with_one(inputs.expand(b, -1, -1)), *(_with_one(values) for values in hidden)]
    repeated = tuple(part.repeat_interleave(c, dim=1) if c > 1 else part for part in right)
    return final, LayerJacobian(tuple(reversed(left)), repeated)


def squared_slopes(networks: LayerMatrices, jacobian: LayerJacobian, weights: Tensor) -> Tensor:  # (b, d), of (rows,)
    """Of all outputs along every input, summed over weighted rows of the Jacobian."""
    slopes = jacobian.left[0] @ networks.of[0][:, :, :-1]
    return (weights[None, None, :] @ slopes.square())[:, 0]


def _activations(networks: LayerMatrices, inputs: Tensor) -> list[Tensor]:
    values = [inputs.expand(len(networks.of[0]), -1, -1)]
    last = len(networks.of) - 1
    for position, layer in enumerate(networks.of):
        before = torch.baddbmm(layer[:, None, :, -1], values[-1], layer[:, :, :-1].mT)
        values.append(before if position == last else before.tanh())
    return values[1:]


def _with_one(values: Tensor) -> Tensor:
    return torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
