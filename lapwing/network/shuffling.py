"""Training data as batches in a seeded random order, whatever they came in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lapwing.network.batches import check_sampler


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Data that can be read in any order."""

    size: int
    fetch: Callable[[list[Tensor]], Iterator[tuple[Tensor, Tensor]]]  # lists of indices -> batches

    @staticmethod
    def of(data: Any) -> Source:
        """A pair of tensors or arrays, a list of batches, a Dataset, or a DataLoader, whose own order is not used."""
        if isinstance(data, Source):
            return data
        loader = data if isinstance(data, DataLoader) else None
        data = data.dataset if loader is not None else data
        if isinstance(data, IterableDataset):
            raise ValueError("an iterable data set has no order of its own: pass a list of its batches")
        if loader is not None:
            check_sampler(loader)
        if isinstance(data, TensorDataset) and len(data.tensors) == 2 and loader is None:
            data = tuple(data.tensors)
        if isinstance(data, list):
            data = tuple(torch.cat([torch.as_tensor(part) for part in parts]) for parts in zip(*data, strict=True))
        if isinstance(data, Dataset):
            return _of_dataset(data, loader)
        if not isinstance(data, tuple) or len(data) != 2:
            raise ValueError(
                f"cannot read data of type {type(data).__name__}: expected (inputs, targets), a Dataset, a DataLoader "
                "or a list of batches"
            )
        return _of_tensors(torch.as_tensor(data[0]), torch.as_tensor(data[1]))

    def shuffled(self, batch_size: int, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Every datum once, in a random order."""
        return self.fetch(list(torch.randperm(self.size, generator=generator).split(batch_size)))

    def side_by_side(self, batch_size: int, generators: list[Generator]) -> Iterator[tuple[Tensor, Tensor]]:
        """Every datum once for each generator, in a random order of its own: batches with an axis of these in front."""
        orders = [torch.randperm(self.size, generator=one).split(batch_size) for one in generators]
        parts = self.fetch([rows for step in zip(*orders, strict=True) for rows in step])
        for _ in orders[0]:
            inputs, targets = zip(*(next(parts) for _ in generators), strict=True)
            yield torch.stack(inputs), torch.stack(targets)

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every datum once, in its own order."""
        return self.fetch(list(torch.arange(self.size).split(batch_size)))


def _of_tensors(inputs: Tensor, targets: Tensor) -> Source:
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets: expected as many of each, and some")
    if not all(bool(part.isfinite().all()) for part in (inputs, targets) if part.is_floating_point()):
        raise ValueError("the data contain NaN or infinite values: remove or impute them first")
    return Source(len(inputs), lambda order: ((inputs[rows], targets[rows]) for rows in order))


def _of_dataset(data: Any, like: DataLoader | None) -> Source:
    if not len(data):
        raise ValueError("the data are empty: at least one pair of inputs and targets is needed")
    options: dict[str, Any] = {} if like is None else {"num_workers": like.num_workers, "collate_fn": like.collate_fn}

    def fetch(order: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        batches: Any = [rows.tolist() for rows in order]
        for batch in DataLoader(data, batch_sampler=batches, generator=Generator(), **options):
            inputs, targets = batch
            yield inputs, targets

    return Source(len(data), fetch)
