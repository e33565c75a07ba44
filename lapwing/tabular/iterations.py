"""The loop that trains networks side by side until each of them has converged, whatever an iteration is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar, final

import torch
from torch import Tensor

from lapwing.runtime.progress import Report

LOOK_EVERY = 3  # iterations from one look at the precisions to the next: a look costs more than a step


class Trainable(Protocol):
    """Networks with their precisions, on the way."""

    @property
    def log_evidence(self) -> Tensor:  # (b,)
        """Or a bound on it, when the precisions were last looked at."""

    def __getitem__(self, chosen: Tensor) -> Self:
        """Some of the networks."""

    def replaced(self, chosen: Tensor, others: Self) -> Self:
        """With the networks at these places taken from others."""


S = TypeVar("S", bound=Trainable)
Iteration = Callable[[S, Tensor, bool], tuple[S, Tensor]]
"""From networks, their numbers in the batch, and whether to look at precisions, to the next and what is left to gain.

That is in nats, (b,), and infinite where it is not known.
"""


@final
@dataclass(frozen=True, eq=False)
class TrainedNetworks(Generic[S]):
    """Networks at the end of their training."""

    state: S
    iterations: Tensor  # (b,), long
    converged: Tensor  # (b,), bool
    interrupted: bool

    def __getitem__(self, chosen: Tensor) -> TrainedNetworks[S]:
        """Some of the networks."""
        return TrainedNetworks(self.state[chosen], self.iterations[chosen], self.converged[chosen], self.interrupted)


def iterated(
    state: S, iteration: Iteration[S], *, first_look: int, max_iter: int, tol: float, report: Report
) -> TrainedNetworks[S]:
    """Until less than `tol` nats are left to gain, for each network by itself.

    An interrupt from the keyboard ends it early, with the networks as they are after the last whole iteration.
    """
    b = len(state.log_evidence)
    active = torch.arange(b)
    iterations = torch.zeros(b, dtype=torch.long)
    interrupted = False
    try:
        for number in range(max_iter):
            look = number >= first_look and (number - first_look) % LOOK_EVERY == 0
            now, left = iteration(state[active], active, look)
            state = state.replaced(active, now)
            iterations[active] += 1
            report(f"iteration {number + 1} of at most {max_iter}, log evidence {float(state.log_evidence.mean()):.5g}")
            active = active[~(left < tol)]
            if not len(active):
                break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        report("")
    converged = torch.ones(b, dtype=torch.bool)
    converged[active] = False
    return TrainedNetworks(state, iterations, converged, interrupted)
