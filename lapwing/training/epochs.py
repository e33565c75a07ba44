"""The one training loop: all data shown to what learns, epoch by epoch, with checkpoints and the best weights kept."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Generator, Tensor

from lapwing.network.shuffling import Source
from lapwing.runtime.arrays import check_archive
from lapwing.runtime.atomic import write as write_atomically
from lapwing.runtime.memory import available_bytes
from lapwing.runtime.progress import Report, reporter

Weights = dict[str, Tensor]
Batches = Callable[[Source, int, Generator], Iterator[tuple[Any, Any]]]  # one pass over the data


class Learner(Protocol):
    """What learns from batches: `step` changes its own state and returns the loss it saw."""

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """One update; `done` is the share of the training behind it."""

    def weights(self) -> Weights:
        """A copy of all that was learnt so far."""

    def state(self) -> dict[str, Any]:
        """Everything needed to go on: tensors, numbers and containers of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""


class Diverged(ArithmeticError):
    """A loss or a weight became NaN or infinite; `last_good` are the weights after the last epoch without.

    Parameters
    ----------
    message : str
        What happened.
    last_good : dict of Tensor
        Weights after the last epoch without.
    step : int
        At which it happened.

    Examples
    --------
    >>> raise Diverged("the loss became nan at step 7", {"slope": torch.ones(1)}, 7)
    Traceback (most recent call last):
    ...
    lapwing.training.epochs.Diverged: the loss became nan at step 7
    """

    def __init__(self, message: str, last_good: Weights, step: int) -> None:
        super().__init__(message)
        self.last_good, self.step = last_good, step


@final
@dataclass(frozen=True)
class Epoch:
    """One pass over the data: the mean loss of its steps, and the validation score after it (lower is better).

    Parameters
    ----------
    number : int
        Of the epoch, from 1.
    loss : float
        Mean over its steps.
    score : float, optional
        Of validation data after it; lower is better.

    Examples
    --------
    >>> Epoch(1, 0.25)
    Epoch(number=1, loss=0.25, score=None)
    """

    number: int
    loss: float
    score: float | None = None


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """The weights after the epoch with the best score, or after the last where there was none; and the curve.

    Parameters
    ----------
    weights : dict of Tensor
        By name.
    curve : tuple of Epoch
        One for each epoch.
    best : int
        Number of the epoch that the weights are from; 0 is the start.

    Examples
    --------
    >>> Trained({"slope": torch.ones(1)}, (Epoch(1, 0.5, 0.4), Epoch(2, 0.3, 0.6)), best=1).best
    1
    """

    weights: Weights
    curve: tuple[Epoch, ...]
    best: int  # number of the epoch the weights are from; 0 is the start


