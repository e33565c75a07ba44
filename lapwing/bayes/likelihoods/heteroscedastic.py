"""Gaussian noise whose size is an output too."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log, pi
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from lapwing.bayes.likelihoods import quadrature
from lapwing.bayes.likelihoods.expectation import Expectation
from lapwing.bayes.likelihoods.interface import Likelihood, counted
from lapwing.bayes.likelihoods.spread import Link, Spread

POINTS = 401
FEW, REACH = 16, 9.0  # components that are averaged over one by one, each so many standard deviations far
SMALLEST = 1e-300


@final
@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """Numbers with a mean and a log variance as outputs: (n, 2) for targets (n,), or (n, 2m) for (n, m), means first.

    −log p is not convex in the log variance, so B is the Fisher information, diag(1 / variance) for the means and ½
    for the log variances; the diagnostics say so. Where a network gives another function of the variance, take the
    logarithm inside it. Predictions show the means; their variance, epistemic and aleatoric, is exact for Gaussian
    outputs, and densities are by quadrature.

    >>> outputs = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
    >>> HeteroscedasticGaussian().log_prob(outputs, torch.tensor([1.0, 0.0]).double())  # −log 2π − 2 / 2
    tensor(-2.8379, dtype=torch.float64)
    """

    curvature: ClassVar[str] = "Fisher information"
    adds_noise: ClassVar[bool] = True
    asks: ClassVar[tuple[str, ...]] = (
        "mean", "std", "interval(0.9)", "epistemic_variance", "novelty", "log_prob(y)",
    )  # fmt: skip

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature alone: it is exact."""
        return ("quadrature",)

    @property
    def log_concave(self) -> bool:
        """No: −log p is not convex in the log variance."""
        return False

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        if targets.ndim not in (1, 2) or targets.numel() == 0 or 2 * targets.numel() != rows:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: HeteroscedasticGaussian() takes "
                "two outputs for each target, all means of a datum and then all log variances"
            )
        return (targets[:, 0] if targets.shape[1:] == (1,) else targets).double()

    def targets_shape(self, outputs: torch.Size) -> torch.Size:
        """Half as many targets as outputs."""
        if len(outputs) < 2 or outputs[-1] % 2:
            raise ValueError(
                f"outputs of shape {tuple(outputs)} cannot be means and log variances: HeteroscedasticGaussian() takes "
                "(n, 2m), the m means of a datum and then their m log variances"
            )
        return outputs[:-1] if outputs[-1] == 2 else torch.Size((*outputs[:-1], outputs[-1] // 2))

    def reshape_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(len(targets), -1)

    def described(self, outputs: Tensor) -> str:
        """How many numbers an input has."""
        return super().described(self.observed(outputs))

    def observed(self, values: Tensor) -> Tensor:
        """The means."""
        return _halves(values)[0]

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # targets' shape
        """log p of each target."""
        mean, log_variance = _halves(outputs)
        return -0.5 * ((targets - mean).square() * (-log_variance).exp() + log_variance + log(2 * pi))

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs: r / variance for a residual r, and ½ (r² / variance − 1)."""
        mean, log_variance = _halves(outputs)
        scaled = (targets - mean) * (-log_variance).exp()
        return counted(_joined(scaled, 0.5 * ((targets - mean) * scaled - 1), outputs), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # outputs' shape  # fmt: skip
        """The Fisher information in the outputs, which is diagonal: 1 / variance, and ½."""
        _, log_variance = _halves(outputs)
        return counted(_joined((-log_variance).exp(), torch.full_like(log_variance, 0.5), outputs), weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), in closed form; the curvature is the Hessian's.

        Times e^−s a Gaussian is one whose mean has moved by minus the covariance with the log variance s.
        """
        (centre, log_variance), half = _halves(mean), mean.shape[-1] // 2
        own, other = _halves(covariance.diagonal(dim1=-2, dim2=-1))
        shared = covariance.diagonal(offset=half, dim1=-2, dim2=-1).reshape(centre.shape)
        precision = (0.5 * other - log_variance).exp()
        residual = targets - centre + shared
        slope, square = precision * residual, precision * (residual.square() + own)
        curvature = torch.diag_embed(_joined(precision, 0.5 * square, mean))
        cross = slope.reshape(len(mean), half)
        curvature += torch.diag_embed(cross, offset=half) + torch.diag_embed(cross, offset=-half)
        return Expectation(
            -0.5 * (square + log_variance + log(2 * pi)), _joined(slope, 0.5 * (square - 1), mean), curvature
        )

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # targets' shape
        """The mean of the variance, e^(s + v/2) for a log variance s that is uncertain by v."""
        return (_halves(mean)[1] + 0.5 * _halves(spread.variance)[1]).exp()

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> NormalMixture:  # noqa: ARG002
        """The distribution of new observations, every one for itself.

        Given its log variance s an observation is Gaussian, with the uncertainty of its mean that s leaves: a mixture
        over nodes of s.
        """
        if spread.covariance is None:
            raise ValueError("the covariance of mean and log variance is needed, which is not known here")
        (centre, log_variance), (own, other) = _halves(mean.double()), _halves(spread.variance.double())
        half = mean.shape[-1] // 2
        shared = spread.covariance.double().diagonal(offset=half, dim1=-2, dim2=-1).reshape(centre.shape)
        slope = torch.where(other > 0, shared / torch.where(other > 0, other, 1), 0)
        z, weights = quadrature.nodes()
        away = other.sqrt()[..., None] * z
        left = (own - slope * shared).clamp_min(0)
        variance = (left[..., None] + (log_variance[..., None] + away).exp()).clamp_min(SMALLEST)
        return NormalMixture(centre[..., None] + slope[..., None] * away, variance.sqrt(), weights)

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """An observation for each uniform number."""
        mean, log_variance = _halves(outputs)
        return mean + (0.5 * log_variance).exp() * torch.special.ndtri(uniform.double()).to(mean)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # targets' shape
        """The entropy of an observation less its mean entropy at known outputs, ½ log 2πe + ½ s."""
        within = 0.5 * (log(2 * pi * e) + _halves(mean)[1])
        return (self.predictive("quadrature", mean, spread).entropy().to(mean) - within).clamp_min(0)


@final
class NormalMixture(MixtureSameFamily):
    """A mixture of normal distributions, with quantiles and entropy beside what torch knows of it."""

    def __init__(self, means: Tensor, stds: Tensor, weights: Tensor) -> None:
        chosen = Categorical(weights.expand(means.shape), validate_args=False)
        super().__init__(chosen, Normal(means, stds, validate_args=False), validate_args=False)

    def icdf(self, value: Tensor) -> Tensor:
        """The value at a level of cumulative probability: between the least and the largest of the components."""
        level = torch.as_tensor(value, dtype=torch.float64)
        parts: Any = self.component_distribution
        ends = parts.loc + parts.scale * torch.special.ndtri(level)
        low, high = ends.min(-1).values, ends.max(-1).values
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    def entropy(self) -> Tensor:
        """In nats, by the trapezoidal rule: over each of a few components, or of many on one axis.

        That axis is fine in the middle and coarse in the tails, which components far apart would fall through.
        """
        parts: Any = self.component_distribution
        if parts.loc.shape[-1] <= FEW:
            return self._by_component()
        centre, narrow = self.mean, parts.scale.median(-1).values
        reach = ((parts.loc - centre[..., None]).abs() + 9 * parts.scale).max(-1).values
        end = (reach / narrow).asinh()
        total = torch.zeros_like(centre)
        for share in torch.linspace(-1, 1, POINTS, dtype=torch.float64).tolist():
            at = self.log_prob(centre + narrow * (share * end).sinh())
            total = total - torch.where(at > -700, at.exp() * at, 0) * narrow * (share * end).cosh()
        return total * end * 2 / (POINTS - 1)

    def _by_component(self) -> Tensor:
        """−Σ w E log p, the mean over each component for itself."""
        parts: Any = self.component_distribution
        weights, step = self.mixture_distribution.probs, 2 * REACH / (POINTS - 1)
        wide = NormalMixture(
            parts.loc.double()[..., None, :], parts.scale.double()[..., None, :], weights[..., None, :]
        )
        total = torch.zeros_like(parts.loc, dtype=torch.float64)
        for z in torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64):
            share = step * torch.exp(-0.5 * z.square()) / (2 * pi) ** 0.5
            total = total - share * wide.log_prob(parts.loc + parts.scale * z)
        return (weights * total).sum(-1)


def _halves(outputs: Tensor) -> tuple[Tensor, Tensor]:  # (..., 2m) -> twice (..., m), or (...) where m is one
    first, second = outputs.unflatten(-1, (2, -1)).unbind(-2)
    return (first[..., 0], second[..., 0]) if outputs.shape[-1] == 2 else (first, second)


def _joined(first: Tensor, second: Tensor, like: Tensor) -> Tensor:  # the inverse of `_halves`
    return torch.stack([first, second], dim=-1 if like.shape[-1] == 2 else -2).reshape(like.shape)
