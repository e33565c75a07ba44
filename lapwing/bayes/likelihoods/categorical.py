"""Targets that are class numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, distributions

from lapwing.bayes.likelihoods.interface import Curved, counted
from lapwing.bayes.outputs import links
from lapwing.bayes.outputs.links import Link
from lapwing.bayes.outputs.spread import Spread


@final
@dataclass(frozen=True)
class Categorical(Curved):
    """Targets (n,) that are class numbers 0 … c − 1, with the softmax of outputs (n, c) as their probabilities.

    A network may have outputs of more axes, one class number for each pixel or token: `dim` is then the axis of the
    classes, and targets have the others. Targets of `ignore_index` do not count. Inside, classes come last.
    −log p is convex in the outputs, so B is its Hessian diag(π) − π πᵀ; no c × c matrix is made.

    >>> Categorical().log_prob(torch.zeros(2, 4).double(), torch.tensor([3, 1])).exp()
    tensor(0.0625, dtype=torch.float64)
    """

    dim: int = -1
    ignore_index: int = -100
    has_classes: ClassVar[bool] = True

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link but quadrature, which is for one output at a time."""
        return ("full probit", "probit", "monte carlo", "bridge", "bridge with norm")

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

    def targets_shape(self, outputs: torch.Size) -> torch.Size:
        """One class number per datum."""
        return outputs[:-1]

    def shaped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(len(targets), -1)

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """The probability that these outputs give to each target."""
        return outputs.softmax(1).gather(1, targets[:, None])[:, 0]

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """log p of each target."""
        return outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # (n, c)
        """The gradient of log p in the outputs, e_y − π."""
        residual = -outputs.softmax(1)
        return counted(residual.scatter_add(1, targets[:, None], torch.ones_like(residual)), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # (n, c)  # fmt: skip
        """The diagonal of the Hessian in the outputs, π (1 − π)."""
        probabilities = outputs.softmax(1)
        return counted(probabilities * (1 - probabilities), weights)

    def hessian_product(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """B times columns (n, c, k)."""
        probabilities = outputs.softmax(1)[:, :, None]
        return counted(probabilities * (columns - probabilities.mT @ columns), weights)

    def hessian_root(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """S times columns (n, c, k), with S Sᵀ = B."""
        return counted(softmax_root(outputs.softmax(1), columns), None if weights is None else weights.sqrt())

    def hessian_root_adjoint(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """Sᵀ times columns (n, c, k), Sᵀ = diag(√π) − √π πᵀ."""
        probabilities = outputs.softmax(1)[:, :, None]
        product = probabilities.sqrt() * (columns - probabilities.mT @ columns)
        return counted(product, None if weights is None else weights.sqrt())

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> distributions.Categorical:
        """The distribution of new labels."""
        flat = mean.reshape(-1, mean.shape[-1])
        logits = links.class_logits(link, flat, spread.reshaped(tuple(flat.shape))).reshape(mean.shape)
        return distributions.Categorical(logits=logits, validate_args=False)

    def probabilities(self, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The predictive probability of every class."""
        return self.predictive(link, mean, spread).probs

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A label for each uniform number."""
        return (uniform[..., None] > outputs.softmax(-1).cumsum(-1)[..., :-1]).sum(-1)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # (n,)
        """The entropy of the mean probabilities over draws less their mean entropy."""
        softmax = (mean + spread.deviations()).softmax(-1)
        average = distributions.Categorical(softmax.mean(0)).entropy()
        return (average - distributions.Categorical(softmax).entropy().mean(0)).clamp_min(0)


def softmax_root(probabilities: Tensor, columns: Tensor) -> Tensor:  # (..., c), (..., c, k) -> (..., c, k)
    """S times columns, where S Sᵀ = diag(π) − π πᵀ is the Hessian of the softmax: S = diag(√π) − π √πᵀ.

    No C × C matrix, no decomposition and no jitter; a column of standard normals becomes one of N(0, S Sᵀ).
    """
    root = probabilities.sqrt()
    return root[..., None] * columns - probabilities[..., None] * (root[..., None, :] @ columns)