def loop(
    learner: Learner, data: Any, *, epochs: int, batch_size: int = 128, seed: int = 0,
    score: Callable[[Weights], float | None] | None = None, scored: str = "validation", patience: int | None = None,
    checkpoint: str | Path | None = None, progress: bool | Report | None = None,
    settings: Mapping[str, Any] | None = None,
    stop: Callable[[Epoch], bool] | None = None, batches: Batches = Source.shuffled,
) -> Trained:  # fmt: skip
    """Show a learner all data, `epochs` times, in a seeded order.

    With `checkpoint`, a file is replaced in one step after every epoch, and a later call goes on from it to the same
    curve; a file of other data or `settings` is refused. `score` is of validation data, or `scored` says of what; lower
    is better, None is not known; after `patience` epochs without a better one training stops. Where `stop` says so
    after an epoch, and in a resumed run before the next, it is the last. `batches` makes those of an epoch where they
    are not to be in one random order. Code that draws from the global random state,
    such as dropout, is seeded too, and that state is put back afterwards.

    Parameters
    ----------
    learner : Learner
        What learns from batches.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    epochs : int
        Passes over the data.
    batch_size : int
        Data in each batch.
    seed : int
        Of the order of the data and of all draws.
    score : callable, optional
        From weights to a number, lower is better, or None.
    scored : str
        What the score is of, for the progress.
    patience : int, optional
        Epochs without a better score after which training stops.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.
    settings : mapping, optional
        What a checkpoint must agree with.
    stop : callable, optional
        Whether an epoch was the last.
    batches : callable
        Makes the batches of an epoch.

    Returns
    -------
    Trained
        Weights and curve.

    Raises
    ------
    ValueError
        If a number is out of range, a score is NaN, or a checkpoint is of other data or settings.
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing.training import Descent, adam
    >>> x = torch.linspace(-1, 1, 20).double()[:, None]
    >>> start = {"slope": torch.zeros(1, 1).double()}
    >>> learner = Descent(lambda w, x, y, _: (x @ w["slope"] - y).square().mean(), start, adam(0.01))
    >>> found = loop(learner, (x, 3 * x), epochs=300, batch_size=5, progress=False)
    >>> f"{found.weights['slope'].item():.3f}, {found.curve[-1].loss < found.curve[0].loss}"
    '3.000, True'
    """
    if epochs < 1 or batch_size < 1:
        raise ValueError(f"epochs is {epochs} and batch_size {batch_size}: expected at least one of each")
    if patience is not None and patience < 1:
        raise ValueError(f"patience is {patience}, expected at least one epoch, or None to go on to the end")
    source, report = Source.of(data), reporter(progress)
    about = {"data": source.size, "batch_size": batch_size, "seed": seed}
    run = _Epochs(learner, _path(checkpoint), {**(settings or {}), **about}, batches)
    with _own_random_state(seed, run.last_good):
        generator = Generator().manual_seed(seed)
        started = run.resume(generator, epochs)
        clock = time.perf_counter()
        for number in range(started + 1, epochs + 1):
            if run.is_stale(patience) or (stop is not None and run.curve and stop(run.curve[-1])):
                break
            loss = run.epoch(source, batch_size, generator, number, epochs)
            run.finish(Epoch(number, loss, None if score is None else _checked(score(run.last_good), number)))
            run.save(generator)
            left = (time.perf_counter() - clock) / (number - started) * (epochs - number)
            report(
                f"epoch {number} of {epochs}, loss {loss:.4g}{_scored(run.curve[-1], scored)}, {_duration(left)} left"
            )
    report("")
    weights, best = (run.last_good, len(run.curve)) if run.best is None else run.best
    return Trained(weights, tuple(run.curve), best)


