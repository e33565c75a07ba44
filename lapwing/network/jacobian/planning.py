"""How products with a Jacobian are best worked out, found by a short probe."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from lapwing.network.batches import Inputs
from lapwing.network.factors import Unfactored, factor
from lapwing.network.input_tree import Sample
from lapwing.network.jacobian.jacobian import Jacobian
from lapwing.network.jacobian.memory import WIDE_OFTEN, activation_bytes, held_numbers
from lapwing.network.jacobian.products import WIDE, Direct, FactoredProducts, Forward, ProductPlan

FACTOR_ELEMENTS = 2**25  # numbers that the factors of the data worked on at once may hold
CHUNK = 4  # columns at once in forward mode where nothing else is known
PROBED = 16  # data that a probe works on
WIDE_BYTES = 2**28  # that the layers of data with more than WIDE outputs may take at once


def prepared(jacobian: Jacobian) -> Jacobian:
    """The same Jacobian with a plan found by a short probe on its first data."""
    batch = next(iter(jacobian.inputs))[:PROBED]
    probe = replace(jacobian, inputs=Inputs.of((batch,)))
    if jacobian.outputs > WIDE:
        return replace(jacobian, plan=_in_pieces(probe, batch))
    plan = _with_factors(replace(probe, plan=ProductPlan(forward_mode(probe), chunk=CHUNK)), batch[:3])
    if plan.factored_from > 2 * CHUNK:  # otherwise few columns are left to forward mode
        plan = replace(plan, chunk=_chunk(replace(probe, plan=plan), batch))
    return replace(jacobian, plan=plan)


def _in_pieces(jacobian: Jacobian, batch: Sample) -> ProductPlan:
    """A plan for a network with many outputs: so few data and columns at once that their layers take little memory."""
    plan = ProductPlan(forward_mode(jacobian), chunk=CHUNK)
    most = WIDE_BYTES / max(1.0, WIDE_OFTEN * activation_bytes(jacobian.network, batch[:1]))
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
            Direct(jacobian.network, datum, ProductPlan(mode)).times(
                torch.zeros(jacobian.shape[1], 1).to(jacobian.like)
            )
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
        direct = Direct(jacobian.network, batch, replace(jacobian.plan, chunk=chunk))
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


def _with_factors(jacobian: Jacobian, batch: Sample) -> ProductPlan:
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
        Direct(jacobian.network, batch, plan),
        FactoredProducts(jacobian.network.layout, found.terms, found.outputs.numel()),
    )
    tolerance = 1e3 * torch.finfo(like.dtype).eps
    for one, other in ((direct.times(x), factored.times(x)), (direct.transposed(y), factored.transposed(y))):
        if not bool((one - other).norm() <= tolerance * one.norm()):
            return plan
    data = int(FACTOR_ELEMENTS * len(batch) // max(1, held_numbers(found)))
    return replace(plan, factored_from=jacobian.outputs / 2, data=data) if data else plan
