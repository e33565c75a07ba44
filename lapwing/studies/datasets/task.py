"""The one form all data sets take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Inputs and targets for training and testing.

    Pictures are (n, channels, height, width) in [0, 1]; class labels are int64 (n,); regression targets are (n, 1).
    `classes` are the names of the classes, empty for regression.

    Parameters
    ----------
    name : str
        Of the task.
    train : tuple of Tensor
        Inputs and targets.
    test : tuple of Tensor
        Inputs and targets.
    classes : tuple of str
        Their names; none for regression.

    Examples
    --------
    >>> x = torch.zeros(3, 2)
    >>> Task("toy", (x, x[:, :1]), (x[:1], x[:1, :1])).first(train=2).train[0].shape
    torch.Size([2, 2])
    """

    name: str
    train: Pair
    test: Pair
    classes: tuple[str, ...] = ()

    def to(self, dtype: torch.dtype) -> Task:
        """The same task with inputs, and targets unless they are labels, of another dtype.

        >>> Task("toy", (torch.zeros(3, 2), torch.zeros(3).long()), (torch.ones(1, 2), torch.ones(1).long())).to(
        ...     torch.float64).train[0].dtype
        torch.float64
        """

        def convert(values: Tensor) -> Tensor:
            return values.to(dtype) if values.is_floating_point() else values

        train, test = ((convert(x), convert(y)) for x, y in (self.train, self.test))
        return replace(self, train=train, test=test)

    def first(self, train: int | None = None, test: int | None = None) -> Task:
        """The first rows only; None keeps all of them."""
        for wanted, (x, _), part in ((train, self.train, "training"), (test, self.test, "test")):
            if wanted is not None and not 0 <= wanted <= len(x):
                raise ValueError(f"{self.name} has {len(x)} {part} rows, so the first {wanted} cannot be taken")
        x, y = self.train
        new_x, new_y = self.test
        return replace(self, train=(x[:train], y[:train]), test=(new_x[:test], new_y[:test]))

    def held_out(self, size: int, *, seed: int = 0) -> tuple[Task, Pair]:
        """The task without `size` training rows chosen by the seed, and those rows, for tuning and early stopping."""
        x, y = self.train
        if not 0 < size < len(x):
            raise ValueError(f"of the {len(x)} training rows of {self.name}, {size} cannot be held out")
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        kept, held = order[size:].sort().values, order[:size].sort().values
        return replace(self, train=(x[kept], y[kept])), (x[held], y[held])

    def standardised(self) -> tuple[Task, Tensor, Tensor]:
        """The task with inputs, and regression targets, of mean 0 and standard deviation 1 over the training rows.

        With it come the targets' own mean and standard deviation, (1, outputs): a density in standardised units is one
        in the original ones after subtracting log std. Labels stay, with 0 and 1. Constant columns are centred only.

        >>> x = torch.tensor([[0.0, 5.0], [2.0, 5.0]])
        >>> task, mean, std = Task("toy", (x, x[:, :1]), (x, x[:, :1])).standardised()
        >>> task.test[0].tolist(), mean.item(), round(std.item(), 4)
        ([[-1.0, 0.0], [1.0, 0.0]], 1.0, 1.0)
        """
        (x, y), (new_x, new_y) = self.train, self.test
        mean, std = _moments(x)
        train_x, test_x = (x - mean) / std, (new_x - mean) / std
        if not y.is_floating_point():
            moments = torch.zeros(1, 1, dtype=x.dtype), torch.ones(1, 1, dtype=x.dtype)
            return replace(self, train=(train_x, y), test=(test_x, new_y)), *moments
        y_mean, y_std = _moments(y)
        scaled = replace(self, train=(train_x, (y - y_mean) / y_std), test=(test_x, (new_y - y_mean) / y_std))
        return scaled, y_mean, y_std


def split_by_seed(name: str, x: Tensor, y: Tensor, seed: int, test_share: float, classes: tuple[str, ...] = ()) -> Task:
    """A task whose test rows are a share of all, chosen by the seed."""
    if not 0 < test_share < 1:
        raise ValueError(f"test_share lies strictly between 0 and 1, not {test_share}")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = int(len(x) * test_share)
    return Task(name, (x[order[cut:]], y[order[cut:]]), (x[order[:cut]], y[order[:cut]]), classes)


def _moments(values: Tensor) -> Pair:
    std = values.std(0, correction=0, keepdim=True)
    return values.mean(0, keepdim=True), torch.where(std > 0, std, 1)
