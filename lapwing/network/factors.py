"""The Jacobian of a batch from what every layer saw and what the outputs feel of it: one reverse pass per output.

Where weights enter a layer linearly, s = W a, the Jacobian of output o is the product of a and ∂o/∂s. Both are found
once per batch and then serve any number of columns, without another pass through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.network.layers.kinds import Linear
from lapwing.network.layers.recorder import Recorder, Use

COLUMNS = 64  # worked on at once by a layer that keeps its factors


class Unfactored(Exception):
    """Some weight enters the network in a way that has no factored form; carries the name of the function."""


@final
@dataclass(frozen=True, eq=False)
class FactorRows:
    """Dense rows of the Jacobian with respect to one tensor."""

    name: str
    matrix: Tensor  # (b · c, weights)

    @property
    def bytes(self) -> int:
        """Memory of the rows."""
        return self.matrix.nbytes

    def times(self, x: Tensor) -> Tensor:  # (weights, k) -> (b · c, k)
        return self.matrix @ x

    def transposed(self, y: Tensor) -> Tensor:  # (b · c, k) -> (weights, k)
        return (y.mT @ self.matrix).mT


@final
@dataclass(frozen=True, eq=False)
class Tokens:
    """The matrix of a linear layer, by its inputs and the gradients at its outputs."""

    name: str
    inputs: Tensor  # (b, tokens, in)
    gradients: Tensor  # (b, c, tokens, out)

    @property
    def bytes(self) -> int:
        """Memory of both factors."""
        return self.inputs.nbytes + self.gradients.nbytes

    def times(self, x: Tensor) -> Tensor:  # (out · in, k) -> (b · c, k)
        return torch.cat([self._times(part) for part in x.split(COLUMNS, dim=1)], dim=1)

    def transposed(self, y: Tensor) -> Tensor:  # (b · c, k) -> (out · in, k)
        return torch.cat([self._transposed(part) for part in y.split(COLUMNS, dim=1)], dim=1)

    def _times(self, x: Tensor) -> Tensor:
        (b, c, tokens, out), k = self.gradients.shape, x.shape[1]
        tangents = self.inputs @ x.reshape(out, -1, k).permute(1, 2, 0).reshape(-1, k * out)  # (b, tokens, k · out)
        moved = tangents.reshape(b, tokens, k, out).transpose(1, 2).reshape(b, k, tokens * out)
        return (self.gradients.reshape(b, c, tokens * out) @ moved.mT).reshape(b * c, k)

    def _transposed(self, y: Tensor) -> Tensor:
        (b, c, tokens, out), k = self.gradients.shape, y.shape[1]
        felt = y.reshape(b, c, k).mT @ self.gradients.reshape(b, c, tokens * out)  # (b, k, tokens · out)
        felt = felt.reshape(b, k, tokens, out).permute(1, 3, 0, 2).reshape(k * out, b * tokens)
        return (felt @ self.inputs.reshape(b * tokens, -1)).reshape(k, -1).mT


@final
@dataclass(frozen=True, eq=False)
class JacobianFactors:
    """The Jacobian of one batch as a sum of terms."""

    outputs: Tensor  # (b, c)
    terms: list[FactorRows | Tokens]
    gradients: int  # numbers that the gradients at all layers held before they became terms


def factor(
    function: Callable[[dict[str, Tensor]], Tensor], weights: dict[str, Tensor], columns: float
) -> JacobianFactors:
    """The outputs and the terms whose sum is the Jacobian, in the form that is cheapest for so many columns.

    Every datum must depend on its own inputs alone. Raises `Unfactored` where some weight is used otherwise.
    """
    outputs, recorder = traced(function, weights)
    if not outputs.requires_grad:
        return JacobianFactors(outputs, [], 0)
    terms: list[FactorRows | Tokens] = []
    for use, gradients in pulled(outputs, recorder.uses):
        terms += _terms(use, gradients, weights, columns)
    numbers = outputs.shape[1] * sum(use.shape.numel() for use in recorder.uses)
    return JacobianFactors(outputs.detach(), terms, numbers)


def traced(function: Callable[[dict[str, Tensor]], Tensor], weights: dict[str, Tensor]) -> tuple[Tensor, Recorder]:
    """The outputs (b, c) and how weights were used. Raises `Unfactored` where one has no factored form."""
    recorder = Recorder.of(weights)
    with torch.enable_grad(), recorder:
        outputs = function(weights)
    _check(recorder)
    return outputs, recorder


def _check(recorder: Recorder) -> None:
    for _, function in recorder.others:
        raise Unfactored(function)
    for use in recorder.uses:
        if use.kind.by_entry:
            raise Unfactored("an embedding")
        if use.weight is not None and not use.is_intact:
            raise Unfactored("an operation in place")


def pulled(outputs: Tensor, uses: list[Use]) -> Iterator[tuple[Use, Tensor]]:
    """Signals of every output at the uses that it depends on, (groups, b, c, positions, o); each is let go after."""
    (b, c), edges, passes = outputs.shape, [use.output for use in uses], []
    for output in range(c):
        ahead = output < c - 1
        passes.append(torch.autograd.grad(outputs[:, output].sum(), edges, retain_graph=ahead, allow_unused=True))
    felt = [list(gradients) for gradients in zip(*passes, strict=True)]
    passes.clear()
    for use in uses:
        gradients = felt.pop(0)
        if all(gradient is None for gradient in gradients):
            continue
        if use.shape[0] % b:
            raise Unfactored("a layer whose rows are not those of the data")
        like = next(gradient for gradient in gradients if gradient is not None)
        filled = [torch.zeros_like(like) if gradient is None else gradient for gradient in gradients]
        each = torch.stack([gradient.reshape(b, -1, *use.shape[1:]) for gradient in filled], dim=1)
        yield use, use.kind.signals(each.flatten(0, 2), b * c).unflatten(1, (b, c))


def _terms(use: Use, signals: Tensor, weights: dict[str, Tensor], columns: float) -> list[FactorRows | Tokens]:
    """What one use adds to the Jacobian, of its signals (groups, b, c, positions, o)."""
    found: list[FactorRows | Tokens] = []
    if use.weight is not None:
        features = use.kind.features(use.inputs, signals.shape[1])  # (groups, b, positions, i)
        if use.kind.is_vector:
            found.append(_rows(use.weight, (signals * features[:, :, None]).sum(3)))
        elif _is_cheaper_by_tokens(use, signals, features, columns):
            found.append(Tokens(use.weight, features[0], signals[0]))
        else:
            matrices = _matrices(signals, features)  # (groups, b, c, o · i)
            index = None if use.kind.in_order else use.kind.index(weights[use.weight].shape)
            found.append(_rows(use.weight, matrices, index))
    if use.bias is not None:
        found.append(_rows(use.bias, signals.sum(3)))
    return found


def _is_cheaper_by_tokens(use: Use, signals: Tensor, features: Tensor, columns: float) -> bool:
    """Whether a linear layer at many positions is better kept as its two factors."""
    if not isinstance(use.kind, Linear) or columns == torch.inf:
        return False
    c, (tokens, wide) = signals.shape[2], features.shape[2:]
    return c * tokens + 2 * columns * c >= 2 * columns * tokens * (1 + c / wide)


def _matrices(signals: Tensor, features: Tensor) -> Tensor:  # (groups, b, c, o · i)
    """Σ_t g_t a_tᵀ for every output of every datum."""
    groups, b, c, positions, o = signals.shape
    left = signals.mT.reshape(groups, b, c * o, positions)
    return (left @ features).reshape(groups, b, c, -1)


def _rows(name: str, parts: Tensor, index: Tensor | None = None) -> FactorRows:  # of (groups, b, c, size)
    """Rows of a tensor, of whose entries those of the groups are at `index`, or one after the other."""
    groups, b, c, size = parts.shape
    rows = parts.permute(1, 2, 0, 3).reshape(b * c, groups * size)
    if index is None:
        return FactorRows(name, rows)
    return FactorRows(name, torch.empty_like(rows).index_copy(1, index.flatten().to(rows.device), rows))
