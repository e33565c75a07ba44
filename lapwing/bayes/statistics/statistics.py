"""What a Gaussian linear model needs to remember of its data: everything about them that the posterior uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.noise import DATA, PRIOR, Noise, NoiseTable
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg import krylov
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import (
    BLOCK_ELEMENTS,
    Dense,
    Diagonal,
    LinearOperator,
    Product,
    Rows,
    over_parts,
    row_blocks,
    rows_of,
)
from lapwing.linalg.spectral import Side, Spectrum, decompose, decompose_whitened
from lapwing.runtime.memory import available_bytes

LOWEST_RATIO = 1e-13  # of prior to noise precision, over the largest eigenvalue; round-off rules below it
NO_CLOSED_FORM = (
    "this posterior was inferred by a matrix-free method, which has no closed-form covariance: "
    "use its draws and predictions, or infer with method=Exact()"
)
ROUGH_SPACE = 0.3  # the evidence is not looked for where draws from a Krylov space are worse than this


class WhitenedBasis(ABC):
    """Directions of the weights that the data determine, with how many times the prior's precision they add there."""

    @property
    @abstractmethod
    def is_closed_form(self) -> bool:
        """Whether variances have a closed form, instead of coming from draws."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether every direction of the data is here, so that sums over eigenvalues are exact."""

    @property
    @abstractmethod
    def trace(self) -> float | None:
        """The sum of all eigenvalues, where it is cheap to know beside those that are here."""

    @property
    @abstractmethod
    def lowest_noise_ratio(self) -> float:
        """Prior over noise precision, relative to the largest eigenvalue, below which round-off rules."""

    @abstractmethod
    def lowest_ratio(self) -> float:
        """The smallest ratio of prior to noise precision at which draws and determinants can be trusted."""

    @abstractmethod
    def expand(self, coefficients: Tensor) -> Tensor:  # (rank, k) -> (d, k)
        """Basis vectors times coefficients."""

    @abstractmethod
    def spectrum(self) -> Spectrum:
        """Eigenvectors and eigenvalues, or an error where these are not known."""


@final
@dataclass(frozen=True, eq=False)
class Eigenbasis(WhitenedBasis):
    """Eigenvectors of the Gram matrix: everything is in closed form."""

    vectors: Spectrum
    is_closed_form = True
    is_complete = True
    trace = None
    lowest_noise_ratio = LOWEST_RATIO

    def lowest_ratio(self) -> float:
        return 0.0

    def expand(self, coefficients: Tensor) -> Tensor:
        return self.vectors.expand(coefficients)

    def spectrum(self) -> Spectrum:
        return self.vectors


@final
@dataclass(frozen=True, eq=False)
class Ritz(WhitenedBasis):
    """A Krylov space in the role of a spectrum: it holds what the draws and the mean need, not everything."""

    space: krylov.Space
    operator: LinearOperator  # the scaled features; on the dual side every expansion is a product with them
    rtol: float  # the error that draws may have
    known_trace: float | None  # of GᵀG, where it is cheap to know
    grows: bool = True  # unless it comes from a file, without the data
    is_closed_form = False
    lowest_noise_ratio = 1e-10

    @property
    def trace(self) -> float | None:
        return self.known_trace

    @property
    def is_complete(self) -> bool:
        """Whether the space holds every direction of the data, so that its values are the eigenvalues.

        An invariant space may lack copies of a repeated eigenvalue; then its trace falls short.
        """
        if self.trace is None:
            return self.space.exhausted and len(self.values) == min(self.operator.shape)
        return self.space.exhausted and abs(float(self.values.sum()) - self.trace) <= 1e-8 * self.trace

    @property
    def values(self) -> Tensor:  # (rank,)
        """Ritz values."""
        return self.space.ritz

    def lowest_ratio(self) -> float:
        """The smallest ratio of prior to noise precision at which the draws are within a third of their spread.

        Below it log-determinants are too small, and the evidence there is too good to be true.
        """
        if not len(self.values):  # the data say nothing at all
            return 0.0
        largest, draws = float(self.values.max()), self.space.block.draws
        low, high = -13.0, 5.0  # decades around the largest value
        while high - low > 0.2:
            middle = (low + high) / 2
            error = float(krylov.errors(self.space, 10**middle * largest)[:draws].max())
            low, high = (low, middle) if error <= ROUGH_SPACE else (middle, high)
        return 10**high * largest

    def error(self, alpha: float, beta: float) -> float:
        """A bound on the relative error of the worst draw or mean on the data, at these precisions."""
        return float(krylov.errors(self.space, alpha, beta).max())

    def expand(self, coefficients: Tensor) -> Tensor:  # (rank, k) -> (d, k)
        """Basis vectors times coefficients."""
        return krylov.expand(self.space, coefficients, self.operator).double()

    def spectrum(self) -> Spectrum:
        raise ValueError(NO_CLOSED_FORM)


