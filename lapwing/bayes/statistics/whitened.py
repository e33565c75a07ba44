"""A posterior at given precisions, from statistics alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics.statistics import Statistics, compressed, project
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import BLOCK_ELEMENTS, Dense, LinearOperator, row_blocks
from lapwing.linalg.spectral import Spectrum, decompose_whitened
from lapwing.runtime.memory import available_bytes

AT_ONCE = 64  # directions, or rows, of a projection


@final
@dataclass(frozen=True, eq=False)
class Whitened:
    """A posterior in coordinates where the prior is standard normal: precision I + V diag(k) Vᵀ."""

    std: Tensor  # (d,), the prior's standard deviations: weights = std · whitened weights
    statistics: Statistics  # in units of the noise and the prior: V, k, Uᵀy, Uᵀξ, UᵀGθ̃

    @property
    def values(self) -> Tensor:  # (rank,)
        """k, how many times the prior's precision the data add in each direction."""
        return self.statistics.values

    @property
    def exact(self) -> bool:
        """Whether variances have a closed form, instead of coming from draws."""
        return self.statistics.basis.is_closed_form

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """Σ f(k) over all directions."""
        return self.statistics.trace_of(function)

    @property
    def vectors(self) -> Tensor:  # (d, rank)
        """V, where it is stored."""
        return self.spectrum.vectors

    @property
    def spectrum(self) -> Spectrum:
        """V by its products, and the eigenvalues of the data before they were rescaled."""
        return self.statistics.basis.spectrum()

    @property
    def mean(self) -> Tensor:  # (d,)
        """The posterior mean of the weights."""
        k = self.values
        return self.std * self.statistics.basis.expand((k.sqrt() * self.statistics.targets / (1 + k))[:, None])[:, 0]

    def pull(self, ratio: float = 1.0) -> Tensor:  # (rank, draws)
        """What the data add to each prior draw, in the basis, with the noise precision `ratio` times larger."""
        k, s = ratio * self.values[:, None], self.statistics
        added = k.abs().sqrt() * (s.noise - ratio**0.5 * s.prior_noise) / (1 + k)
        if not bool((k < 0).any()):
            return added
        widened = ((1 + k).rsqrt() - 1) * ratio**0.5 * s.prior_noise / k.abs().sqrt()  # Vᵀz = (1 + k)^-½ Vᵀθ̃
        return torch.where(k < 0, widened, added)

    def deviations(self, prior_noise: Tensor) -> Tensor:  # (d, draws)
        """Draws minus their mean: the minimiser of ½‖ξ − G z‖² + ½‖z − θ̃‖², θ̃ the standard normals given."""
        return self.std[:, None] * (prior_noise + self.statistics.basis.expand(self.pull()))

    def root(self, normals: Tensor) -> Tensor:  # (d, k) -> (d, k)
        """Σ^½ times columns: fresh draws without the data."""
        basis, k = self.spectrum, self.values[:, None]
        return self.std[:, None] * (normals + basis.expand(((1 + k).rsqrt() - 1) * basis.coordinates(normals.mT).mT))

    def covariance(self) -> Tensor:  # (d, d)
        """The posterior covariance, dense."""
        v, k = self.vectors, self.values
        if v.shape[0] == v.shape[1]:
            return self.std[:, None] * ((v / (1 + k)) @ v.mT) * self.std
        return self.std[:, None] * (torch.eye(len(v), dtype=v.dtype) - (v * (k / (1 + k))) @ v.mT) * self.std

    def covariance_times(self, rows: Tensor) -> Tensor:  # (r, d) -> (d, r)
        """The posterior covariance times rows."""
        basis, k, scaled = self.spectrum, self.values, rows * self.std
        inside = (k / (1 + k)) * basis.coordinates(scaled)
        return self.std[:, None] * (scaled.mT - basis.expand(inside.mT))

    def project(self, features: LinearOperator) -> Tensor:  # (rows, rank)
        """Features times std · V: by blocks of rows, or of columns where V is a Krylov space."""
        rank, d = len(self.values), features.shape[1]
        width = max(1, min(AT_ONCE, int(available_bytes() / 3 / (24 * d))))  # three copies in double
        if self.exact:
            rows = row_blocks(features, max(BLOCK_ELEMENTS, width * d))
            return torch.cat([self.spectrum.coordinates(block.double() * self.std) for block in rows])
        blocks = [torch.zeros(features.shape[0], 0, dtype=torch.float64)]
        for start in range(0, rank, width):
            units = torch.zeros(rank, min(width, rank - start), dtype=torch.float64)
            units[start : start + width].fill_diagonal_(1)
            columns = self.std[:, None] * self.statistics.basis.expand(units)
            blocks.append((features @ columns.to(features.like)).double())
        return torch.cat(blocks, dim=1)


def whiten(
    statistics: tuple[Statistics, ...], prior: DiagonalPrior, noise_precision: Tensor, prior_noise: Tensor
) -> Whitened:
    """The posterior at given precisions; `prior_noise` (d, draws) are the standard normals θ̃.

    With one precision for all weights and one noise, the spectrum is only rescaled; otherwise the compressed
    rows are decomposed again. The data are not touched.
    """
    log_weight = sum(
        s.log_weight + 0.5 * s.count * float(b.log()) for s, b in zip(statistics, noise_precision, strict=True)
    )
    remainder = sum(float(b) * s.remainder for s, b in zip(statistics, noise_precision, strict=True))
    if len(statistics) == 1 and len(prior.precision) == 1:
        (only,) = statistics
        ratio = noise_precision / prior.precision
        rescaled = replace(
            only, values=ratio * only.values, targets=noise_precision.sqrt() * only.targets,
            remainder=remainder, prior_noise=ratio.sqrt() * only.prior_noise, log_weight=log_weight,
        )  # fmt: skip
        return Whitened(prior.std, rescaled)
    rows, targets, noise = compressed(statistics, noise_precision)
    whitened = Dense(rows * prior.precision.rsqrt()[prior.group_of])
    count = sum(s.count for s in statistics)
    seen = project(whitened, decompose_whitened(whitened), targets, noise, prior_noise, count, log_weight)
    return Whitened(prior.std, replace(seen, remainder=remainder + seen.remainder))
