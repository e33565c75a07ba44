"""Squared columns of a network's Jacobian, and the diagonal of its Gauss-Newton matrix, without a row per datum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapwing.linalg.estimators import Estimates
from lapwing.network.jacobian import Network
from lapwing.network.kfac.roots import Root, counted, sampled
from lapwing.network.kfac.tape import listen, other_rows, pieces

FOURTH = 2 / 3  # v = Σ ε_c x_c with random signs has Var v² = E v⁴ − (Σ x_c²)² and E v⁴ ≤ 3 (Σ x_c²)²


def column_squares(
    network: Network, batches: Sequence[Tensor], weights: Tensor | None = None, *, probes: int | None = None,
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
    network: Network, batches: Sequence[Tensor], root: Root, *, counts: Tensor | None = None,
    probes: int | None = None, seed: int = 0,
) -> Estimates:  # fmt: skip
    """The diagonal of Σ_n count · J_nᵀ R_n R_nᵀ J_n, (p,): exact by a reverse pass per column of R, or sampled.

    Layers used at one position per datum, as in a perceptron, cost two products with no matrix per datum; others are
    worked on in chunks of data.
    """
    layers = listen(network, batches[0])
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
