"""What a Gaussian linear model needs to remember of its data: everything about them that the posterior uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, Product
from lapwing.linalg.spectral import Side, Spectrum, decompose


@final
@dataclass(frozen=True, eq=False)
class Statistics:
    """One noise group of the data, compressed by the spectrum of its scaled features G = U diag(√s) Vᵀ.

    Features carry the prior's scale and the data's weights, not the precisions being tuned, so these numbers
    serve every precision.
    """

    spectrum: Spectrum
    targets: Tensor  # (rank,), Uᵀ y
    remainder: float  # ‖y − U Uᵀ y‖²
    noise: Tensor  # (rank, draws), Uᵀ ξ
    count: float  # observations, weights included
    log_weight: float  # ½ Σ log of the precisions given per row


@final
@dataclass(frozen=True, eq=False)
class Whitened:
    """A posterior in coordinates where the prior is standard normal: precision I + V diag(k) Vᵀ."""

    std: Tensor  # (d,), the prior's standard deviations: weights = std · whitened weights
    spectrum: Spectrum  # V and k
    targets: Tensor  # (rank,), in units of the noise
    noise: Tensor  # (rank, draws)
    remainder: float  # squared targets that no weights can fit, in units of the noise

    @property
    def mean(self) -> Tensor:  # (d,)
        """The posterior mean of the weights."""
        k = self.spectrum.values
        return self.std * (self.spectrum.vectors @ (k.sqrt() * self.targets / (1 + k)))

    def deviations(self, prior_noise: Tensor) -> Tensor:  # (d, draws)
        """Draws minus their mean: the minimiser of ½‖ξ − G z‖² + ½‖z − θ̃‖², θ̃ the standard normals given."""
        v, k = self.spectrum.vectors, self.spectrum.values[:, None]
        pull = (k.sqrt() * self.noise - k * (v.mT @ prior_noise)) / (1 + k)
        return self.std[:, None] * (prior_noise + v @ pull)

    def root(self, normals: Tensor) -> Tensor:  # (d, k) -> (d, k)
        """Σ^½ times columns: fresh draws without the data."""
        v, k = self.spectrum.vectors, self.spectrum.values[:, None]
        return self.std[:, None] * (normals + v @ (((1 + k).rsqrt() - 1) * (v.mT @ normals)))

    def covariance(self) -> Tensor:  # (d, d)
        """The posterior covariance, dense."""
        v, k = self.spectrum.vectors, self.spectrum.values
        whitened = torch.eye(len(v), dtype=v.dtype) - (v * (k / (1 + k))) @ v.mT
        return self.std[:, None] * (whitened if not self.spectrum.complete else (v / (1 + k)) @ v.mT) * self.std


def summarise(
    model: LinearModel, prior: DiagonalPrior, *, side: Side | None, noise: Noise, draws: int
) -> tuple[Statistics, ...]:
    """The statistics of each noise group of a model: one decomposition and two products each."""
    groups = model.likelihood.row_groups(model.targets)
    return tuple(
        _of_rows(model, prior, None if int(groups.max()) == 0 else groups == group, side, noise, draws)
        for group in range(int(groups.max()) + 1)
    )


def _of_rows(
    model: LinearModel, prior: DiagonalPrior, rows: Tensor | None, side: Side | None, noise: Noise, draws: int
) -> Statistics:
    given, counts = model.likelihood.row_precision(model.targets), model.row_counts
    targets, normals = (
        model.targets.reshape(-1),
        Noise(noise.seed, DATA).rows(0, model.targets.numel(), draws),
    )
    root = (counts * given).sqrt()
    scaled, targets = scaled_features(model.features, root, prior.scale), root * targets
    if rows is not None:
        scaled = Dense(scaled.dense()[rows])
        given, counts, targets, normals = given[rows], counts[rows], targets[rows], normals[rows]
    return project(scaled, decompose(scaled, side), targets, normals, counts, given)


def project(
    scaled: LinearOperator,
    spectrum: Spectrum,
    targets: Tensor,
    normals: Tensor,
    counts: Tensor,
    given: Tensor,
) -> Statistics:
    """Targets and noise seen from a spectrum of the scaled features: one product with Gᵀ and one with G."""
    both = spectrum.left(scaled, torch.cat([targets[:, None], normals], dim=1))
    outside = targets[:, None] - spectrum.left_adjoint(scaled, both[:, :1])
    remainder, log_weight = float(outside.square().sum()), float(0.5 * (counts * given.log()).sum())
    return Statistics(spectrum, both[:, 0], remainder, both[:, 1:], float(counts.sum()), log_weight)


def scaled_features(features: LinearOperator, root: Tensor, scale: Tensor) -> LinearOperator:
    """diag(root) Φ diag(scale), leaving out factors that are one."""
    if not bool((scale == 1).all()):
        features = Product(features, Diagonal(scale.to(features.like)))
    if not bool((root == 1).all()):
        features = Product(Diagonal(root.to(features.like)), features)
    return features


def whiten(statistics: tuple[Statistics, ...], prior: DiagonalPrior, noise_precision: Tensor) -> Whitened:
    """The posterior at given precisions.

    With one precision for all weights and one noise, the spectrum is only rescaled; otherwise the compressed
    rows are decomposed again. The data are not touched.
    """
    remainder = sum(float(b) * s.remainder for s, b in zip(statistics, noise_precision, strict=True))
    if len(statistics) == 1 and len(prior.precision) == 1:
        (only,) = statistics
        spectrum = Spectrum(only.spectrum.vectors, only.spectrum.values * (noise_precision / prior.precision))
        return Whitened(prior.std, spectrum, noise_precision.sqrt() * only.targets, only.noise, remainder)
    rows, targets, noise = compressed(statistics, noise_precision)
    whitened = Dense(rows * prior.precision.rsqrt()[prior.group_of])
    spectrum = decompose(whitened)
    seen = project(whitened, spectrum, targets, noise, torch.ones_like(targets), torch.ones_like(targets))
    return Whitened(prior.std, spectrum, seen.targets, seen.noise, remainder + seen.remainder)


def compressed(statistics: tuple[Statistics, ...], noise_precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets and noise of a small model with the same posterior, the rows in units of the noise."""
    roots = noise_precision.sqrt()
    rows = torch.cat([root * s.spectrum.rows() for s, root in zip(statistics, roots, strict=True)])
    targets = torch.cat([root * s.targets for s, root in zip(statistics, roots, strict=True)])
    return rows, targets, torch.cat([s.noise for s in statistics])
