"""Structured curvatures of a network, one method for each structure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg.kronecker import Factors, fitting, kronecker
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian import Network
from lapwing.network.kfac.diagonal import diagonal
from lapwing.network.kfac.factors import Factored, Sharing, eigencorrected, factorise
from lapwing.network.kfac.roots import Root


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
