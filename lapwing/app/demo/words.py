"""Sentences that follow from figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lapwing import metrics

BEYOND_CHANCE = 2.0  # standard errors


def standing(losses: Mapping[str, Tensor], ours: str) -> str:
    """How the mean loss of one method compares with that of the others, over the same examples.

    A difference of less than two standard errors is a tie.

    >>> one = torch.tensor([0.1, 0.2, 0.3, 0.4])
    >>> standing({"lapwing": one, "a GP": one.flip(0), "a plain MLP": one + 1, "an oracle": one - 0.1}, "lapwing")
    'beats a plain MLP, ties with a GP and loses to an oracle'
    """
    return verdicts({name: metrics.paired(each, losses[ours]) for name, each in losses.items() if name != ours})


def verdicts(excess: Mapping[str, metrics.Difference]) -> str:
    """The same, from how much more the others lose."""
    beaten = [name for name, gap in excess.items() if gap.z > BEYOND_CHANCE]
    better = [name for name, gap in excess.items() if gap.z < -BEYOND_CHANCE]
    tied = [name for name in excess if name not in (*beaten, *better)]
    said = (("beats", beaten), ("ties with", tied), ("loses to", better))
    return listed([f"{verb} {listed(names)}" for verb, names in said if names])


def listed(items: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def coverage(inside: int, of: int, level: float) -> str:
    """How a count of targets inside their intervals agrees with the level of these, by Wilson's 95 % interval.

    >>> coverage(132, 142, 0.9), coverage(72, 142, 0.9), coverage(142, 142, 0.9)
    ('as they should', 'too few', 'too many')
    """
    low, high = (float(end) for end in metrics.wilson(torch.tensor(inside), torch.tensor(of)))
    return "too many" if low > level else "too few" if high < level else "as they should"
