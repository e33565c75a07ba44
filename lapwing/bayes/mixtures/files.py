"""Mixtures in files: what a file holds of each posterior, one after the other, in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.methods.packing import named, prefixed
from lapwing.bayes.mixtures.mixture import Mixture
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.posterior.files import FORMAT, MIXTURE, StoredPosterior, content, write

MOST = 1000  # members: a file that claims more is none of ours


def save(mixture: Mixture, path: Path | str) -> Path:
    """Write every member into one file; whole or not at all."""
    parts = [content(member) for member in mixture.members]
    tensors: dict[str, Tensor] = {}
    for number, (_, own) in enumerate(parts):
        tensors |= prefixed(f"member.{number}", own)
    plain: dict[str, Any] = {
        "format": MIXTURE, "members": [own for own, _ in parts], "diagnostics": mixture.diagnostics.plain(),
    }  # fmt: skip
    return write(Path(path), plain, tensors)


def size(stored: StoredPosterior) -> int | None:
    """The number of members that a file holds, or None where it is one posterior's."""
    if stored.plain.get("format") != MIXTURE:
        return None
    members = stored.value("members")
    if not isinstance(members, list) or not 0 < len(members) <= MOST or not all(isinstance(m, dict) for m in members):
        raise ValueError(f"{stored.path}: a mixture whose members cannot be read")
    return len(members)


def restore(stored: StoredPosterior, member: Callable[[int, StoredPosterior], Posterior]) -> Mixture:
    """The mixture of a file, of members that are restored one by one."""
    heat = stored.plain.get("network_temperature")  # as early files have it
    found = []
    for number, plain in enumerate(stored.value("members")):
        if plain.get("format") != FORMAT:
            raise ValueError(f"{stored.path}: member {number} has format {plain.get('format')!r}, expected {FORMAT}")
        own = plain if heat is None else {**plain, "network_temperature": heat}
        found.append(member(number, StoredPosterior(stored.path, named(stored.tensors, f"member.{number}."), own)))
    return Mixture(tuple(found), Diagnostics.of(stored.value("diagnostics")))
