"""Kronecker factors of a network's Gauss-Newton matrix, layer by layer, their eigenvalue correction, and
one method for each structure that is made of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.linalg.kronecker import Block, Factors, Kronecker, fitting, kronecker
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian import Network
from lapwing.network.kfac.diagonal import diagonal, output_squares
from lapwing.network.kfac.layers import KnownLayer, in_strips, second_moment
from lapwing.network.kfac.roots import Root, counted, sampled
from lapwing.network.kfac.tape import Bases, Full, Layers, Tape, discover_layers, other_rows, padding_entry, pieces
from lapwing.runtime.memory import check_memory

Sharing = Literal["expand", "reduce"]
EXACT = 1024  # normalisation layers and other tensors up to this size get their exact block, larger ones a diagonal
FOURTH = 2 / 3  # as for a diagonal: Var ‖v‖² ≤ ⅔ E ‖v‖⁴ for v = Σ ε_c x_c with random signs


@final
@dataclass(frozen=True, eq=False)
class Factored:
    """Kronecker factors of Σ_n J_nᵀ B_n J_n, before a prior is chosen.

    Layers have Kronecker blocks, weight and bias in one; normalisation layers and what no layer explains have their
    exact blocks where they are small, else a diagonal.
    """

    factors: tuple[Factors, ...]
    layers: Layers
    size: int
    sharing: Sharing
    trace_errors: dict[str, float]  # relative standard error of each block's trace, where columns were sampled

    def structure(self, scale: Tensor | None = None) -> Kronecker:
        """The matrix diagonalised together with the prior diag(scale⁻²)."""
        return kronecker(self.factors, self.size, scale)

    @property
    def diagnostics(self) -> dict[str, list[str]]:
        """The names of the blocks by what they are."""
        kinds = ("kronecker", "exact", "diagonal")
        return {kind: [part.name for part in self.factors if part.kind == kind] for kind in kinds}


def factorise(
    network: Network, batches: Iterable[Sample], root: Root, *, counts: Tensor | None = None,
    sharing: Sharing = "expand", probes: int | None = None, seed: int = 0,
) -> Factored:  # fmt: skip
    """A ⊗ G / N for every layer, A = Σ_n count · a aᵀ and G = Σ_n g gᵀ, by a reverse pass per column of the root.

    Weights that are used at several positions of a datum (convolutions, sequences, layers called twice) have a and g
    at every position: "expand" sums over positions as if they were data, "reduce" takes a's mean and g's sum over
    the positions of a datum (Eschenhagen et al. 2023). The division is by the number of terms, so that one datum,
    or equal a, is exact. With `probes`, so many random combinations of the columns are pulled back instead of all.
    """
    if network.layout.mask is not None:
        raise ValueError(
            "Kronecker factors are of whole tensors, and select is a mask of single weights: use a diagonal, low-rank "
            "or exact structure for it, or select by name"
        )
    if sharing not in ("expand", "reduce"):
        raise ValueError(f"sharing is {sharing!r}, expected 'expand' or 'reduce'")
    layers = discover_layers(network, next(iter(batches)))
    sums = _Sums(network, layers, sharing, sampled=probes is not None)
    root = counted(root if probes is None else sampled(root, probes, seed), counts)
    for start, inputs, tape in pieces(network, layers, batches, gradients=False):
        columns = root(tape.outputs.detach(), start)
        sums.add(tape, columns, None if counts is None else counts[start : start + len(inputs)].to(columns.device))
        for datum, column in zip(inputs, columns, strict=True) if layers.others else ():
            sums.add_others(other_rows(network, layers, datum, column))
    factors = sums.factors()
    for part in factors:
        if not bool(part.left.isfinite().all() and part.right.isfinite().all()):
            raise ValueError(
                f"the curvature of {part.name!r} is NaN or infinite: look for inputs or outputs of the network that "
                "are too large, or run it in double precision"
            )
    return Factored(factors, layers, network.layout.size, sharing, sums.errors() if probes else {})


class _Sums:
    """What is summed over the data: inputs and signals of every layer, squares of the other tensors' gradients."""

    def __init__(self, network: Network, layers: Layers, sharing: Sharing, sampled: bool) -> None:
        like = network.weights.new_zeros(0, dtype=torch.float64)
        self.layers, self.sharing, self.sampled = layers, sharing, sampled
        shapes = [shape for layer in layers.known for shape in (_left_shape(layer), _right_shape(layer))]
        needed = 3 * 8.0 * sum(prod(shape) for shape in shapes)  # with their eigenvectors and work
        check_memory(needed, "the Kronecker factors", "select fewer layers by name, or use a diagonal structure")
        self.left = [like.new_zeros(_left_shape(layer)) for layer in layers.known]
        self.right = [like.new_zeros(_right_shape(layer)) for layer in layers.known]
        self.terms = [0.0 for _ in layers.known]
        self.fourth = [0.0 for _ in layers.known]
        sizes = {name: len(place) for name, place in layers.places.items()}
        self.others = {name: like.new_zeros((q, q) if q <= EXACT else (q,)) for name, q in sizes.items()}

    def add(self, tape: Tape, columns: Tensor, counts: Tensor | None) -> None:
        used = [(number, layer) for number, layer in enumerate(self.layers.known) if tape.uses(layer)]
        kept = {number: tape.features(layer) for number, layer in used if layer.kind.is_vector or layer.kind.by_entry}
        for number, layer in used:
            if not layer.kind.is_vector:
                self._add_inputs(number, layer, kept.get(number, tape), counts)
        for column in columns.unbind(-1) if used else ():
            pulled = tape.pull(column)
            for number, layer in used:
                signals = tape.signals(layer, pulled)
                if layer.kind.is_vector:
                    found = tape.gradients(layer, kept[number], signals)
                    assert isinstance(found, Full)
                    self.right[number] += _second_moment(found.values[:, :, 0], self.right[number].ndim == 2)
                    continue
                if layer.kind.by_entry:
                    signals = signals * (kept[number] != padding_entry(layer))
                elif self.sharing == "reduce":
                    signals = signals.sum(2, keepdim=True)
                self.left[number] += _outer_sum(signals, signals)
                if self.sampled:
                    self.fourth[number] += float(signals.double().square().sum((0, 2, 3)).square().sum())

    def _add_inputs(self, number: int, layer: KnownLayer, found: Tensor | Tape, counts: Tensor | None) -> None:
        if isinstance(found, Tape) and self.sharing == "expand" and in_strips(layer, calls := found.uses(layer)):
            data = torch.ones(len(found.outputs), dtype=torch.float64) if counts is None else counts.double()
            for call in calls:
                self.right[number] += second_moment(layer, call, data)
                self.terms[number] += float(data.sum()) * (call.shape[0] // len(data)) * call.shape[2:].numel()
            return
        features = found if isinstance(found, Tensor) else found.features(layer)
        data = features.new_ones(features.shape[1], dtype=torch.float64) if counts is None else counts.double()
        if layer.kind.by_entry:
            entries = features[0, :, :, 0]
            weights = data[:, None] * (entries != padding_entry(layer))
            self.right[number][0].index_add_(0, entries.flatten(), weights.flatten())
            self.terms[number] += float(weights.sum())
            return
        if self.sharing == "reduce":
            features = features.mean(2, keepdim=True)
        weighted = features if counts is None else features * counts[:, None, None].to(features)
        self.right[number] += _outer_sum(weighted, features)
        self.terms[number] += float(data.sum()) * features.shape[2]

    def add_others(self, rows: dict[str, Tensor]) -> None:
        for name, part in rows.items():
            self.others[name] += _second_moment(part[None], self.others[name].ndim == 1)[0]

    def factors(self) -> tuple[Factors, ...]:
        found = []
        for layer, left, right, terms in zip(self.layers.known, self.left, self.right, self.terms, strict=True):
            if layer.kind.is_vector:
                found.append(_exact(layer.name, layer.index, right))
            else:
                found.append(Factors(layer.name, "kronecker", layer.index, left, right / max(terms, 1e-300)))
        for name, moment in self.others.items():
            found.append(_exact(name, self.layers.places[name].reshape(1, 1, -1), moment[None]))
        return tuple(found)

    def errors(self) -> dict[str, float]:
        """Relative standard errors of the traces of G, bounds in expectation."""
        pairs = zip(self.layers.known, self.left, self.fourth, strict=True)
        traces = {
            layer.name: (float(left.diagonal(dim1=1, dim2=2).sum()), fourth)
            for layer, left, fourth in pairs if not layer.kind.is_vector
        }  # fmt: skip
        return {name: (FOURTH * fourth) ** 0.5 / max(trace, 1e-300) for name, (trace, fourth) in traces.items()}


def eigencorrected(
    network: Network, batches: Iterable[Sample], root: Root, factored: Factored, *, counts: Tensor | None = None,
    scale: Tensor | None = None,
) -> Kronecker:  # fmt: skip
    """The same eigenvectors with the exact second moments along them: EKFAC (George et al. 2018).

    No block-diagonal matrix with these eigenvectors is nearer to the Gauss-Newton matrix. Costs a second pass over
    the data, with a matrix per datum for weights used at several positions.
    """
    structure, layers, root = factored.structure(scale), factored.layers, counted(root, counts)
    blocks = {block.name: block for block in structure.blocks}
    moments = {layer.name: torch.zeros_like(blocks[layer.name].values) for layer in layers.known}
    for start, _, tape in pieces(network, layers, batches):
        used = [layer for layer in layers.known if tape.uses(layer) and blocks[layer.name].kind == "kronecker"]
        columns = root(tape.outputs.detach(), start)
        bases = {layer.name: replace(_bases(blocks[layer.name]), columns=columns.shape[2]) for layer in used}
        features = {layer.name: tape.features(layer, bases[layer.name]) for layer in used}
        for column in columns.unbind(-1) if used else ():
            pulled = tape.pull(column)
            for layer in used:
                signals = tape.signals(layer, pulled)
                found = tape.gradients(layer, features[layer.name], signals, bases[layer.name])
                moments[layer.name] += found.sums(2).double()
    corrected = [
        replace(block, values=moments[block.name] * _rest(block)) if block.kind == "kronecker" else block
        for block in structure.blocks
    ]
    return replace(structure, blocks=tuple(corrected))


def variances(
    network: Network, batches: Iterable[Sample], structure: Kronecker, layers: Layers, precision: Tensor | float
) -> Tensor:  # (n, c)
    """The variance of every output, the diagonal of J (M + λD)⁻¹ Jᵀ, without a row of J: a reverse pass per output.

    `batches` are of new inputs, iterated once; the factors' own `layers` serve for them too.
    """
    blocks = {block.name: block for block in structure.blocks}
    given = torch.as_tensor(precision, dtype=torch.float64).to(structure.like)
    inverse = {name: 1 / (block.values + block.precision(given)) for name, block in blocks.items()}
    weights = {name: inverse[name] * _rest(block) for name, block in blocks.items()}
    bases = {name: _bases(block) for name, block in blocks.items()}

    def other(name: str, rows: Tensor) -> Tensor:
        turned = blocks[name].turned(rows.mT[None, None].to(structure.like))
        return (turned.square() * inverse[name][..., None]).sum((0, 1, 2))

    return output_squares(network, batches, layers, bases, weights, other)


def _exact(name: str, index: Tensor, moment: Tensor) -> Factors:  # (1, q, q) or (1, q)
    return Factors(name, "exact" if moment.ndim == 3 else "diagonal", index, moment.new_ones(1, 1), moment)


def _bases(block: Block) -> Bases:
    left, right = (part if part.ndim == 3 else None for part in (block.left, block.right))
    return Bases(left, right)


def _rest(block: Block) -> Tensor:
    """Squares of what a diagonal V multiplies with, which the bases do not hold."""
    if block.is_diagonal:
        return block.scale.square()
    rest = torch.ones_like(block.values)
    rest = rest * block.left.square()[:, :, None] if block.left.ndim == 2 else rest
    return rest * block.right.square()[:, None, :] if block.right.ndim == 2 else rest


def _left_shape(layer: KnownLayer) -> tuple[int, ...]:
    groups, o, _ = layer.index.shape
    return (groups, o, o)


def _right_shape(layer: KnownLayer) -> tuple[int, ...]:
    groups, _, i = layer.index.shape
    diagonal = layer.kind.by_entry or (layer.kind.is_vector and i > EXACT)
    return (groups, i) if diagonal else (groups, i, i)


def _outer_sum(left: Tensor, right: Tensor) -> Tensor:  # (groups, b, positions, o), (groups, b, positions, i)
    """Σ left rightᵀ over data and positions, (groups, o, i), without a copy of either."""
    if left.shape[2] == 1:
        return (left[:, :, 0].mT @ right[:, :, 0]).double()
    if len(left) > 1:
        return (left.mT @ right).sum(1).double()
    return torch.addbmm(left.new_zeros(left.shape[3], right.shape[3]), left[0].mT, right[0])[None].double()


def _second_moment(rows: Tensor, diagonal: bool) -> Tensor:  # (groups, n, q) -> (groups, q) or (groups, q, q)
    return (rows.square().sum(1) if diagonal else rows.mT @ rows).double()


@final
@dataclass(frozen=True, eq=False)
class FoundStructure:
    """The curvature of a network in the structure that was asked for, with what diagnostics should say of it."""

    curvature: Any  # a Curvature
    diagnostics: dict[str, Any]


@final
@dataclass(frozen=True, eq=False)
class Structures:
    """The curvature Σ count · Jᵀ B J of a network at batches of inputs, in any of the structures it can be given.

    `scale` is the prior's (p,). A Kronecker product holds one that is a product of a number per row and one per column
    within a layer, so with those the nearest such scale is used: read it from the result.
    """

    network: Network
    batches: Iterable[Sample]
    root: Root
    counts: Tensor | None = None

    def diagonal(self, probes: int | None, scale: Tensor | None, seed: int) -> FoundStructure:
        """The diagonal alone."""
        found = diagonal(self.network, self.batches, self.root, counts=self.counts, probes=probes, seed=seed)
        p = len(found.value)
        index, one = torch.arange(p, device=found.value.device).reshape(1, 1, p), found.value.new_ones(1, 1)
        matrix = kronecker((Factors("all", "diagonal", index, one, found.value[None]),), p, scale)
        error = float(found.standard_error.sum() / found.value.sum().clamp_min(1e-300))  # they may all err together
        return FoundStructure(matrix, {"relative_error_of_trace": error})

    def kronecker(self, sharing: Sharing, probes: int | None, scale: Tensor | None, seed: int) -> FoundStructure:
        """A Kronecker product for every layer."""
        factored, fitted = self._factored(sharing, probes, scale, seed)
        return FoundStructure(factored.structure(fitted), _told(factored))

    def eigencorrected(self, sharing: Sharing, scale: Tensor | None, seed: int) -> FoundStructure:
        """The same with exact second moments along its eigenvectors."""
        factored, fitted = self._factored(sharing, None, scale, seed)
        matrix = eigencorrected(self.network, self.batches, self.root, factored, counts=self.counts, scale=fitted)
        return FoundStructure(matrix, _told(factored))

    def _factored(
        self, sharing: Sharing, probes: int | None, scale: Tensor | None, seed: int
    ) -> tuple[Factored, Tensor | None]:
        factored = factorise(
            self.network, self.batches, self.root, counts=self.counts, sharing=sharing, probes=probes, seed=seed
        )
        return factored, None if scale is None else fitting(factored.factors, scale)


def _told(factored: Factored) -> dict[str, Any]:
    return {"blocks": factored.diagnostics, "relative_errors_of_traces": factored.trace_errors}
