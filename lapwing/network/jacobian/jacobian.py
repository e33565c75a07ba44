"""A network as a function of its weights, and the Jacobian of its outputs as an operator known by its products."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapwing.linalg.operators import LinearOperator
from lapwing.linalg.operators.interface import Weigh, unit_columns
from lapwing.network.batches import Inputs
from lapwing.network.factors import COLUMNS, Factors, Rows, Tokens, Unfactored, elementary_norms, factor
from lapwing.network.nests import Sample, call, leaves
from lapwing.network.outputs import AS_IT_IS, View
from lapwing.network.parameters import Layout, Select, check_model

Weights = dict[str, Tensor]
Forward = Literal["plain", "tracked"] | None  # None where an operation has no forward mode: two reverse passes serve
FACTOR_ELEMENTS = 2**25  # numbers that the factors of the data worked on at once may hold
CHUNK = 4  # columns at once in forward mode where nothing else is known
PROBED = 16  # data that a probe works on
WIDE = 256  # outputs a datum, beyond which there are no factors, and rows and data are worked on a few at a time
UNITS = 32  # rows at once of a datum that has so many
WIDE_BYTES = 2**28  # that the layers of such data may take at once,
WIDE_OFTEN = 5  # for every column so many times what a pass keeps: measured 2.5 on a U-Net, 3.4 on a Transformer


@final
@dataclass(frozen=True, eq=False)
class Network:
    """A network as a function of its chosen weights; the module is read, never written."""

    model: nn.Module
    layout: Layout
    fixed: Weights  # a copy of every parameter and buffer: training on does not change a posterior
    view: View = AS_IT_IS

    @staticmethod
    def of(model: nn.Module, select: Select = None, view: View | None = None) -> Network:
        """A network in eval mode, checked."""
        check_model(model)
        fixed = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        return Network(model, Layout.of(model, select), fixed, view or AS_IT_IS)

    @property
    def weights(self) -> Tensor:  # (p,)
        """The chosen weights w̄, flat."""
        return self.layout.flatten(self.fixed)

    def chosen(self) -> Weights:
        """The tensors that hold chosen weights."""
        return {name: self.fixed[name] for name in self.layout.names}

    def tracked(self) -> Weights:
        """The same tensors, recording gradients."""
        return {name: weight.detach().requires_grad_() for name, weight in self.chosen().items()}

    def __call__(self, weights: Weights, inputs: Sample) -> Tensor:  # (b, c)
        """The outputs at some values of the chosen tensors, one row per datum."""
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
            returned = functional_call(self.model, {**self.fixed, **weights}, *call(self.model, inputs))
        return self.view.rows(self.view.raw(returned))

    def outputs(self, inputs: Sample) -> Tensor:  # (b, *shape)
        """The network's own outputs."""
        with torch.no_grad():
            return self.view.raw(functional_call(self.model, self.fixed, *call(self.model, inputs)))

    def moved(self, change: Tensor) -> Network:  # (p,)
        """The same network with something added to its chosen weights."""
        parts = self.layout.unflatten(change.to(self.fixed[self.layout.names[0]]))
        return replace(self, fixed={**self.fixed, **{name: self.fixed[name] + part for name, part in parts.items()}})

    def directional(self, inputs: Sample, columns: Tensor) -> tuple[Tensor, Tensor]:  # (b, c), (b, c, k)
        """Outputs f(x) and J(x) z for every column z, both differentiable with respect to the inputs x."""
        with elementary_norms():
            found = [self._directional(inputs, self.layout.unflatten(column)) for column in columns.mT]
            return self(self.chosen(), inputs), torch.stack(found, dim=-1)

    def _directional(self, inputs: Sample, tangent: Weights) -> Tensor:
        with torch.enable_grad():
            try:
                return jvp(lambda weights: self(weights, inputs), (self.tracked(),), (tangent,))[1]
            except NotImplementedError:  # no forward mode: Jᵀ u is linear in u, and its derivative along z is J z
                at = self.tracked()
                outputs = self(at, inputs)
                u = torch.zeros_like(outputs, requires_grad=True)
                pulled = torch.autograd.grad(outputs, list(at.values()), u, create_graph=True, materialize_grads=True)
                along = [tangent[name] for name in at]
                return torch.autograd.grad(pulled, u, along, create_graph=True)[0]


