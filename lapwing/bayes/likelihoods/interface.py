"""What a likelihood that is not Gaussian must say: adding one is writing one class like this, in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from lapwing.bayes.outputs.links import Link
from lapwing.bayes.outputs.spread import Spread

NO_NOISE = "class labels have no aleatoric variance: use entropy − mutual_information"


class Curved(ABC):
    """A likelihood whose curvature depends on the outputs: (n,), or (n, c) for c outputs a datum.

    `log_prob` and the derivatives are sums over data, a datum of weight w counting w times. `hessian_*` are of −log p
    in the outputs, or what stands for it where that is not convex: B, positive semi-definite, and S with S Sᵀ = B. By
    default B is diagonal. `targets` are passed to them for the sake of likelihoods whose B depends on these.
    """

    curvature: ClassVar[str] = "Hessian"  # what B is, for the diagnostics
    has_classes: ClassVar[bool] = False  # whether outputs are logits: they have probabilities, and a temperature

    @property
    @abstractmethod
    def links(self) -> tuple[Link, ...]:
        """How Gaussian outputs can become a prediction, the default first."""

    @abstractmethod
    def checked(self, targets: Tensor, rows: int) -> Tensor:
        """The targets of this many outputs, or an error."""

    @abstractmethod
    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # targets' shape
        """log p of each target."""

    @abstractmethod
    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""

    @abstractmethod
    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:  # outputs' shape
        """The diagonal of B."""

    @abstractmethod
    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> Distribution:
        """The distribution of a new observation whose outputs are Gaussian."""

    @abstractmethod
    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape, that of the targets
        """An observation for each uniform number, of outputs of shape (draws, *outputs)."""

    @abstractmethod
    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # targets' shape
        """What a new observation would say about its outputs, in nats."""

    def targets_shape(self, outputs: torch.Size) -> torch.Size:
        """The shape of the targets of outputs of a shape."""
        return outputs

    def shaped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(targets.shape)

    def observed(self, values: Tensor) -> Tensor:
        """Those of the outputs, or of their variances, that a prediction shows: what an observation is centred at."""
        return values

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """The variance of an observation around its output, or why there is none."""
        return NO_NOISE

    def probabilities(self, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # noqa: ARG002
        """The predictive probability of every class."""
        raise ValueError(f"{type(self).__name__} has no classes, so no probabilities: use log_prob or distribution")

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor | None:  # noqa: ARG002
        """The probability that these outputs give to each target, where targets are labels."""
        return None

    def log_prob(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # ()
        """log p(targets | outputs), summed over the data."""
        check_shapes(outputs, targets, self.targets_shape(outputs.shape))
        return counted(self.log_density(outputs, targets), weights).sum()

    def hessian_product(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """B times columns of shape (*outputs' shape, k)."""
        return self.hessian_diagonal(outputs, weights, targets)[..., None] * columns

    def hessian_root(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """S times columns of shape (*outputs' shape, k), with S Sᵀ = B."""
        return self.hessian_diagonal(outputs, weights, targets).sqrt()[..., None] * columns

    def hessian_root_adjoint(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """Sᵀ times columns of shape (*outputs' shape, k)."""
        return self.hessian_root(outputs, columns, weights, targets)


def counted(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values of each datum times its weight."""
    return values if weights is None else weights.reshape(-1, *[1] * (values.ndim - 1)) * values


def check_shapes(outputs: Tensor, targets: Tensor, expected: torch.Size) -> None:
    """Refuse targets that would only broadcast against outputs."""
    if targets.shape != expected:
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} need targets of shape {tuple(expected)}, "
            f"got {tuple(targets.shape)}"
        )


def check_one_each(name: str, targets: Tensor, rows: int, what: str) -> Tensor:
    """Targets in double precision, one for every output."""
    if targets.ndim not in (1, 2) or targets.numel() == 0 or targets.numel() != rows:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: {name} takes {what} for each"
        )
    return targets.double()
