"""Data as ordered, repeatable batches of inputs and targets, whatever they came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

BATCH_SIZE = 128


@final
@dataclass(frozen=True, eq=False)
class Batches:
    """Pairs of inputs and targets in a fixed order, the same at every pass."""

    source: Sequence[tuple[Tensor, Tensor]] | DataLoader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.source:
            yield _pair(batch)

    @property
    def targets(self) -> Tensor:
        """All targets, in order."""
        return torch.cat([targets for _, targets in self])


def as_batches(data: Any, batch_size: int | None = None) -> Batches:
    """Batches of a pair of tensors, a Dataset, a DataLoader or a list of pairs.

    A DataLoader is read in the order of its data set, whatever its sampler does. Data that differ from one pass to
    the next, as with augmentation, are refused: the same datum would count as many.
    """
    batches = Batches(_source(data, batch_size or BATCH_SIZE))
    first, again = next(iter(batches), None), next(iter(batches), None)
    if first is None or again is None or not len(first[0]):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    if not all(bool(part.isfinite().all()) for part in first if part.is_floating_point()):
        raise ValueError("the data contain NaN or infinite values: remove or impute them first")
    if not all(torch.equal(one, other) for one, other in zip(first, again, strict=True)):
        raise ValueError(
            "two passes over the data differ: turn augmentation and random transforms off, the posterior needs the "
            "same data at every pass"
        )
    return batches


def _source(data: Any, batch_size: int) -> Sequence[tuple[Tensor, Tensor]] | DataLoader:
    if isinstance(data, Batches):
        return data.source
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise ValueError("an iterable data set has no order of its own: pass a list of its batches")
        return _ordered(data.dataset, data.batch_size or batch_size, data)
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