@final
@dataclass(frozen=True)
class Plan:
    """How products are worked out; `prepared` finds a good one."""

    forward: Forward = "plain"
    chunk: int = 1  # columns at once in forward mode
    factored_from: float = torch.inf  # columns from which the factors of every layer are worth their passes
    data: int = 1  # data at once in factored form
    pieces: int | None = None  # data at once in forward and reverse mode, None for whole batches


@final
@dataclass(frozen=True, eq=False)
class _Factored:
    """Products with the Jacobian of one batch, from the factors of its layers."""

    layout: Layout
    terms: list[Rows | Tokens]
    height: int

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
        like = self.terms[0].matrix if isinstance(self.terms[0], Rows) else self.terms[0].inputs
        total = like.new_zeros(self.height, sum(self.layout.sizes)).mT
        parts = self.layout.split(total)
        for term in self.terms:
            parts[term.name] += term.matrix.mT if isinstance(term, Rows) else 0
        return self.layout.gather(total).mT


@final
@dataclass(frozen=True, eq=False)
class _Direct:
    """Products with the Jacobian of one batch by passes through the network, forward and reverse."""

    network: Network
    inputs: Sample
    plan: Plan

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
        with _quiet():
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
        return torch.cat([_rows_of(self.network, datum) for datum in self.inputs.split(1)])

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


