"""Products with the Jacobian of one batch: by passes through the network, or from the factors of its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from lapwing.linalg.operators.interface import unit_columns
from lapwing.network.factors import FactorRows, Tokens
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian.network import Network, Weights
from lapwing.network.parameters import Layout

Forward = Literal["plain", "tracked"] | None  # None where an operation has no forward mode: two reverse passes serve
WIDE = 256  # outputs a datum, beyond which there are no factors, and rows and data are worked on a few at a time
UNITS = 32  # rows at once of a datum that has so many


@final
@dataclass(frozen=True)
class ProductPlan:
    """How products are worked out; `prepared` finds a good one."""

    forward: Forward = "plain"
    chunk: int = 1  # columns at once in forward mode
    factored_from: float = torch.inf  # columns from which the factors of every layer are worth their passes
    data: int = 1  # data at once in factored form
    pieces: int | None = None  # data at once in forward and reverse mode, None for whole batches


UNPROBED = ProductPlan()


@final
@dataclass(frozen=True, eq=False)
class FactoredProducts:
    """Products with the Jacobian of one batch, from the factors of its layers."""

    layout: Layout
    terms: list[FactorRows | Tokens]
    height: int

    @property
    def bytes(self) -> float:
        """Memory of the factors."""
        return float(sum(term.bytes for term in self.terms))

    def times(self, x: Tensor) -> Tensor:  # (p, k) -> (b · c, k)
        parts, total = self.layout.split(self.layout.spread(x)), x.new_zeros(self.height, x.shape[1])
        for term in self.terms:
            total += term.times(parts[term.name])
        return total

    def transposed(self, y: Tensor) -> Tensor:  # (b · c, k) -> (p, k)
        total = y.new_zeros(sum(self.layout.sizes), y.shape[1])
        parts = self.layout.split(total)
        for term in self.terms:
            parts[term.name] += term.transposed(y)
        return self.layout.gather(total)

    def rows(self) -> Tensor:  # (b · c, p), where every term is one of rows
        like = self.terms[0].matrix if isinstance(self.terms[0], FactorRows) else self.terms[0].inputs
        total = like.new_zeros(self.height, sum(self.layout.sizes)).mT
        parts = self.layout.split(total)
        for term in self.terms:
            parts[term.name] += term.matrix.mT if isinstance(term, FactorRows) else 0
        return self.layout.gather(total).mT


@final
@dataclass(frozen=True, eq=False)
class Direct:
    """Products with the Jacobian of one batch by passes through the network, forward and reverse."""

    network: Network
    inputs: Sample
    plan: ProductPlan
    height: int  # b · c
    bytes = inf  # it is not to be kept: its graph is as large as a pass through the network

    def times(self, x: Tensor) -> Tensor:  # (p, k) -> (b · c, k)
        if self.plan.forward is None:
            return self._by_two_reverse_passes(x)
        at = self.network.tracked() if self.plan.forward == "tracked" else self.network.chosen()
        chunks = x.mT.contiguous().split(self.plan.chunk)
        return torch.cat([self._forward(at, chunk) for chunk in chunks]).mT

    def _forward(self, at: Weights, columns: Tensor) -> Tensor:  # (k, p) -> (k, b · c)
        def along(tangent: Weights) -> Tensor:
            return jvp(lambda weights: self.network(weights, self.inputs), (at,), (tangent,))[1]

        if len(columns) == 1:
            return along(self.network.layout.unflatten(columns[0])).detach().reshape(1, -1)
        with quiet():
            return vmap(along)(self.network.layout.unflatten_each(columns)).detach().reshape(len(columns), -1)

    def transposed(self, y: Tensor) -> Tensor:  # (b · c, k) -> (p, k)
        outputs, at = self._graph
        total = y.new_empty(y.shape[1], self.network.layout.size)
        for number, column in enumerate(y.mT):
            parts = torch.autograd.grad(
                outputs, list(at.values()), column.reshape(outputs.shape), retain_graph=True, materialize_grads=True,
                allow_unused=True,
            )  # fmt: skip
            total[number] = self.network.layout.flatten(dict(zip(at, parts, strict=True)))
        return total.mT

    def rows(self) -> Tensor:  # (b · c, p)
        return torch.cat([rows_of_datum(self.network, datum) for datum in self.inputs.split(1)])

    @cached_property
    def _graph(self) -> tuple[Tensor, Weights]:
        with torch.enable_grad():
            at = self.network.tracked()
            return self.network(at, self.inputs), at

    def _by_two_reverse_passes(self, x: Tensor) -> Tensor:
        at, layout = self.network.chosen(), self.network.layout
        pulled: Any = vjp(lambda weights: self.network(weights, self.inputs), at)
        found: Any = vjp(  # Jᵀ y is linear in y
            lambda y: vjp(lambda weights: self.network(weights, self.inputs), at)[1](y)[0], torch.zeros_like(pulled[0])
        )
        columns = [found[1](layout.unflatten(column))[0].reshape(-1) for column in x.mT]
        return torch.stack(columns, dim=1).detach()


def rows_of_datum(network: Network, datum: Sample, start: int = 0, stop: int | None = None) -> Tensor:  # (rows, p)
    """Rows of one datum."""
    found: Any = vjp(lambda weights: network(weights, datum), network.chosen())
    outputs, pull = found
    count = outputs.numel() if stop is None else stop
    height, parts = count if outputs.numel() <= WIDE else UNITS, []
    for first in range(start, count, height):
        last = min(first + height, count)
        units = unit_columns(outputs.numel(), first, last, outputs).mT[:, None]
        parts.append(_pulled(network, pull, units))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _pulled(network: Network, pull: Any, units: Tensor) -> Tensor:
    with quiet():
        (gradients,) = vmap(pull)(units)
    flat = torch.cat([gradients[name].reshape(len(units), -1) for name in network.layout.names], dim=1)
    return network.layout.gather(flat.detach().mT).mT


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's remark that some operation is looped over instead of batched."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
