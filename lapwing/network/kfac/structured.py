"""From a method's name to the structured curvature of a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.methods import EKFAC, KFAC, Diagonal
from lapwing.linalg.kronecker import Factors, Kronecker, fitting, kronecker
from lapwing.network.jacobian import Network
from lapwing.network.kfac.diagonal import diagonal
from lapwing.network.kfac.factors import eigencorrected, factorise
from lapwing.network.kfac.roots import Root
from lapwing.network.nests import Sample


@final
@dataclass(frozen=True, eq=False)
class Structure:
    """The curvature of a network in the structure that was asked for, with what diagnostics should say of it."""

    curvature: Kronecker
    diagnostics: dict[str, Any]


def structured(
    network: Network, batches: Iterable[Sample], root: Root, method: Diagonal | KFAC | EKFAC, *,
    scale: Tensor | None = None, counts: Tensor | None = None, seed: int = 0,
) -> Structure:  # fmt: skip
    """The curvature Σ count · Jᵀ B J of a network at batches of inputs, in the structure that `method` names.

    `scale` is the prior's (p,). A Kronecker product holds one that is a product of a number per row and one per column
    within a layer, so with those the nearest such scale is used: read it from the result.
    """
    if isinstance(method, Diagonal):
        found = diagonal(network, batches, root, counts=counts, probes=method.probes, seed=seed)
        p = len(found.value)
        index, one = torch.arange(p, device=found.value.device).reshape(1, 1, p), found.value.new_ones(1, 1)
        matrix = kronecker((Factors("all", "diagonal", index, one, found.value[None]),), p, scale)
        error = float(found.standard_error.sum() / found.value.sum().clamp_min(1e-300))  # they may all err together
        return Structure(matrix, {"relative_error_of_trace": error})
    factored = factorise(
        network, batches, root, counts=counts, sharing=method.sharing,
        probes=method.probes if isinstance(method, KFAC) else None, seed=seed,
    )  # fmt: skip
    scale = None if scale is None else fitting(factored.factors, scale)
    diagnostics: dict[str, Any] = {"blocks": factored.diagnostics, "relative_errors_of_traces": factored.trace_errors}
    if isinstance(method, KFAC):
        return Structure(factored.structure(scale), diagnostics)
    matrix = eigencorrected(network, batches, root, factored, counts=counts, scale=scale)
    return Structure(matrix, diagnostics)
