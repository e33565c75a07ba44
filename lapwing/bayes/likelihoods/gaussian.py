"""Gaussian noise, given or tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg.operators import as_tensor


@final
@dataclass(frozen=True)
class Gamma:
    """A Gamma hyperprior on a precision τ, as a density over log τ: shape · log τ − rate · τ + constant."""

    shape: float = 1e-6
    rate: float = 1e-6

    def log_density(self, precision: Tensor) -> Tensor:
        """The log density over the log precision, without its constant."""
        return self.shape * precision.log() - self.rate * precision


@final
@dataclass(frozen=True, eq=False)
class Gaussian:
    """Gaussian noise with a known standard deviation, or one tuned with the prior where none is given.

    `noise_std` is a number, one per output (m,), one per datum (n,) or (n, 1), or one per target (n, m); m numbers are
    one per output where there are as many data. One per datum is in the order of the data. With `per_output=True` a
    tuned noise has one value per output.

    >>> Gaussian(0.5).noise_std.item()
    0.5
    """

    noise_std: Any = None
    per_output: bool = False
    hyperprior: Gamma | None = None

    def __post_init__(self) -> None:
        if self.noise_std is None:
            return
        noise_std = as_tensor(self.noise_std).double()
        if not bool((noise_std.isfinite() & (noise_std > 0)).all()):
            raise ValueError(
                f"noise_std must be positive and finite, got {self.noise_std!r}; leave it out to have it tuned"
            )
        object.__setattr__(self, "noise_std", noise_std)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        if targets.ndim not in (1, 2) or targets.numel() == 0:
            raise ValueError(f"targets must have shape (n,) or (n, m) with n ≥ 1, got {tuple(targets.shape)}")
        if targets.numel() != rows:
            raise ValueError(
                f"features with {rows} rows do not fit targets of shape {tuple(targets.shape)}: expected "
                f"{targets.numel()} rows, one for each target"
            )
        self.row_precision(targets)
        return targets.double()

    def row_precision(self, targets: Tensor) -> Tensor:  # (n * m,)
        """The precision of every target at the given noise, or at unit noise where it is tuned."""
        if self.noise_std is None:
            return torch.ones(targets.numel(), dtype=torch.float64)
        return self.std_of(targets.shape).reshape(-1).pow(-2)

    def std_of(self, shape: torch.Size) -> Tensor:  # of this shape
        """The given noise of targets of shape (n,) or (n, m)."""
        std, (n, *outputs) = self.noise_std, shape
        if std.shape == (n,) and outputs and outputs != [n]:
            std = std[:, None]
        try:
            return std.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"noise_std of shape {tuple(self.noise_std.shape)} does not fit targets of shape {tuple(shape)}: "
                "expected a number, one per output or one per datum"
            ) from None

    def row_groups(self, targets: Tensor) -> Tensor:  # (n * m,)
        """The noise group of every target: rows of one group share one tuned precision."""
        if self.noise_std is not None or not self.per_output or targets.ndim == 1:
            return torch.zeros(targets.numel(), dtype=torch.long)
        return torch.arange(targets.shape[1]).repeat(targets.shape[0])

    def variance_at(self, outputs: int | None) -> Tensor | str:  # () or (m,)
        """The noise variance at new inputs of a model with m outputs, or why it is not known."""
        if self.noise_std is None:
            return "the noise of this likelihood has not been tuned: use the likelihood of a posterior"
        if self.noise_std.ndim == 0 or self.noise_std.shape == (outputs,):
            return self.noise_std.square()
        return (
            "the noise was given per datum, so it is not known at new inputs: "
            "use epistemic_variance, or prediction.with_noise(noise_std), validation=(inputs, targets, noise_std)"
        )
