"""Data as ordered, repeatable batches of inputs and targets, whatever they came in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, Subset, TensorDataset

BATCH_SIZE = 128


@final
@dataclass(frozen=True, eq=False)
class Batches:
    """Pairs of inputs and targets in a fixed order, the same at every pass.

    Pairs that are in memory are used where they are. A data set is read anew at every pass, so that memory does not
    grow with its size.
    """

    source: Sequence[tuple[Tensor, Tensor]] | DataLoader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        with untouched_random_state():  # a loader draws seeds, a data set may draw whatever it likes
            batches = iter(self.source)
        while True:
            with untouched_random_state():
                batch = next(batches, None)
            if batch is None:
                return
            yield _pair(batch)

    @property
    def targets(self) -> Tensor:
        """All targets, in order."""
        return torch.cat([targets for _, targets in self])

    @property
    def count(self) -> int:
        """Number of data."""
        if isinstance(self.source, DataLoader):
            return len(self.source.dataset)  # type: ignore[arg-type]
        return sum(len(inputs) for inputs, _ in self.source)

    @property
    def inputs(self) -> Inputs:
        """The inputs alone, read when they are needed."""
        if not isinstance(self.source, DataLoader):
            return Inputs.of(tuple(inputs for inputs, _ in self.source))
        loader = self.source

        def between(first: int, last: int) -> Iterator[Tensor]:
            whole = (first, last) == (0, len(loader.dataset))  # type: ignore[arg-type]
            part = (
                loader
                if whole
                else _ordered(Subset(loader.dataset, range(first, last)), loader.batch_size or 1, loader)
            )
            return (inputs for inputs, _ in Batches(part))

        return Inputs(self.count, between)


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """Batches of inputs that can be iterated again and again, as a whole or from one datum to another."""

    count: int  # data in all
    between: Callable[[int, int], Iterator[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return self.between(0, self.count)

    @staticmethod
    def of(batches: Iterable[Tensor]) -> Inputs:
        """Batches that are in memory."""
        held = tuple(batches)

        def between(first: int, last: int) -> Iterator[Tensor]:
            start = 0
            for batch in held:
                part = batch[max(first - start, 0) : max(last - start, 0)]
                start += len(batch)
                if len(part):
                    yield part

        return Inputs(sum(len(batch) for batch in held), between)


def as_batches(data: Any, batch_size: int | None = None) -> Batches:
    """Batches of a pair of tensors, a Dataset, a DataLoader or a list of pairs.

    A DataLoader is read in the order of its data set, whatever its sampler does. Data that differ from one pass to
    the next, as with augmentation, are refused: the same datum would count as many.
    """
    batches = Batches(_source(data, batch_size or BATCH_SIZE))
    first, again = _first(batches), _first(batches)
    if first is None or again is None or not len(first[0]):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    if len(first[0]) != len(first[1]):
        raise ValueError(f"{len(first[0])} inputs and {len(first[1])} targets in a batch: expected as many of each")
    if not all(_same(one, other) for one, other in zip(first, again, strict=True)):
        raise ValueError(
            "two passes over the data differ: turn augmentation and random transforms off, the posterior needs the "
            "same data at every pass"
        )
    check_finite_batch(*first, number=0)
    return batches


def check_finite_batch(inputs: Tensor, targets: Tensor | None, *, number: int) -> None:
    """Refuse NaN and infinity, and say where the first one is."""
    for what, part in (("inputs", inputs), ("targets", targets)):
        if part is None or not part.is_floating_point():
            continue
        bad = ~part.isfinite().reshape(len(part), -1).all(1)
        if bool(bad.any()):
            raise ValueError(
                f"the {what} contain NaN or infinite values, first in batch {number}, datum {int(bad.nonzero()[0])} "
                "of it: remove or impute them first"
            )


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Whatever runs inside leaves the global random states of torch, NumPy and Python as they were."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit, NaN included: it is found later, with its place."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _first(batches: Batches) -> tuple[Tensor, Tensor] | None:
    return next(iter(batches), None)


def _source(data: Any, batch_size: int) -> Sequence[tuple[Tensor, Tensor]] | DataLoader:
    if isinstance(data, Batches):
        return data.source
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise ValueError("an iterable data set has no order of its own: pass a list of its batches")
        return _ordered(data.dataset, data.batch_size or batch_size, data)
    if type(data) is TensorDataset and len(data.tensors) == 2:  # in memory as it is
        return _source(tuple(data.tensors), batch_size)
    if isinstance(data, Dataset):
        return _ordered(data, batch_size, None)
    if isinstance(data, tuple) and len(data) == 2:
        inputs, targets = (torch.as_tensor(part) for part in data)
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets: expected as many of each")
        return list(zip(inputs.split(batch_size), targets.split(batch_size), strict=True))
    if isinstance(data, list):
        return [_pair(batch) for batch in data]
    raise ValueError(
        f"cannot read data of type {type(data).__name__}: expected (inputs, targets), a Dataset, a DataLoader or a "
        "list of such pairs"
    )


def _ordered(dataset: Any, batch_size: int, like: DataLoader | None) -> DataLoader:
    if not len(dataset):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    order, seeds = SequentialSampler(dataset), torch.Generator()  # of its own: a loader draws a seed at every pass
    if like is None:
        return DataLoader(dataset, batch_size=batch_size, sampler=order, generator=seeds)
    workers, collate = like.num_workers, like.collate_fn
    return DataLoader(
        dataset, batch_size=batch_size, sampler=order, num_workers=workers, collate_fn=collate, generator=seeds
    )


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise ValueError(f"expected batches of two tensors, inputs and targets, got {type(batch).__name__}")
    return batch[0], batch[1]