@final
@dataclass(frozen=True, eq=False)
class Statistics:
    """One noise group of the data, compressed by the spectrum of its scaled features G = U diag(√s) Vᵀ.

    Features carry the prior's scale and the data's weights, not the precisions being tuned, so these numbers
    serve every precision. From a Krylov space the same numbers come with a `density`: sums over eigenvalues become
    weighted sums over Ritz values.
    """

    basis: WhitenedBasis  # V
    values: Tensor  # (rank,), s, the eigenvalues of GᵀG
    targets: Tensor  # (rank,), Uᵀ y
    remainder: float  # ‖y − U Uᵀ y‖²
    noise: Tensor  # (rank, draws), Uᵀ ξ
    prior_noise: Tensor  # (rank, draws), Uᵀ G θ̃
    density: Tensor  # (rank,), how many eigenvalues each value stands for; one where the spectrum is exact
    count: float  # observations, weights included
    log_weight: float  # ½ Σ log of the precisions given per row
    null: float = 0.0  # eigenvalues of GGᵀ that no value stands for: they are zero, or as good as

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """Σ f(s) over the eigenvalues, for f(0) = 0; with its standard error where the spectrum is sampled.

        The density is calibrated to the number of eigenvalues and, where it is known, to their sum, so only what those
        cannot explain of f contributes to the error.
        """
        f = function(self.values)
        total = float((self.density * f).sum())
        if self.basis.is_complete:
            return Estimate(total)
        nodes = torch.cat([self.values, self.values.new_zeros(1)])
        weights = torch.cat([self.density, self.density.new_tensor([self.null])])
        design = torch.stack([torch.ones_like(nodes), nodes / nodes.max().clamp_min(1e-300)], dim=1)
        design = design if self.basis.trace is not None else design[:, :1]
        root, height = weights.clamp_min(0).sqrt(), torch.cat([f, f.new_zeros(1)])
        line = torch.linalg.lstsq(root[:, None] * design, (root * height)[:, None]).solution
        unexplained = float((weights * (height - (design @ line)[:, 0]).square()).sum())
        return Estimate(total, (2 * max(unexplained, 0.0) / self.noise.shape[1]) ** 0.5)


def summarise(
    surrogate: GaussianSurrogate, prior: DiagonalPrior, *, side: Side | None, noise: Noise, draws: int,
    spectrum: Spectrum | None = None,
) -> tuple[Statistics, ...]:  # fmt: skip
    """The exact statistics of each noise group of a model: one decomposition and two products each.

    A `spectrum` of the scaled features, known from other targets, is not found again.
    """
    scaled = in_units(surrogate.features, prior.scale)
    normals = data_noise(surrogate, noise, draws)
    weights = prior_noise(prior, noise, draws)
    counts = surrogate.counts.tolist()
    given = log_weights(surrogate)
    if len(counts) == 1:
        known = decompose(scaled, side) if spectrum is None else spectrum
        return (project(scaled, known, surrogate.targets, normals, weights, counts[0], given[0]),)
    parts = []
    for group in range(len(counts)):
        rows = surrogate.noise_of == group
        part = Dense(rows_of(scaled, rows))
        own = normals.rows(0, len(rows))[rows]
        targets = surrogate.targets[rows]
        parts.append(project(part, decompose(part, side), targets, own, weights, counts[group], given[group]))
    return tuple(parts)


def project(
    scaled: LinearOperator, spectrum: Spectrum, targets: Tensor, normals: Tensor | Rows, prior_noise: Tensor,
    count: float, log_weight: float,
) -> Statistics:  # fmt: skip
    """Targets and noise seen from a spectrum of the scaled features: one product with Gᵀ and one with G."""
    noise = Dense(normals) if isinstance(normals, Tensor) else normals

    def seen(start: int, stop: int, part: LinearOperator) -> Tensor:
        return spectrum.left(part, torch.cat([targets[start:stop, None], noise.rows(start, stop)], dim=1), start)

    def unseen(start: int, stop: int, part: LinearOperator) -> Tensor:
        return (targets[start:stop] - spectrum.left_adjoint(part, both[:, :1], start)[:, 0]).square().sum()

    both = over_parts(scaled, seen)
    return Statistics(
        basis=Eigenbasis(replace(spectrum, own=None)),  # that is as large as the features, and needed no more
        values=spectrum.values,
        targets=both[:, 0],
        remainder=float(over_parts(scaled, unseen)),
        noise=both[:, 1:],
        prior_noise=spectrum.values.sqrt()[:, None] * spectrum.coordinates(prior_noise.mT).mT,
        density=torch.ones_like(spectrum.values),
        count=count,
        log_weight=log_weight,
    )


def compressed(statistics: tuple[Statistics, ...], noise_precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets and noise of a small model with the same posterior, the rows in units of the noise."""
    roots = noise_precision.sqrt()
    rows = [root * s.values.sqrt()[:, None] * _stored(s).vectors.mT for s, root in zip(statistics, roots, strict=True)]
    targets = torch.cat([root * s.targets for s, root in zip(statistics, roots, strict=True)])
    return torch.cat(rows), targets, torch.cat([s.noise for s in statistics])


def _stored(statistics: Statistics) -> Spectrum:
    if not statistics.basis.is_closed_form:
        raise ValueError(
            "a Krylov space serves one prior precision and one noise: use method=CG() or Exact() for several"
        )
    return statistics.basis.spectrum()


def in_units(features: LinearOperator, scale: Tensor) -> LinearOperator:
    """Φ diag(scale), leaving the factor out where it is one."""
    if bool((scale == 1).all()):
        return features
    return Product(features, Diagonal(scale.to(features.like)))


def data_noise(surrogate: GaussianSurrogate, noise: Noise, draws: int) -> NoiseTable:
    """The standard normals of the data behind every draw, made block by block where they are used: (rows, draws)."""
    return replace(noise, stream=DATA).table(surrogate.features.shape[0], draws)


def prior_noise(prior: DiagonalPrior, noise: Noise, draws: int) -> Tensor:  # (d, draws)
    """The standard normals of the prior behind every draw."""
    return replace(noise, stream=PRIOR).rows(0, len(prior.scale), draws)


def log_weights(surrogate: GaussianSurrogate) -> list[float]:
    """½ Σ log of the precisions given per row, of each noise group; several noises are tuned, so none is given."""
    groups = len(surrogate.counts)
    return [surrogate.log_weight] if groups == 1 else torch.zeros(groups).tolist()


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
