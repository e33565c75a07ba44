"""Squared columns and rows of a network's Jacobian, and the diagonal of its Gauss-Newton matrix, no row formed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from lapwing.linalg.estimators import Estimates
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian import Network
from lapwing.network.kfac.roots import Root, counted, sampled
from lapwing.network.kfac.tape import NO_BASES, Bases, Layers, discover_layers, other_rows, pieces

FOURTH = 2 / 3  # v = Σ ε_c x_c with random signs has Var v² = E v⁴ − (Σ x_c²)² and E v⁴ ≤ 3 (Σ x_c²)²


def column_squares(
    network: Network, batches: Iterable[Sample], weights: Tensor | None = None, *, probes: int | None = None,
    seed: int = 0,
) -> Estimates:  # fmt: skip
    """Σ over rows of w · J² for every weight, (p,): the squared columns of the Jacobian of batches of inputs.

    `weights` has one number per output of every datum, (n · c,). Exact by one reverse pass per output; with `probes`
    by one pass for each random ± combination of the outputs of a datum (data are never mixed), unbiased, with standard
    errors that are bounds in expectation.

    >>> network = Network.of(torch.nn.Linear(2, 3).eval())
    >>> column_squares(network, [torch.tensor([[1.0, 2.0], [3.0, 1.0]])]).value
    tensor([10.,  5., 10.,  5., 10.,  5.,  2.,  2.,  2.], dtype=torch.float64)
    """

    def root(outputs: Tensor, start: int) -> Tensor:
        ones = torch.ones_like(outputs) if weights is None else weights.to(outputs)[start * outputs.shape[1] :]
        return torch.diag_embed(ones.reshape(-1)[: outputs.numel()].reshape(outputs.shape).sqrt())

    return diagonal(network, batches, root, probes=probes, seed=seed)


def diagonal(
    network: Network, batches: Iterable[Sample], root: Root, *, counts: Tensor | None = None,
    probes: int | None = None, seed: int = 0,
) -> Estimates:  # fmt: skip
    """The diagonal of Σ_n count · J_nᵀ R_n R_nᵀ J_n, (p,): exact by a reverse pass per column of R, or sampled.

    Layers used at one position per datum, as in a perceptron, cost two products with no matrix per datum; others are
    worked on in chunks of data.
    """
    layers = discover_layers(network, next(iter(batches)))
    root = counted(root if probes is None else sampled(root, probes, seed), counts)
    size, first = sum(network.layout.sizes), network.weights
    total, fourth = (torch.zeros(size, dtype=torch.float64, device=first.device) for _ in range(2))
    exact = probes is None
    for start, inputs, tape in pieces(network, layers, batches):
        columns = root(tape.outputs.detach(), start)  # (b, c, k)
        features = {id(layer): tape.features(layer) for layer in layers.known if tape.uses(layer)}
        for column in columns.unbind(-1) if features else ():
            pulled = tape.pull(column)
            for layer in layers.known:
                if id(layer) not in features:
                    continue
                found = tape.gradients(layer, features[id(layer)], tape.signals(layer, pulled))
                total.index_add_(0, layer.index.flatten(), found.sums(2).flatten().double())
                if not exact:
                    fourth.index_add_(0, layer.index.flatten(), found.sums(4).flatten().double())
        for datum, part in zip(inputs, columns, strict=True) if layers.others else ():
            for name, rows in other_rows(network, layers, datum, part).items():
                total[layers.places[name]] += rows.double().square().sum(0)
                fourth[layers.places[name]] += 0 if exact else rows.double().pow(4).sum(0)
    error = torch.zeros_like(total) if exact or tape.outputs.shape[1] == 1 else (FOURTH * fourth).sqrt()
    mask = network.layout.mask
    return Estimates(total, error) if mask is None else Estimates(total[mask], error[mask])


def row_squares(
    network: Network, batches: Iterable[Sample], weights: Tensor | None = None, *, layers: Layers | None = None
) -> Tensor:  # (n · c,)
    """Σ over weights of w · J² for every output: the squared rows of the Jacobian, by a reverse pass per output.

    With a prior's or a diagonal posterior's variances as `weights`, (p,), these are variances of the outputs.

    >>> network = Network.of(torch.nn.Linear(2, 3).eval())
    >>> row_squares(network, [torch.tensor([[1.0, 2.0], [3.0, 1.0]])])
    tensor([ 6.,  6.,  6., 11., 11., 11.], dtype=torch.float64)
    """
    layers = discover_layers(network, next(iter(batches))) if layers is None else layers
    mask, whole = network.layout.mask, torch.ones_like(network.weights) if weights is None else weights
    if mask is not None:
        whole = whole.new_zeros(len(mask)).masked_scatter(mask.to(whole.device), whole)
    parts = {layer.name: whole[layer.index] for layer in layers.known}
    bases = {layer.name: NO_BASES for layer in layers.known}

    def other(name: str, rows: Tensor) -> Tensor:
        return rows.double().square() @ whole[layers.places[name]].double()

    return output_squares(network, batches, layers, bases, parts, other).flatten()


def output_squares(
    network: Network, batches: Iterable[Sample], layers: Layers, bases: dict[str, Bases], weights: dict[str, Tensor],
    other: Callable[[str, Tensor], Tensor],
) -> Tensor:  # (n, c)  # fmt: skip
    """Weighted squares of every output's gradient in the bases of each layer; `other` does them for other tensors."""
    parts = []
    for _, inputs, tape in pieces(network, layers, batches):
        found = torch.zeros(tape.outputs.shape, dtype=torch.float64, device=tape.outputs.device)
        used = [layer for layer in layers.known if tape.uses(layer)]
        turns = {name: replace(part, columns=found.shape[1]) for name, part in bases.items()}
        features = {layer.name: tape.features(layer, turns[layer.name]) for layer in used}
        units = torch.eye(found.shape[1]).to(tape.outputs)
        for number in range(found.shape[1]) if used else ():
            pulled = tape.pull(units[number].expand_as(tape.outputs))
            for layer in used:
                signals = tape.signals(layer, pulled)
                gradients = tape.gradients(layer, features[layer.name], signals, turns[layer.name])
                found[:, number] += gradients.against(weights[layer.name]).double()
        for row, datum in zip(found, inputs, strict=True) if layers.others else ():
            for name, rows in other_rows(network, layers, datum, units).items():
                row += other(name, rows)
        parts.append(found)
    return torch.cat(parts)
