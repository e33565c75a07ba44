"""Training data as batches in a seeded random order, whatever they came in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, IterableDataset

from lapwing.network.batches import check_sampler, read_data
from lapwing.network.data_spec import UNUSED_WEIGHTS, Batch, Counted, DataSpec, Targets, read_batch
from lapwing.network.input_tree import Sample, joined, leaves

Read = Callable[[Any], Batch]


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Data that can be read in any order."""

    size: int
    fetch: Callable[[list[Tensor]], Iterator[Batch]]  # lists of indices -> batches

    @staticmethod
    def of(data: Any) -> Source:
        """All that `as_batches` reads but for streams; the order of a DataLoader is not used.

        A data set is read anew in every pass, and may differ from one to the next, as by augmentation.
        """
        if isinstance(data, Source):
            return data
        given = data.data if isinstance(data, DataSpec) else data
        read = data.batch if isinstance(data, DataSpec) else read_batch
        if isinstance(given, DataLoader) and not isinstance(given.dataset, IterableDataset):
            check_sampler(given)
            return _of_dataset(given.dataset, given, read)
        if isinstance(getattr(given, "dataset", given), IterableDataset):
            raise ValueError("an iterable data set has no order of its own: pass a list of its batches")
        batches = read_data(_as_tensors(data), sys.maxsize)
        if isinstance(batches.source, DataLoader):
            return _of_dataset(batches.source.dataset, None, read)
        return _in_memory(list(batches.read()))

    def shuffled(self, batch_size: int, generator: Generator) -> Iterator[tuple[Sample, Targets]]:
        """Every datum once, in a random order."""
        return self._observed(torch.randperm(self.size, generator=generator), batch_size)

    def side_by_side(self, batch_size: int, generators: list[Generator]) -> Iterator[tuple[Tensor, Targets]]:
        """Every datum once for each generator, in a random order of its own: batches with an axis of these in front."""
        orders = [torch.randperm(self.size, generator=one).split(batch_size) for one in generators]
        parts = self.fetch([rows for step in zip(*orders, strict=True) for rows in step])
        for _ in orders[0]:
            yield stacked([next(parts) for _ in generators])

    def in_order(self, batch_size: int) -> Iterator[tuple[Sample, Targets]]:
        """Every datum once, in its own order."""
        return self._observed(torch.arange(self.size), batch_size)

    def pairs(self, batch_size: int) -> Iterator[tuple[Sample, Tensor]]:
        """The same where nothing is made of weights: an error where there are some."""
        for inputs, observed in self.in_order(batch_size):
            if isinstance(observed, Counted):
                raise ValueError(UNUSED_WEIGHTS)
            yield inputs, observed

    def first(self, count: int) -> Batch:
        """Some data from the beginning."""
        return next(self.fetch([torch.arange(min(count, self.size))]))

    def _observed(self, order: Tensor, batch_size: int) -> Iterator[tuple[Sample, Targets]]:
        return ((batch.inputs, batch.observed) for batch in self.fetch(list(order.split(batch_size))))


def stacked(batches: list[Batch]) -> tuple[Tensor, Targets]:
    """Batches of one tensor each with an axis of them in front."""
    inputs = torch.stack([batch.inputs for batch in batches])  # type: ignore[misc]
    observed = [batch.observed for batch in batches]
    if isinstance(observed[0], Counted):
        return inputs, Counted(*(torch.stack(list(parts)) for parts in zip(*observed, strict=True)))
    return inputs, torch.stack(observed)  # type: ignore[arg-type]


def _as_tensors(data: Any) -> Any:
    """Inputs that are lists of numbers as a tensor; anything else as it is."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], list):
        return torch.as_tensor(data[0]), data[1]
    return data


def _in_memory(batches: list[Batch]) -> Source:
    if not sum(len(batch.inputs) for batch in batches):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    inputs = joined([batch.inputs for batch in batches])
    targets = _joined([_targets(batch) for batch in batches])
    given = [batch.weights for batch in batches if batch.weights is not None]
    weights = _joined(given) if given else None
    for part in (*leaves(inputs).values(), targets):
        if part.is_floating_point() and not bool(part.isfinite().all()):
            raise ValueError("the data contain NaN or infinite values: remove or impute them first")

    def fetch(order: list[Tensor]) -> Iterator[Batch]:
        return (Batch(inputs[at], targets[at], None if weights is None else weights[at]) for at in order)

    return Source(len(inputs), fetch)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _targets(batch: Batch) -> Tensor:
    observed = batch.observed
    return observed.targets if isinstance(observed, Counted) else observed


def _of_dataset(data: Any, like: DataLoader | None, read: Read) -> Source:
    if not len(data):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    options: dict[str, Any] = {} if like is None else {"num_workers": like.num_workers, "collate_fn": like.collate_fn}

    def fetch(order: list[Tensor]) -> Iterator[Batch]:
        batches: Any = [rows.tolist() for rows in order]
        return map(read, DataLoader(data, batch_sampler=batches, generator=Generator(), **options))

    return Source(len(data), fetch)
