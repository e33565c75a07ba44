"""What a long fit keeps in a journal, how it knows that a journal is its own, and how processes share its products."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.fits import AtMode
from lapwing.bayes.fits.newton import Mode
from lapwing.bayes.fits.spans import Span
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import LinearOperator, OverData, Sharded
from lapwing.linalg.operators.distributed import Share
from lapwing.runtime.journal import Found, Journal
from lapwing.runtime.memory import available_bytes, counting_on
from lapwing.runtime.ranks import RankFailed, Ranks, together

OF_MODE = ("weights", "outputs", "factor")
OF_SPAN = ("directions", "images")


@contextmanager
def journal_of(
    checkpoint: Path | str | None, model: LinearModel, settings: tuple[Any, ...], ranks: Ranks | None
) -> Iterator[Journal | None]:
    """The journal in a folder, once it is known to be that of this model and these settings.

    The features are known by their product with a fixed column, so other inputs or other weights are noticed.
    """
    if checkpoint is None:
        yield None
        return
    journal = Journal(Path(checkpoint), ranks)
    with journal.stopping_cleanly():
        probe = Noise(0).rows(0, model.features.shape[1], 1).to(model.features.like)
        tensors = {"features": model.features @ probe, "targets": model.targets, "weights": model.weights}
        if model.offset is not None:
            tensors["offset"] = model.offset
        journal.check("start", (tensors, {}), "data or another network")
        journal.check("settings", ({}, {"settings": described((*settings, model.likelihood))}), "settings")
        yield journal


def described(value: Any) -> str:
    """A value in words, without the addresses of functions, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def kept_prior(journal: Journal, make: Callable[[], DiagonalPrior]) -> DiagonalPrior:
    """A prior on some features, which takes a pass over the data."""

    def find() -> Found:
        prior = make()
        return {name: getattr(prior, name) for name in ("scale", "group_of", "precision")}, {"names": list(prior.names)}

    tensors, plain = journal.found("prior", find)
    return DiagonalPrior(**tensors, names=tuple(plain["names"]))


def kept_mode(journal: Journal | None, name: str, make: Callable[[], AtMode]) -> AtMode:
    """A mode of the loss, which takes some passes."""
    if journal is None:
        return make()

    def find() -> Found:
        found = make()
        tensors = {"precision": found.precision, "units": found.units, "coordinates": found.coordinates}
        tensors |= {f"mode.{part}": getattr(found.mode, part) for part in OF_MODE}
        tensors |= {} if found.span is None else {f"span.{part}": getattr(found.span, part) for part in OF_SPAN}
        plain = {part.name: getattr(found.mode, part.name) for part in fields(Mode) if part.name not in OF_MODE}
        return {key: tensor for key, tensor in tensors.items() if tensor is not None}, plain

    tensors, plain = journal.found(name, find)
    parts: dict[str, Tensor | None] = {part: tensors.get(f"mode.{part}") for part in OF_MODE}
    mode: Any = Mode(**parts, **plain)  # type: ignore[arg-type]
    span = Span(*(tensors[f"span.{part}"] for part in OF_SPAN)) if "span.images" in tensors else None
    return AtMode(tensors["precision"], tensors["units"], tensors["coordinates"], mode, span)


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
