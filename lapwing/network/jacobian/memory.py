"""What products with a Jacobian hold in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.network.factors import FactorRows, JacobianFactors
from lapwing.network.input_tree import Sample, leaves
from lapwing.network.jacobian.network import Network

WIDE_OFTEN = (
    5  # times what a pass keeps, for every column of data with many outputs: 2.5 on a U-Net, 3.4 on a Transformer
)


def activation_bytes(network: Network, few: Sample) -> float:
    """What a forward pass keeps for each of a few data."""
    kept: dict[int, int] = {}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: _counted(t, kept), lambda t: t):
        outputs = network(network.tracked(), few)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*leaves(few).values(), *network.fixed.values())}
    del outputs
    return sum(size for place, size in kept.items() if place not in given) / len(few)


def held_numbers(found: JacobianFactors) -> int:
    """Numbers that factors hold at their largest."""
    terms = (term.matrix if isinstance(term, FactorRows) else term.gradients for term in found.terms)
    return found.gradients + sum(term.numel() for term in terms)


def _counted(tensor: Tensor, kept: dict[int, int]) -> Tensor:
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor
