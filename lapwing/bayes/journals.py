"""What `infer` keeps in a journal on its way, and how it knows that a journal is its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from lapwing.bayes.fits import AtMode
from lapwing.bayes.fits.newton import Mode
from lapwing.bayes.fits.spans import Span
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.runtime.journal import Found, Journal
from lapwing.runtime.ranks import Ranks

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
