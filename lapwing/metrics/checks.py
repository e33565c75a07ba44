"""What every metric asks of its inputs; errors say what was given, what was expected and what to do."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Values = Tensor | np.ndarray

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def tensor(values: Values | float) -> Tensor:
    """The values as a tensor; an array is copied, since torch takes neither negative strides nor read-only memory."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.array(values))


def check_numbers(values: Values, name: str, *, dims: int | None = None) -> Tensor:
    """The values in float64 on the CPU; refuses the empty, NaN, the complex and the wrong number of axes."""
    given = tensor(values).detach()
    if given.is_complex():
        raise ValueError(f"{name} must be real numbers, not {given.dtype}")
    if dims is not None and given.ndim != dims:
        axes = "1 axis" if dims == 1 else f"{dims} axes"
        raise ValueError(f"{name} must have {axes}, not the shape {tuple(given.shape)}")
    if given.numel() == 0:
        raise ValueError(f"{name} is empty (shape {tuple(given.shape)}): there is nothing to average")
    numbers = given.cpu().double().contiguous()
    if (bad := int(numbers.isnan().sum())) > 0:
        raise ValueError(f"{name} has {bad} NaN among its {numbers.numel()} values: find where the prediction failed")
    return numbers


def check_finite(values: Values, name: str, *, dims: int | None = None) -> Tensor:
    """As check_numbers, and refuses infinity too."""
    numbers = check_numbers(values, name, dims=dims)
    if (bad := int(numbers.isinf().sum())) > 0:
        raise ValueError(f"{name} has {bad} infinite values among {numbers.numel()}: find where the prediction failed")
    return numbers


def check_probs(probs: Values, name: str = "probs", *, dims: int = 2) -> Tensor:
    """Probabilities of classes on the last axis, in float64: in [0, 1], each row summing to one."""
    given = tensor(probs)
    if given.ndim == 1 and dims == 2:
        raise ValueError(
            f"{name} must be (n, c), not the shape {tuple(given.shape)}; for two classes and the probability p of the "
            "second, pass torch.stack([1 - p, p], -1)"
        )
    numbers = check_finite(given, name, dims=dims)
    precision = torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0
    slack = max(1e-4, 10 * precision)
    low, high = float(numbers.min()), float(numbers.max())
    if low < -slack or high > 1 + slack:
        raise ValueError(f"{name} lie between {low:.4g} and {high:.4g}, not in [0, 1]: pass them through softmax first")
    sums = numbers.sum(-1)
    if (off := float((sums - 1).abs().max())) > slack:
        raise ValueError(
            f"{name} must sum to one over the last axis, but a sum is off by {off:.3g} (shape {tuple(numbers.shape)}); "
            "pass probabilities, not logits or log-probabilities, with the classes on the last axis"
        )
    return numbers.clamp(0, 1)


def check_labels(labels: Values, rows: int, classes: int) -> Tensor:
    """Class labels as int64: (rows,), from 0 to classes − 1."""
    given = tensor(labels).detach().cpu()
    if given.dtype not in INTEGERS:
        raise ValueError(f"labels must be integers from 0 to {classes - 1}, not {given.dtype}: pass labels.long()")
    if given.shape != (rows,):
        raise ValueError(
            f"labels must have the shape ({rows},), one for each row of probs, not {tuple(given.shape)}; "
            "turn one-hot rows into labels by argmax(-1)"
        )
    whole = given.long()
    low, high = int(whole.min()), int(whole.max())
    if low < 0 or high >= classes:
        raise ValueError(f"labels run from {low} to {high}, but {classes} classes take 0 to {classes - 1}")
    return whole


def check_same_shape(first: Tensor, second: Tensor, names: str) -> None:
    """Refuses shapes that differ, since broadcasting (n,) with (n, 1) would compare everything with everything."""
    if first.shape != second.shape:
        raise ValueError(f"{names} must have one shape, not {tuple(first.shape)} and {tuple(second.shape)}")


def check_count(count: int, name: str, least: int = 1) -> None:
    """Refuses counts below the least that makes sense."""
    if count < least:
        raise ValueError(f"{name} must be at least {least}, not {count}")


def check_level(level: float) -> None:
    """Refuses levels that are not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"a level lies strictly between 0 and 1, such as 0.95, not {level}")
