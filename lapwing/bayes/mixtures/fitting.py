"""The members of a mixture fitted, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from lapwing.bayes.evidence import OnHeldOut, Tuning
from lapwing.bayes.mixtures.mixture import Mixture
from lapwing.bayes.posterior import Posterior
from lapwing.runtime.memory import as_bytes
from lapwing.runtime.progress import Report, reporter


@final
@dataclass(frozen=True, eq=False)
class Turn:
    """What differs from one fit of a mixture to the next."""

    seed: int
    validation: Any = None
    progress: bool | Report | None = None
    checkpoint: Path | str | None = None
    max_memory: float | str | None = None
    tuning: Tuning | None = None


def fitted(count: int, fit: Callable[[int, Turn], Posterior], asked: Turn) -> Mixture:
    """The mixture of what `fit` gives for each member, and then the best on held-out data where there are any.

    Members have seeds of their own, folders of their own for checkpoints, and equal shares of a memory that is given.
    """
    if count < 1:
        raise ValueError("an empty list of networks: a mixture needs at least one")
    if count == 1:
        alone = fit(0, asked)
        return Mixture((alone,), diagnostics=alone.diagnostics)
    report, started = reporter(asked.progress), time.perf_counter()
    held_back = None if asked.validation is None else OnHeldOut()
    members = []
    for number in range(count):
        turn = Turn(
            asked.seed + number, progress=_told(report, number, count), checkpoint=_folder(asked.checkpoint, number),
            max_memory=None if asked.max_memory is None else as_bytes(asked.max_memory) / count, tuning=held_back,
        )  # fmt: skip
        members.append(fit(number, turn))
    found = Mixture(tuple(members), diagnostics=members[0].diagnostics)
    if asked.validation is not None and any(_is_free(member) for member in members):
        report("choosing among the networks and their mixture on held-out data")
        found = found.tune(asked.validation)
        report("")
    seconds = time.perf_counter() - started
    return replace(found, diagnostics=replace(found.diagnostics, seconds=seconds))


def _is_free(member: Posterior) -> bool:
    """Whether held-out data may tune anything."""
    return member.diagnostics.tuned_by != "given" or member.likelihood.constant_curvature


def _told(report: Report, number: int, count: int) -> Report:
    return lambda phase: report(f"network {number + 1} of {count}, {phase}" if phase else "")


def _folder(checkpoint: Path | str | None, number: int) -> Path | None:
    return None if checkpoint is None else Path(checkpoint) / f"network-{number}"
