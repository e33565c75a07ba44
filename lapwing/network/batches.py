"""Data as ordered, repeatable batches of inputs and targets, whatever they came in."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lapwing.network.data_spec import NO_TARGETS, UNUSED_WEIGHTS, Batch, DataSpec, read_batch
from lapwing.network.input_tree import InputTree, Sample, leaves, nested, outline, tensors_in

BATCH_SIZE = 128
_RANDOM_STATES = threading.RLock()  # held by whoever puts the global random states back


@final
@dataclass(frozen=True, eq=False)
class Batches:
    """Inputs and targets in a fixed order, the same at every pass.

    What is in memory is used where it is. A data set is read anew at every pass, so that memory does not grow with its
    size.
    """

    source: Sequence[Any] | DataLoader | Iterable[Any]
    keys: DataSpec | None = None

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for batch in self.read():
            if batch.targets is None:
                raise ValueError(NO_TARGETS)
            if batch.weights is not None:
                raise ValueError(UNUSED_WEIGHTS)
            yield batch.inputs, batch.targets

    def read(self) -> Iterator[Batch]:
        """The batches with their weights, and without targets where there are none."""
        with untouched_random_state():  # a loader draws seeds, a data set may draw whatever it likes
            batches = iter(self.source)
        while True:
            with untouched_random_state():
                raw = next(batches, None)
            if raw is None:
                return
            yield read_batch(raw) if self.keys is None else self.keys.batch(raw)

    @property
    def targets(self) -> Tensor:
        """All targets, in order."""
        return torch.cat([targets for _, targets in self])

    @property
    def count(self) -> int:
        """Number of data; a source without length is read for it."""
        if _has_length(self.source):
            return len(self.source.dataset)  # type: ignore[arg-type]
        return sum(len(batch.inputs) for batch in self.read())

    @property
    def inputs(self) -> Inputs:
        """The inputs alone, read when they are needed."""
        if isinstance(self.source, list):
            return Inputs.of(tuple(batch.inputs for batch in self.read()))
        count, source = self.count, self.source

        def between(first: int, last: int) -> Iterator[Sample]:
            if (first, last) == (0, count):
                return _whole(self, count)
            if not _has_length(source):
                return cut((batch.inputs for batch in self.read()), first, last)
            part = _ordered(Subset(source.dataset, range(first, last)), source.batch_size or 1, source)
            return (batch.inputs for batch in Batches(part, self.keys).read())

        return Inputs(count, between)


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """Batches of inputs that can be iterated again and again, as a whole or from one datum to another."""

    count: int  # data in all
    between: Callable[[int, int], Iterator[Any]]  # of tensors, or of nests of them

    def __iter__(self) -> Iterator[Any]:
        return self.between(0, self.count)

    @staticmethod
    def of(batches: Iterable[Any]) -> Inputs:
        """Batches that are in memory."""
        held = tuple(batches)
        return Inputs(sum(len(batch) for batch in held), lambda first, last: cut(iter(held), first, last))


def cut(batches: Iterator[Any], first: int, last: int) -> Iterator[Any]:
    """The data from one number to another, batch by batch."""
    start = 0
    for batch in batches:
        part = batch[max(first - start, 0) : max(last - start, 0)]
        start += len(batch)
        if len(part):
            yield part
        if start >= last:
            return


def _whole(batches: Batches, count: int) -> Iterator[Sample]:
    """Every batch, and an error where a pass does not have as many data as the first had."""
    seen = 0
    for batch in batches.read():
        seen += len(batch.inputs)
        yield batch.inputs
    if seen != count:
        raise ValueError(
            f"this pass over the data had {seen} of them and an earlier one {count}: a posterior needs the same data "
            "at every pass"
        )


def as_batches(data: Any, batch_size: int | None = None, *, labelled: bool = True) -> Batches:
    """Batches of tensors, dictionaries or tuples in memory, a Dataset, a DataLoader, or a list or iterable of batches.

    A batch is a pair of inputs and targets, or a dictionary; `DataSpec` says what its parts are where it is not plain.
    A DataLoader is read in the order of its data set, all of it; an iterable data set in its own order.
    Data that differ from one pass to the next, as with augmentation, are refused: the same datum would count as many.
    """
    batches = read_data(data, batch_size or BATCH_SIZE, labelled=labelled)
    first = next(batches.read(), None)
    with _other_random_state():  # the same one would give random transforms the same numbers again
        again = next(batches.read(), None)
    if first is None or not len(first.inputs):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    if again is None:
        raise ValueError("a second pass over the data is empty: they can be read only once, pass a list of batches")
    if labelled and first.targets is None:
        raise ValueError(f"{NO_TARGETS}, in batches of {outline(first.inputs)}")
    if not all(_same(*both) for both in zip(_parts(first), _parts(again), strict=True)):
        raise ValueError(
            "two passes over the data differ: their first batch is another one when it is read again. Turn "
            "augmentation and random transforms off, the posterior needs the same data at every pass"
        )
    check_finite_batch(first.inputs, first.targets, number=0)
    return batches


def check_finite_batch(inputs: Sample, targets: Tensor | None, *, number: int) -> None:
    """Refuse NaN and infinity, and say where the first one is."""
    named = {"inputs" if name == "inputs" else f"inputs ({name})": leaf for name, leaf in leaves(inputs).items()}
    for what, part in (*named.items(), ("targets", targets)):
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
    """Whatever runs inside leaves the global random states of torch, NumPy and Python as they were.

    One thread at a time: another would take the state inside for the one to come back to.
    """
    with _RANDOM_STATES:
        states = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            with torch.random.fork_rng():
                yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _other_random_state() -> Iterator[None]:
    """Inside, the global random states are others than outside."""
    with untouched_random_state():
        seed = (torch.initial_seed() + 1) % 2**32
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        yield


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit, NaN included: it is found later, with its place."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _parts(batch: Batch) -> list[Tensor]:
    return [*leaves(batch.inputs).values(), *(part for part in batch[1:] if part is not None)]


def _has_length(source: Any) -> TypeGuard[DataLoader]:
    return isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset)


def read_data(data: Any, batch_size: int, *, labelled: bool = True) -> Batches:
    """Batches of whatever data come in, without a look at them."""
    if isinstance(data, Batches):
        return data
    if isinstance(data, DataSpec):
        if isinstance(data.data, DataSpec | Batches):
            raise ValueError("keys were given twice: give them once, for the data themselves")
        return Batches(_source(data.data, batch_size, _raw_pieces), data)
    if not labelled and isinstance(data, Tensor | InputTree | np.ndarray):
        return Batches(list(nested(data).split(batch_size)))
    return Batches(_source(data, batch_size, _pieces))


def _source(data: Any, batch_size: int, pieces: Callable[[Any, int], list[Any]]) -> Any:
    """Something to iterate over again and again: a list of batches, a loader in order, or the iterable itself."""
    if isinstance(data, DataLoader):
        _check_loader(data)
        whole = isinstance(data.dataset, IterableDataset)
        return data if whole else _ordered(data.dataset, data.batch_size or batch_size, data)
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=batch_size, generator=torch.Generator())
    if type(data) is TensorDataset:  # in memory as it is
        return pieces(tuple(data.tensors), batch_size)
    if isinstance(data, tuple | Mapping):
        return pieces(data, batch_size)
    if isinstance(data, list):
        return data
    if isinstance(data, Iterator):
        raise ValueError("a generator can be read only once, and the data are needed again: pass a list of its batches")
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _bare(data)):
        return _ordered(data, batch_size, None)
    if isinstance(data, Iterable) and not _bare(data):
        return data
    raise ValueError(
        f"cannot read data of type {type(data).__name__}: expected (inputs, targets), a dictionary, a Dataset, a "
        "DataLoader, or a list or iterable of batches"
    )


def check_sampler(loader: DataLoader) -> None:
    """Refuse a sampler of a part of the data, all of which would be read; ranks share them out by themselves."""
    size, sampler = len(loader.dataset), loader.sampler  # type: ignore[arg-type]
    read = len(sampler) if isinstance(sampler, Sized) and not isinstance(sampler, DistributedSampler) else size
    if read < size:
        raise ValueError(
            f"the sampler of the DataLoader reads {read:,} of {size:,} data, and lapwing reads a data set as a whole: "
            "pass a DataLoader of torch.utils.data.Subset(dataset, indices) instead of a sampler"
        )


def _check_loader(loader: DataLoader) -> None:
    """Refuse a loader that leaves data out, and say where all are read though it would leave some out."""
    dropping = loader.drop_last or getattr(loader.batch_sampler, "drop_last", False)
    if not _has_length(loader):
        if dropping:
            raise ValueError(
                "the DataLoader has drop_last=True, which leaves data of a stream out at its end: pass drop_last=False"
            )
        return
    check_sampler(loader)
    size = len(loader.dataset)  # type: ignore[arg-type]
    batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    dropped = size % batch_size if dropping and batch_size else 0
    if dropped:
        warnings.warn(
            f"the DataLoader has drop_last=True and leaves {dropped:,} of {size:,} data out at every pass; lapwing "
            "reads all of them, in their order: pass drop_last=False, or a Subset of those that are meant",
            stacklevel=7,  # the caller of `fit`
        )


def _bare(data: Any) -> bool:
    return isinstance(data, Tensor | InputTree | np.ndarray | str | bytes)


def _pieces(data: Any, batch_size: int) -> list[Any]:
    """Data in memory, cut into batches."""
    if isinstance(data, tuple) and len(data) == 2 and data[1] is not None and not isinstance(data[1], Tensor):
        data = (data[0], torch.as_tensor(data[1]))
    batch = read_batch(data)
    pieces = [slice(start, start + batch_size) for start in range(0, len(batch.inputs), batch_size)]
    targets, weights = batch.targets, batch.weights
    return [
        Batch(batch.inputs[at], None if targets is None else targets[at], None if weights is None else weights[at])
        for at in pieces
    ]


def _raw_pieces(data: Any, batch_size: int) -> list[Any]:
    """The same for data whose parts have keys, which every batch keeps."""
    whole = InputTree(tensors_in(data))
    return [part.parts for part in whole.split(batch_size)]


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
