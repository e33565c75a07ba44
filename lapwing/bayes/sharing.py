"""A linear model whose products are shared among the processes of one job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.journals import described
from lapwing.bayes.linear_model import LinearModel
from lapwing.linalg.operators import LinearOperator, OverData, Sharded
from lapwing.linalg.operators.distributed import Share
from lapwing.runtime.memory import available_bytes, counting_on
from lapwing.runtime.ranks import RankFailed, Ranks, together

Shard = bool | Share | None  # False: alone; None and True: by data


@contextmanager
def shared(model: LinearModel, shard: Shard, settings: tuple[Any, ...]) -> Iterator[tuple[LinearModel, Ranks | None]]:
    """The model with its work shared out over the ranks, where there are several; every rank alone afterwards.

    All ranks must have been given the same model and settings, and count on the memory that the poorest has.
    """
    if shard not in (None, True, False, "data", "draws"):
        raise ValueError(f"shard is {shard!r}: expected 'data', 'draws', or False for no sharing")
    by: Share = "draws" if shard == "draws" else "data"
    whole = model.features
    if not isinstance(whole, OverData):  # stored numbers: nothing to share, and nobody waits
        yield model, None
        return
    with ExitStack() as stack:
        ranks = stack.enter_context(together(shard is not False))
        if ranks is None:
            yield model, None
            return
        _check_same(model, ranks, (*settings, by))
        stack.enter_context(counting_on(int(-ranks.most("free memory", -float(available_bytes())))))

        def features_at(inputs: Any) -> LinearOperator:
            return Sharded.of(model.features_at(inputs), ranks, by)

        yield replace(model, features=Sharded.of(whole, ranks, by), features_at=features_at), ranks


def _check_same(model: LinearModel, ranks: Ranks, settings: tuple[Any, ...]) -> None:
    """Refuse ranks that do not fit the same: to the bit what was given, to round-off what was computed."""
    fingerprint = "" if model.point is None else model.point.fingerprint()
    ranks.check_same("arguments", described((*settings, model.likelihood)).encode())
    ranks.check_same("networks", fingerprint.encode(), repr(model.features.shape).encode())
    given = _bytes(model.weights) + (_bytes(model.targets) if not model.targets.is_floating_point() else b"")
    ranks.check_same("data", given)
    computed = [part.double() for part in (model.targets, model.offset) if part is not None]  # on the network's inputs
    summary = torch.stack([total for part in computed for total in (part.sum(), part.abs().sum())])
    spread = torch.cat([summary, -summary])
    largest = torch.tensor([ranks.most("check of the data", float(value)) for value in spread]).double()
    apart = (largest[: len(summary)] + largest[len(summary) :]).abs().max()
    if float(apart) > 1e-4 * float(summary.abs().max()):
        raise RankFailed(
            "the ranks were given different inputs: call fit on every rank with the whole data set; lapwing shares the "
            "work out itself. Where every rank means to fit something of its own, pass shard=False"
        )


def _bytes(values: Tensor) -> bytes:
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