@final
@dataclass(frozen=True, eq=False)
class Jacobian(LinearOperator):
    """The Jacobian of a network's outputs over batches of inputs, (n · c, p), known by its products.

    Nothing is stored between products. One with few columns goes through the network by forward and reverse mode; one
    with many is worked out from the factors of every layer, which are found once per batch.
    """

    network: Network
    inputs: Inputs
    outputs: int  # per datum, c
    plan: Plan = Plan()

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inputs.count * self.outputs, self.network.layout.size)

    @property
    def like(self) -> Tensor:
        return self.network.fixed[self.network.layout.names[0]]

    rows_are_cheap = True

    @property
    def rows_are_costly(self) -> bool:
        return self.outputs > WIDE

    @cached_property
    def at_weights(self) -> Tensor:  # (n · c,)
        """J w̄ for the network's own weights, kept: a fit asks for it several times."""
        return self @ self.network.weights

    def matmat(self, x: Tensor) -> Tensor:
        columns = x.to(self.like)  # a solver may keep more digits than the network has
        return torch.cat([piece.times(columns) for piece in self._pieces(x.shape[1] / 2)]).to(x)

    def rmatmat(self, y: Tensor) -> Tensor:
        (product,) = self.rmatmat_parts(y, y.shape[1])
        return product

    def rmatmat_parts(self, y: Tensor, columns: int) -> Iterator[Tensor]:
        given, y = y, y.to(self.like)

        def pulled() -> Iterator[tuple[_Factored | _Direct, Tensor]]:
            start = 0
            for piece in self._pieces(y.shape[1] / 2):
                height = piece.height if isinstance(piece, _Factored) else len(piece.inputs) * self.outputs
                yield piece, y[start : start + height]
                start += height

        for part in self._summed(pulled(), y, columns):
            yield part.to(given)

    def normal(self, x: Tensor, weigh: Weigh | None = None) -> tuple[Tensor, Tensor]:
        """J x and Jᵀ B J x batch by batch, with one pass through the network for both."""
        image, product = self.normal_parts(x, weigh, x.shape[1])
        return image, product

    def normal_parts(self, x: Tensor, weigh: Weigh | None, columns: int) -> Iterator[Tensor]:
        given, x = x, x.to(self.like)
        images: list[Tensor] = []

        def pulled() -> Iterator[tuple[_Factored | _Direct, Tensor]]:
            start = 0
            for piece in self._pieces(x.shape[1]):
                images.append(image := piece.times(x))
                yield piece, image if weigh is None else weigh(image, start).to(image)
                start += len(image)

        for number, part in enumerate(self._summed(pulled(), x, columns)):
            if number == 0:
                yield torch.cat(images).to(given)
            yield part.to(given)

    def _summed(
        self, pulled: Iterator[tuple[_Factored | _Direct, Tensor]], like: Tensor, columns: int
    ) -> Iterator[Tensor]:
        """Σ Jᵢᵀ yᵢ over batches, in blocks of columns: the last batch finishes one after the other."""
        total = like.new_zeros(self.shape[1], like.shape[1])
        last, own = next(pulled)
        for piece, block in pulled:
            total += last.transposed(own)
            last, own = piece, block
        for start in range(0, max(1, like.shape[1]), max(1, columns)):
            at = slice(start, start + columns)
            total[:, at] += last.transposed(own[:, at])
            yield total[:, at]

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows by one reverse pass per output."""
        first, last = start // self.outputs, -(-stop // self.outputs)
        if self.rows_are_costly:
            return self._few_rows(start, stop, first, last)
        pieces = [piece.rows() for piece in self._of(self.inputs.between(first, last), torch.inf)]
        rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return rows[start - first * self.outputs : stop - first * self.outputs]

    def _few_rows(self, start: int, stop: int, first: int, last: int) -> Tensor:
        """Rows of data with many outputs: by forward passes where weights are fewer than they."""
        if self.shape[1] < (stop - start) / (last - first):
            part = self.between(first * self.outputs, last * self.outputs)
            whole = part.matmat(torch.eye(self.shape[1], dtype=self.like.dtype, device=self.like.device))
            return whole[start - first * self.outputs : stop - first * self.outputs]
        data = (datum for batch in self.inputs.between(first, last) for datum in batch.split(1))
        parts = []
        for number, datum in enumerate(data, start=first):
            before = number * self.outputs
            parts.append(_rows_of(self.network, datum, max(start - before, 0), min(stop - before, self.outputs)))
        return torch.cat(parts)

    @property
    def datum_rows(self) -> int:
        return self.outputs

    def between(self, start: int, stop: int) -> Jacobian:
        """The rows of some whole data."""
        first, last = start // self.outputs, stop // self.outputs
        if (first * self.outputs, last * self.outputs) != (start, stop):
            raise ValueError(f"rows {start} to {stop} are not whole data of {self.outputs} rows each")
        inputs = self.inputs
        return replace(self, inputs=Inputs(last - first, lambda a, b: inputs.between(first + a, first + b)))

    def inputs_between(self, first: int, last: int) -> Inputs:
        return self.between(first * self.outputs, last * self.outputs).inputs

    def working_bytes(self, columns: int) -> float:
        """Measured on the first data: what a forward pass keeps, and the factors where they are used."""
        batch = next(iter(self.inputs))
        few, network = batch[:2], self.network
        each = _activation_bytes(network, few)
        item, sizes = self.like.element_size(), network.layout.sizes
        if columns < self.plan.factored_from:  # tangents of a chunk go along, with the patches of their convolutions
            data, often = min(len(batch), self.plan.pieces or len(batch)), WIDE_OFTEN if self.plan.pieces else 1
            return data * each * often * (1 + self.plan.chunk) + 3 * item * sum(sizes) * self.plan.chunk
        found = factor(lambda weights: network(weights, few), network.chosen(), columns)
        data = min(len(batch), self.plan.data)
        summed = 2 * item * sum(sizes) * columns + 4 * item * max(sizes) * min(columns, COLUMNS)
        return data * (each + item * _held(found) / len(few)) + summed

    def _pieces(self, columns: float) -> Iterator[_Factored | _Direct]:
        return self._of(iter(self.inputs), columns)

    def _of(self, batches: Iterator[Sample], columns: float) -> Iterator[_Factored | _Direct]:
        factored = columns >= self.plan.factored_from
        for batch in batches:
            size = self.plan.data if factored else self.plan.pieces or len(batch)
            for part in batch.split(size):
                yield self._factored(part, columns) if factored else _Direct(self.network, part, self.plan)

    def _factored(self, batch: Sample, columns: float) -> _Factored | _Direct:
        try:
            found = factor(lambda weights: self.network(weights, batch), self.network.chosen(), columns)
        except Unfactored:  # a path through the network that the probe did not take
            return _Direct(self.network, batch, self.plan)
        return _Factored(self.network.layout, found.terms, found.outputs.numel())


def _rows_of(network: Network, datum: Sample, start: int = 0, stop: int | None = None) -> Tensor:  # (rows, p)
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
    with _quiet():
        (gradients,) = vmap(pull)(units)
    flat = torch.cat([gradients[name].reshape(len(units), -1) for name in network.layout.names], dim=1)
    return network.layout.gather(flat.detach().mT).mT


def _activation_bytes(network: Network, few: Sample) -> float:
    """What a forward pass keeps for each of a few data."""
    kept: dict[int, int] = {}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: _counted(t, kept), lambda t: t):
        outputs = network(network.tracked(), few)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*leaves(few).values(), *network.fixed.values())}
    del outputs
    return sum(size for place, size in kept.items() if place not in given) / len(few)


def _held(found: Factors) -> int:
    """Numbers that factors hold at their largest."""
    terms = (term.matrix if isinstance(term, Rows) else term.gradients for term in found.terms)
    return found.gradients + sum(term.numel() for term in terms)


def _counted(tensor: Tensor, kept: dict[int, int]) -> Tensor:
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remark that some operation is looped over instead of batched."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def prepared(jacobian: Jacobian) -> Jacobian:
    """The same Jacobian with a plan found by a short probe on its first data."""
    batch = next(iter(jacobian.inputs))[:PROBED]
    probe = replace(jacobian, inputs=Inputs.of((batch,)))
    if jacobian.outputs > WIDE:
        return replace(jacobian, plan=_in_pieces(probe, batch))
    plan = _with_factors(replace(probe, plan=Plan(forward_mode(probe), chunk=CHUNK)), batch[:3])
    if plan.factored_from > 2 * CHUNK:  # otherwise few columns are left to forward mode
        plan = replace(plan, chunk=_chunk(replace(probe, plan=plan), batch))
    return replace(jacobian, plan=plan)


def _in_pieces(jacobian: Jacobian, batch: Sample) -> Plan:
    """A plan for a network with many outputs: so few data and columns at once that their layers take little memory."""
    plan = Plan(forward_mode(jacobian), chunk=CHUNK)
    most = WIDE_BYTES / max(1.0, WIDE_OFTEN * _activation_bytes(jacobian.network, batch[:1]))
    plan = replace(plan, chunk=_chunk(replace(jacobian, plan=plan), batch[:1], largest=max(1, int(most))))
    return replace(plan, pieces=max(1, int(most / (1 + plan.chunk))))


def forward_mode(jacobian: Jacobian) -> Forward:
    """How the network can be differentiated forwards, tried on one datum.

    Fused layers, which torch uses where no weight tracks gradients, have no forward mode; tracked weights avoid them.
    """
    datum = next(iter(jacobian.inputs))[:1]
    modes: tuple[Forward, ...] = ("plain", "tracked")
    for mode in modes:
        try:
            _Direct(jacobian.network, datum, Plan(mode)).times(torch.zeros(jacobian.shape[1], 1).to(jacobian.like))
        except NotImplementedError:
            continue
        return mode
    return None


def _chunk(jacobian: Jacobian, batch: Sample, largest: int = 16) -> int:
    """Columns at once: more of them while a column gets cheaper."""
    best, least = 1, torch.inf
    if jacobian.plan.forward is None:
        return best
    for chunk in (size for size in (1, 4, 8, 16) if size <= largest):
        columns = torch.ones(jacobian.shape[1], chunk).to(jacobian.like)
        direct = _Direct(jacobian.network, batch, replace(jacobian.plan, chunk=chunk))
        try:
            started = time.perf_counter()
            direct.times(columns)
        except RuntimeError:  # some operation cannot be batched
            return best
        spent = (time.perf_counter() - started) / chunk
        if spent > 0.95 * least:
            return best
        best, least = chunk, spent
    return best


def _with_factors(jacobian: Jacobian, batch: Sample) -> Plan:
    """The plan with factors, where the network has them, they fit and their products agree with the direct ones.

    They cost two passes per output, a column by direct products about four.
    """
    plan, like = jacobian.plan, jacobian.like
    try:
        found = factor(lambda w: jacobian.network(w, batch), jacobian.network.chosen(), torch.inf)
    except Unfactored:
        return plan
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(jacobian.shape[1], 2, generator=noise, dtype=torch.float64).to(like)
    y = torch.randn(found.outputs.numel(), 2, generator=noise, dtype=torch.float64).to(like)
    direct, factored = (
        _Direct(jacobian.network, batch, plan),
        _Factored(jacobian.network.layout, found.terms, found.outputs.numel()),
    )
    tolerance = 1e3 * torch.finfo(like.dtype).eps
    for one, other in ((direct.times(x), factored.times(x)), (direct.transposed(y), factored.transposed(y))):
        if not bool((one - other).norm() <= tolerance * one.norm()):
            return plan
    data = int(FACTOR_ELEMENTS * len(batch) // max(1, _held(found)))
    return replace(plan, factored_from=jacobian.outputs / 2, data=data) if data else plan
