"""Factors of Jacobians that a fit keeps from one product to the next, while it lasts and as far as memory goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

from lapwing.network.jacobian.products import Direct, FactoredProducts
from lapwing.runtime.memory import available_bytes

SHARE = 4  # of the memory that is free, one part in so many may be used

Piece = FactoredProducts | Direct


@final
class KeptFactors:
    """The factors of whole Jacobians, batch by batch, for as many Jacobians as there is room for."""

    def __init__(self) -> None:
        self.bytes = 0.0  # of all that is kept
        self._pieces: dict[Any, list[Piece]] = {}

    def pieces(self, owner: Any, rows: int, made: Iterator[Piece]) -> Iterator[Piece]:
        """Those of a Jacobian of so many rows: what `made` yields, or what it yielded the first time."""
        if owner in self._pieces:
            yield from self._pieces[owner]
            return
        kept: list[Piece] | None = []
        for piece in made:
            if kept is not None and not self._has_room(piece, rows):
                kept = None
            if kept is not None:
                kept.append(piece)
            yield piece
        if kept is not None:
            self.bytes += sum(piece.bytes for piece in kept)
            self._pieces[owner] = kept

    def _has_room(self, piece: Piece, rows: int) -> bool:
        """Whether all pieces would fit, if they were like this one."""
        return self.bytes + piece.bytes / piece.height * rows <= available_bytes() / SHARE


_kept: ContextVar[KeptFactors | None] = ContextVar("kept", default=None)


@contextmanager
def keeping_factors() -> Iterator[None]:
    """Keep factors until this block ends.

    Every product with a Jacobian would otherwise find them anew, by a pass through the network for each output.
    """
    token = _kept.set(KeptFactors())
    try:
        yield
    finally:
        _kept.reset(token)


def kept_or_made(owner: Any, rows: int, made: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces that were kept of a Jacobian, or those that are `made`, to be kept if there is room."""
    kept = _kept.get()
    return made if kept is None else kept.pieces(owner, rows, made)
