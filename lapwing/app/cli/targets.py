"""What the targets are: classes or numbers. Guessed, and said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from scipy.optimize import linear_sum_assignment

from lapwing.app.cli.data import Loaded, is_number

Kind = Literal["classification", "regression"]


@final
@dataclass(frozen=True)
class Guess:
    """The task, its classes, and why."""

    task: Kind
    likelihood: Literal["gaussian", "categorical", "bernoulli"]
    why: str
    classes: tuple[str, ...] = ()


def guess(data: Loaded, outputs: int, asked: str | None = None, order: tuple[str, ...] | None = None) -> Guess:
    """The task that targets and a network's outputs fit, or what was asked for where they do.

    `order` has the names of the classes as the outputs have them.
    """
    targets = data.targets
    if targets is None:
        raise ValueError(f"{data.source}: there are no targets")
    if asked not in (None, "gaussian", "categorical", "bernoulli"):
        raise ValueError(f"unknown likelihood {asked!r}: expected gaussian, categorical or bernoulli")
    if targets.dtype.kind == "U":
        return _named(data, targets, outputs, asked, order)
    if order is not None:
        raise ValueError(f"{data.source}: --classes are for targets that are words, and these are numbers")
    whole = targets.dtype.kind == "i" and targets.ndim == 1
    if asked in ("categorical", "bernoulli") and not whole:
        raise ValueError(f"{data.source}: classes must be whole numbers or names, one for each input")
    if whole and asked != "gaussian":
        found = _numbered(data.source, targets, outputs, asked)
        if found is not None:
            return found
    if asked != "gaussian" and targets.ndim == 2 and targets.shape[1] == outputs > 1 and _one_hot(targets):
        raise ValueError(
            f"{data.source}: targets are one-hot: give class numbers, y.argmax(1); for a regression on them say "
            "--likelihood gaussian"
        )
    size = 1 if targets.ndim == 1 else int(np.prod(targets.shape[1:]))
    if size != outputs:
        raise ValueError(f"{data.source}: {size} number(s) per target, but the network has {outputs} outputs")
    return Guess("regression", "gaussian", "as asked" if asked else f"targets are numbers, {size} for each input")


def _one_hot(targets: np.ndarray) -> bool:
    return bool(((targets == 0) | (targets == 1)).all() and (targets.sum(1) == 1).all())


def _numbered(source: str, targets: np.ndarray, outputs: int, asked: str | None) -> Guess | None:
    """Classes by number, or None where the numbers of one output may be anything."""
    low, high = int(targets.min()), int(targets.max())
    why = "as asked" if asked else f"targets are whole numbers from {low} to {high}"
    if outputs > 1 and asked != "bernoulli":
        if not 0 <= low <= high < outputs:
            raise ValueError(f"{source}: class numbers run from {low} to {high}, the network has {outputs} outputs")
        return Guess("classification", "categorical", why, tuple(str(label) for label in range(outputs)))
    if asked == "categorical":
        raise ValueError("the network has 1 output: classes need one output for each of them, or bernoulli")
    if outputs == 1 and 0 <= low <= high <= 1:
        return Guess("classification", "bernoulli", f"{why}, and the network has one output", ("0", "1"))
    if asked == "bernoulli":
        raise ValueError(f"{source}: bernoulli takes targets 0 or 1 and one output, not {low} to {high} and {outputs}")
    return None


def _named(data: Loaded, targets: np.ndarray, outputs: int, asked: str | None, order: tuple[str, ...] | None) -> Guess:
    names = tuple(sorted(set(targets.tolist())))
    if asked == "gaussian":
        raise ValueError(f"{data.source}: targets such as {names[0][:30]!r} are not numbers")
    if order is not None:
        names = _ordered(data.source, names, order)
    if len(names) == 2 and outputs == 1:
        why = f"targets are words, {names[0][:30]!r} and {names[1][:30]!r}, and the network has one output"
        return Guess("classification", "bernoulli", f"{why}, taken for the second", names)
    if len(names) != outputs:
        words = [name for name in names if not is_number(name)]
        if 2 * len(words) < len(names):
            raise ValueError(
                f"{data.source}: most targets are numbers, but {words[0][:30]!r} is not: remove or mend such rows"
            )
        raise ValueError(
            f"{data.source}: {len(names)} different names of classes, but the network has {outputs} outputs; where "
            "some classes are absent, name all of them with --classes, in the order of the outputs"
        )
    how = "in alphabetical order" if order is None else "in the order of --classes"
    why = f"targets are words, {len(names)} different ones, taken {how}"
    return Guess("classification", "categorical", why, names)


def _ordered(source: str, names: tuple[str, ...], order: tuple[str, ...]) -> tuple[str, ...]:
    unnamed = [name for name in names if name not in order]
    if unnamed or len(set(order)) < len(order):
        raise ValueError(
            f"{source}: --classes are {', '.join(order)}, and the targets have {', '.join(names)}: name each class "
            "once, in the order of the network's outputs"
        )
    return order


def check_order(source: str, guessed: Guess, logits: np.ndarray, labels: np.ndarray) -> None:
    """Refuse names of classes that the network's outputs have in another order.

    It is known by its training data: in the other order a network that has learnt something is right far more often.
    """
    names, predicted = guessed.classes, logits.argmax(1)
    counts = np.zeros((len(names),) * 2, int)  # by label and answer
    np.add.at(counts, (labels, predicted), 1)
    rows, columns = linear_sum_assignment(-counts)
    right, best, most = (float(part) / len(labels) for part in (
        counts.trace(), counts[rows, columns].sum(), counts.sum(1).max()
    ))  # fmt: skip
    if best < max(0.5, right + 0.2, most + 0.05):
        return
    other = [names[row] for row in rows[np.argsort(columns)]]
    raise ValueError(
        f"{source}: the network gives {right:.0%} of the training rows their class if its outputs are "
        f"{', '.join(names)}, and {best:.0%} if they are {', '.join(other)}. Say --classes {','.join(other)} if that "
        "is their order"
    )


def numbers(data: Loaded, guessed: Guess) -> np.ndarray | None:
    """Targets as the likelihood takes them: class numbers, or floats (n, outputs)."""
    targets = data.targets
    if targets is None:
        return None
    if guessed.task == "regression":
        if targets.dtype.kind == "U":
            raise ValueError(f"{data.source}: targets such as {str(targets[0])[:30]!r} are not numbers")
        return targets.reshape(len(targets), -1).astype(np.float64)
    if targets.dtype.kind == "U":
        known = {name: number for number, name in enumerate(guessed.classes)}
        unseen = sorted(set(targets.tolist()) - set(known))
        if unseen:
            shown = ", ".join(repr(name[:30]) for name in unseen[:5])
            raise ValueError(f"{data.source}: classes that were not in the training data: {shown}; remove these rows")
        return np.array([known[name] for name in targets.tolist()])
    if targets.dtype.kind != "i" or targets.ndim != 1:
        raise ValueError(f"{data.source}: expected one class number or name for each input")
    if targets.min() < 0 or targets.max() >= len(guessed.classes):
        last = len(guessed.classes) - 1
        raise ValueError(f"{data.source}: class numbers outside of those in the training data, 0 to {last}")
    return targets
