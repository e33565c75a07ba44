"""Likelihoods: what an observation says about the output it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

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

    `noise_std` broadcasts against the targets: a number, one per output (m,), one per datum (n, 1) or (n,) for
    targets of shape (n,), or one per target (n, m). With `per_output=True` a tuned noise has one value per output.

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
        try:
            return self.noise_std.expand(targets.shape).reshape(-1).pow(-2)
        except RuntimeError:
            raise ValueError(
                f"noise_std of shape {tuple(self.noise_std.shape)} does not fit targets of shape "
                f"{tuple(targets.shape)}: expected a number, one per output or one per datum"
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
            "use epistemic_variance, or give one noise_std per output"
        )


@final
@dataclass(frozen=True)
class Bernoulli:
    """Targets of 0 or 1 with a logit each: outputs and targets are (n,), or (n, m) for m labels a datum.

    Like every likelihood here, all values are sums over data, a datum of weight w counting w times; `hessian_*` are
    of −log p, which is convex in the outputs.

    >>> Bernoulli().log_prob(torch.zeros(3).double(), torch.tensor([0.0, 1.0, 1.0])).exp()
    tensor(0.1250, dtype=torch.float64)
    """

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        if targets.ndim not in (1, 2) or targets.numel() == 0 or targets.numel() != rows:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: Bernoulli() takes one target of 0 "
                "or 1 for each"
            )
        values = targets.double()
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(
                f"Bernoulli() takes targets of 0 and 1, got values from {float(values.min()):g} to "
                f"{float(values.max()):g}: recode them, or use Categorical() for class numbers"
            )
        return values

    def shaped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(targets.shape)

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """The probability that these outputs give to each target."""
        return (targets * outputs + (1 - targets) * -outputs).sigmoid()

    def log_prob(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # ()
        """log p(targets | outputs), summed over the data."""
        _check_shapes(outputs, targets, outputs.shape)
        return _counted(targets * logsigmoid(outputs) + (1 - targets) * logsigmoid(-outputs), weights).sum()

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs, y − σ."""
        return _counted(targets * (-outputs).sigmoid() - (1 - targets) * outputs.sigmoid(), weights)

    def hessian_diagonal(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The diagonal of the Hessian in the outputs, which is all of it: σ (1 − σ)."""
        return _counted(outputs.sigmoid() * (-outputs).sigmoid(), weights)

    def hessian_product(self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None) -> Tensor:
        """B times columns of shape (*outputs' shape, k)."""
        return self.hessian_diagonal(outputs, weights)[..., None] * columns

    def hessian_root(self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None) -> Tensor:
        """S times columns of shape (*outputs' shape, k), with S Sᵀ = B."""
        return self.hessian_diagonal(outputs, weights).sqrt()[..., None] * columns

    hessian_root_adjoint = hessian_root


@final
@dataclass(frozen=True)
class Categorical:
    """Targets (n,) that are class numbers 0 … c − 1, with the softmax of outputs (n, c) as their probabilities.

    >>> Categorical().log_prob(torch.zeros(2, 4).double(), torch.tensor([3, 1])).exp()
    tensor(0.0625, dtype=torch.float64)
    """

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,)
        """The class numbers of this many outputs, or an error."""
        if targets.ndim != 1 or len(targets) == 0 or rows % len(targets) or rows < 2 * len(targets):
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: Categorical() takes one class "
                "number per datum and at least two outputs for each, so that targets have shape (n,)"
            )
        classes, labels = rows // len(targets), targets.long()
        if bool((labels != targets).any()) or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(
                f"targets must be class numbers from 0 to {classes - 1}, one for each of {classes} outputs, got values "
                f"from {float(targets.min()):g} to {float(targets.max()):g}"
            )
        return labels

    def shaped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(len(targets), -1)

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """The probability that these outputs give to each target."""
        return outputs.softmax(1).gather(1, targets[:, None])[:, 0]

    def log_prob(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # ()
        """log p(targets | outputs), summed over the data."""
        _check_shapes(outputs, targets, outputs.shape[:1])
        return _counted(outputs.log_softmax(1).gather(1, targets[:, None])[:, 0], weights).sum()

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # (n, c)
        """The gradient of log p in the outputs, e_y − π."""
        residual = -outputs.softmax(1)
        return _counted(residual.scatter_add(1, targets[:, None], torch.ones_like(residual)), weights)

    def hessian_diagonal(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:  # (n, c)
        """The diagonal of the Hessian in the outputs, π (1 − π)."""
        probabilities = outputs.softmax(1)
        return _counted(probabilities * (1 - probabilities), weights)

    def hessian_product(self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None) -> Tensor:
        """B times columns (n, c, k), B = diag(π) − π πᵀ: no c × c matrix is made."""
        probabilities = outputs.softmax(1)[:, :, None]
        return _counted(probabilities * (columns - probabilities.mT @ columns), weights)

    def hessian_root(self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None) -> Tensor:
        """S times columns (n, c, k), with S Sᵀ = B."""
        return _counted(softmax_root(outputs.softmax(1), columns), None if weights is None else weights.sqrt())

    def hessian_root_adjoint(self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sᵀ times columns (n, c, k), Sᵀ = diag(√π) − √π πᵀ."""
        probabilities = outputs.softmax(1)[:, :, None]
        product = probabilities.sqrt() * (columns - probabilities.mT @ columns)
        return _counted(product, None if weights is None else weights.sqrt())


Curved = Bernoulli | Categorical  # likelihoods whose curvature depends on the outputs
Likelihood = Gaussian | Curved


def softmax_root(probabilities: Tensor, columns: Tensor) -> Tensor:  # (..., c), (..., c, k) -> (..., c, k)
    """S times columns, where S Sᵀ = diag(π) − π πᵀ is the Hessian of the softmax: S = diag(√π) − π √πᵀ.

    No C × C matrix, no decomposition and no jitter; a column of standard normals becomes one of N(0, S Sᵀ).
    """
    root = probabilities.sqrt()
    return root[..., None] * columns - probabilities[..., None] * (root[..., None, :] @ columns)


def _counted(values: Tensor, weights: Tensor | None) -> Tensor:
    return values if weights is None else weights.reshape(-1, *[1] * (values.ndim - 1)) * values


def _check_shapes(outputs: Tensor, targets: Tensor, expected: torch.Size) -> None:
    if targets.shape != expected:
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} need targets of shape {tuple(expected)}, "
            f"got {tuple(targets.shape)}"
        )