@dataclass(eq=False)
class _Epochs:
    """The state of one run of the loop."""

    learner: Learner
    checkpoint: Path | None
    settings: dict[str, Any]
    batches: Batches

    def __post_init__(self) -> None:
        self.curve: list[Epoch] = []
        self.best: tuple[Weights, int] | None = None
        self.last_good = self.learner.weights()
        shapes = {name: list(tensor.shape) for name, tensor in self.last_good.items()}
        self.settings = {**self.settings, "weights": shapes}
        self.steps = 0

    def epoch(self, source: Source, batch_size: int, generator: Generator, number: int, epochs: int) -> float:
        """The mean loss of one pass over the data."""
        total, batches = 0.0, -(-source.size // batch_size)
        for index, (inputs, targets) in enumerate(self.batches(source, batch_size, generator)):
            self.steps += 1
            loss = self.learner.step(inputs, targets, generator, (number - 1 + index / batches) / epochs)
            if not abs(loss) < float("inf"):
                raise self._diverged(f"the loss became {loss} at step {self.steps:,}, in epoch {number}")
            total += loss
        weights = self.learner.weights()
        for name, tensor in weights.items():
            if not _is_finite(tensor):
                raise self._diverged(f"{name} became NaN or infinite by step {self.steps:,}, the end of epoch {number}")
        self.last_good = weights
        return total / batches

    def _diverged(self, what: str) -> Diverged:
        where = "in last_good" if self.checkpoint is None else f"in last_good and in {self.checkpoint}"
        return Diverged(
            f"{what}: training was stopped; the weights after epoch {len(self.curve)} are {where}. Use a smaller "
            "learning rate, or look for targets and inputs of very different size", self.last_good, self.steps,
        )  # fmt: skip

    def finish(self, epoch: Epoch) -> None:
        """Note an epoch, and its weights where they are the best."""
        scores = [past.score for past in self.curve if past.score is not None]
        if epoch.score is not None and all(epoch.score < past for past in scores):
            self.best = (self.last_good, epoch.number)
        self.curve.append(epoch)

    def is_stale(self, patience: int | None) -> bool:
        """Whether the best score is older than one is willing to wait."""
        return patience is not None and self.best is not None and len(self.curve) - self.best[1] >= patience

    def save(self, generator: Generator) -> None:
        """Replace the checkpoint in one step."""
        if self.checkpoint is None:
            return
        content = {
            "format": 1, "settings": self.settings, "learner": self.learner.state(), "steps": self.steps,
            "curve": [(epoch.number, epoch.loss, epoch.score) for epoch in self.curve],
            "best": None if self.best is None else list(self.best),
            "generator": generator.get_state(), "global": torch.get_rng_state(),
        }  # fmt: skip
        buffer = BytesIO()
        torch.save(content, buffer)
        write_atomically(self.checkpoint, buffer.getvalue())

    def resume(self, generator: Generator, epochs: int) -> int:
        """The number of epochs behind us: those of the checkpoint, where there is one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return 0
        try:
            check_archive(self.checkpoint, limit=available_bytes() / 2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on unusual pickles, which are refused anyway
                content = torch.load(self.checkpoint, weights_only=True)
            found = dict(content["settings"])
        except Exception as error:
            raise ValueError(f"cannot read the checkpoint {self.checkpoint}: delete it to start anew") from error
        self._check_own(found)
        try:
            return self._restored(content, generator, epochs)
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"the checkpoint {self.checkpoint} is damaged: delete it to start anew") from error

    def _check_own(self, found: dict[str, Any]) -> None:
        different = sorted(str(key) for key in self.settings | found if self.settings.get(key) != found.get(key))
        if different:
            raise ValueError(
                f"the checkpoint {self.checkpoint} is of another run: {', '.join(different)} differ "
                f"({[found.get(key) for key in different]} there, {[self.settings.get(key) for key in different]} "
                "here); delete it to start anew, or use another file"
            )

    def _restored(self, content: dict[str, Any], generator: Generator, epochs: int) -> int:
        if len(content["curve"]) > epochs:
            raise ValueError(
                f"the checkpoint {self.checkpoint} is {len(content['curve'])} epochs old and {epochs} were asked for: "
                "ask for more, delete it to start anew, or use another file"
            )
        self.learner.restore(content["learner"])
        self.curve = [Epoch(*values) for values in content["curve"]]
        self.best = None if content["best"] is None else (content["best"][0], content["best"][1])
        self.steps, self.last_good = content["steps"], self.learner.weights()
        if not all(bool(value.isfinite().all()) for value in self.last_good.values() if value.is_floating_point()):
            raise RuntimeError("weights are NaN or infinite")
        generator.set_state(content["generator"])
        torch.set_rng_state(content["global"])
        return len(self.curve)


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are: one pass where their sum is, which is nearly always."""
    return not tensor.is_floating_point() or bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


@contextmanager
def _own_random_state(seed: int, weights: Weights) -> Iterator[None]:
    """The global random state seeded inside, and as it was afterwards."""
    devices = sorted({tensor.device.index or 0 for tensor in weights.values() if tensor.is_cuda})
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        yield


def _path(checkpoint: str | Path | None) -> Path | None:
    return None if checkpoint is None else Path(checkpoint)


def _checked(score: float | None, number: int) -> float | None:
    """A score that is a number: NaN would never be beaten."""
    if score is None:
        return None
    if score != score:
        raise ValueError(f"the validation score after epoch {number} is NaN: look at the validation data")
    return float(score)


def _scored(epoch: Epoch, what: str) -> str:
    return "" if epoch.score is None else f", {what} {epoch.score:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
