"""What a Gaussian linear model needs to remember of its data: everything about them that the posterior uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods import Krylov
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg import krylov
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.memory import available_bytes
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
from lapwing.linalg.progress import Report
from lapwing.linalg.spectral import Side, Spectrum, decompose, decompose_whitened

NO_CLOSED_FORM = (
    "this posterior was inferred by a matrix-free method, which has no closed-form covariance: "
    "use its draws and predictions, or infer with method=Exact()"
)


AT_ONCE = 64  # directions, or rows, of a projection
ROUGH_SPACE = 0.3  # the evidence is not looked for where draws from a Krylov space are worse than this


@final
@dataclass(frozen=True, eq=False)
class Ritz:
    """A Krylov space in the role of a spectrum: it holds what the draws and the mean need, not everything."""

    space: krylov.Space
    operator: LinearOperator  # the scaled features; on the dual side every expansion is a product with them
    rtol: float  # the error that draws may have
    trace: float | None  # of GᵀG, where it is cheap to know
    grows: bool = True  # unless it comes from a file, without the data

    @property
    def complete(self) -> bool:
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


@final
@dataclass(frozen=True, eq=False)
class Statistics:
    """One noise group of the data, compressed by the spectrum of its scaled features G = U diag(√s) Vᵀ.

    Features carry the prior's scale and the data's weights, not the precisions being tuned, so these numbers
    serve every precision. From a Krylov space the same numbers come with a `density`: sums over eigenvalues become
    weighted sums over Ritz values.
    """

    basis: Spectrum | Ritz  # V
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
        if isinstance(self.basis, Spectrum) or self.basis.complete:
            return Estimate(total)
        nodes = torch.cat([self.values, self.values.new_zeros(1)])
        weights = torch.cat([self.density, self.density.new_tensor([self.null])])
        design = torch.stack([torch.ones_like(nodes), nodes / nodes.max().clamp_min(1e-300)], dim=1)
        design = design if self.basis.trace is not None else design[:, :1]
        root, height = weights.clamp_min(0).sqrt(), torch.cat([f, f.new_zeros(1)])
        line = torch.linalg.lstsq(root[:, None] * design, (root * height)[:, None]).solution
        unexplained = float((weights * (height - (design @ line)[:, 0]).square()).sum())
        return Estimate(total, (2 * max(unexplained, 0.0) / self.noise.shape[1]) ** 0.5)


def from_space(space: krylov.Space, like: Ritz, *, count: float, log_weight: float, target: int = 0) -> Statistics:
    """Statistics of one column of targets from a Krylov space; `like` gives the operator and what is known of it."""
    draws, given = space.block.draws, space.block.targets
    inverse_root = torch.where(space.ritz > space.chain.roundoff, space.ritz, torch.inf).rsqrt()
    seen = inverse_root[:, None] * space.start
    targets = seen[:, 2 * draws + target]
    column = None if given is None else given[:, target].double()
    length = 0.0 if column is None else float(column @ column)
    basis = replace(like, space=space)
    density, null = torch.ones_like(space.ritz), float(like.operator.shape[0] - len(space.ritz))
    if not basis.complete:
        density, null = _calibrated(basis, (inverse_root[:, None] * space.probes).square().mean(1))
    return Statistics(
        basis=basis, values=space.ritz, targets=targets, remainder=max(length - float(targets.square().sum()), 0.0),
        noise=seen[:, :draws], prior_noise=seen[:, draws : 2 * draws], density=density,
        count=count, log_weight=log_weight, null=null,
    )  # fmt: skip


def known_trace(operator: LinearOperator) -> float | None:
    """tr GᵀG, where it costs no more than a product."""
    return float(operator.row_squares().double().sum()) if operator.squares_are_cheap else None


def shared_space(
    operator: LinearOperator, block: krylov.Block, settings: Callable[[Ritz], list[tuple[float, float]]],
    method: Krylov, report: Report,
) -> Ritz:  # fmt: skip
    """A Krylov space large enough for every (α, β) that `settings` finds in it, tuned and grown in turn."""
    trace = known_trace(operator)
    ritz = Ritz(krylov.grow(operator, block, min(2, method.steps or 2)), operator, method.rtol, trace)
    while True:
        wanted = [pair for pair in settings(ritz) if pair[0] != float("inf")]
        missed = [pair for pair in wanted if ritz.error(*pair) > method.rtol]
        space = ritz.space
        if space.limited_by or not missed:
            return ritz
        alpha, beta = min(missed, key=lambda pair: pair[0] / pair[1])
        ahead = space.steps + max(space.steps // 6, krylov.steps_ahead(ritz.error(alpha, beta), method.rtol))
        limit = ahead if method.steps is None else min(ahead, method.steps)
        space = krylov.build(
            operator, space, alpha=alpha, beta=beta, rtol=method.rtol, max_steps=limit,
            max_memory_bytes=method.memory_bytes, report=report,
        )  # fmt: skip
        if space.limited_by == "steps" and limit != method.steps:
            space = replace(space, limited_by=None)
        ritz = replace(ritz, space=space)


def converged(
    statistics: tuple[Statistics, ...], prior: DiagonalPrior, noise_precision: Tensor
) -> tuple[Statistics, ...]:
    """The same statistics, from a larger Krylov space where theirs is too small for these precisions."""
    (first, *others), alpha, beta = statistics, float(prior.precision[0]), float(noise_precision[0])
    if others or not isinstance(first.basis, Ritz) or alpha == float("inf"):
        return statistics
    ritz = first.basis
    if not ritz.grows or ritz.error(alpha, beta) <= ritz.rtol or ritz.space.limited_by:
        return statistics
    space = krylov.build(ritz.operator, ritz.space, alpha=alpha, beta=beta, rtol=ritz.rtol)
    return (from_space(space, ritz, count=first.count, log_weight=first.log_weight),)


def _calibrated(ritz: Ritz, density: Tensor) -> tuple[Tensor, float]:
    """The sampled density tilted by a straight line to have the true number and sum of eigenvalues.

    This is the calibration estimator of survey sampling, with the totals of GGᵀ that are known: its size and, where
    the norms of rows are cheap, its trace. It takes from every spectral sum the part of the error that those explain.
    """
    space, n, trace = ritz.space, float(ritz.operator.shape[0]), ritz.trace
    null = space.chain.noise_energy - float(density.sum())
    count = float(density.sum()) + null
    if trace is None or not trace > 0:
        return density * (n / count), null * (n / count)
    x = space.ritz * (n / trace)  # of order one
    first, second = (float((density * x**power).sum()) for power in (1, 2))
    moments = density.new_tensor([[count, first], [first, second]])
    tilt = torch.linalg.lstsq(moments, density.new_tensor([[n - count], [n - first]])).solution[:, 0]
    return density * (1 + tilt[0] + tilt[1] * x), null * (1 + float(tilt[0]))


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
        return isinstance(self.statistics.basis, Spectrum)

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
        if not isinstance(self.statistics.basis, Spectrum):
            raise ValueError(NO_CLOSED_FORM)
        return self.statistics.basis

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

    def project(self, features: LinearOperator) -> Tensor:  # (rows, rank)
        """Features times std · V: by blocks of rows, or of columns where V is a Krylov space."""
        rank, d = len(self.values), features.shape[1]
        width = max(1, min(AT_ONCE, int(available_bytes() / 3 / (24 * d))))  # three copies in double
        if isinstance(self.statistics.basis, Spectrum):
            rows = row_blocks(features, max(BLOCK_ELEMENTS, width * d))
            return torch.cat([self.statistics.basis.coordinates(block.double() * self.std) for block in rows])
        blocks = []
        for start in range(0, rank, width):
            units = torch.zeros(rank, min(width, rank - start), dtype=torch.float64)
            units[start : start + width].fill_diagonal_(1)
            columns = self.std[:, None] * self.statistics.basis.expand(units)
            blocks.append((features @ columns.to(features.like)).double())
        return torch.cat(blocks, dim=1)


def summarise(
    model: LinearModel, prior: DiagonalPrior, *, side: Side | None, noise: Noise, draws: int
) -> tuple[Statistics, ...]:
    """The exact statistics of each noise group of a model: one decomposition and two products each."""
    groups = model.gaussian.row_groups(model.targets)
    scaled, targets, normals = whitened_data(model, prior, noise, draws)
    counts, given = model.row_counts, model.gaussian.row_precision(model.targets)
    prior_noise = replace(noise, stream=PRIOR).rows(0, len(prior.scale), draws)
    if int(groups.max()) == 0:
        return (project(scaled, decompose(scaled, side), targets, normals, prior_noise, counts, given),)
    parts = []
    for rows in (groups == group for group in range(int(groups.max()) + 1)):
        part = Dense(rows_of(scaled, rows))
        numbers = (targets[rows], normals.rows(0, len(targets))[rows], prior_noise, counts[rows], given[rows])
        parts.append(project(part, decompose(part, side), *numbers))
    return tuple(parts)


def row_weights(model: LinearModel) -> Tensor:  # (n * m,)
    """How often each target counts, times the precision given for it."""
    return model.gaussian.row_precision(model.targets).mul(model.row_counts)


def totals(model: LinearModel) -> tuple[float, float]:
    """The number of observations, weights included, and ½ Σ log of the precisions given per row."""
    given, counts = model.gaussian.row_precision(model.targets).log(), model.row_counts
    return float(counts.sum()), 0.5 * float(given @ counts)


def whitened_data(
    model: LinearModel, prior: DiagonalPrior, noise: Noise, draws: int
) -> tuple[LinearOperator, Tensor, Rows]:
    """Features, targets and data noise with weights and the prior's scale applied: (n·m, d), (n·m,), (n·m, draws).

    The noise is made block by block where it is used.
    """
    root, targets = row_weights(model).sqrt_(), model.targets.reshape(-1)
    normals = replace(noise, stream=DATA).table(model.targets.numel(), draws)
    scaled = scaled_features(model.features, root, prior.scale)
    return scaled, targets if bool((root == 1).all()) else root * targets, normals


def project(
    scaled: LinearOperator, spectrum: Spectrum, targets: Tensor, normals: Tensor | Rows, prior_noise: Tensor,
    counts: Tensor, given: Tensor,
) -> Statistics:  # fmt: skip
    """Targets and noise seen from a spectrum of the scaled features: one product with Gᵀ and one with G."""
    noise = Dense(normals) if isinstance(normals, Tensor) else normals

    def seen(start: int, stop: int, part: LinearOperator) -> Tensor:
        return spectrum.left(part, torch.cat([targets[start:stop, None], noise.rows(start, stop)], dim=1), start)

    def unseen(start: int, stop: int, part: LinearOperator) -> Tensor:
        return (targets[start:stop] - spectrum.left_adjoint(part, both[:, :1], start)[:, 0]).square().sum()

    both = over_parts(scaled, seen)
    return Statistics(
        basis=replace(spectrum, own=None),  # as large as the features, and needed no more
        values=spectrum.values,
        targets=both[:, 0],
        remainder=float(over_parts(scaled, unseen)),
        noise=both[:, 1:],
        prior_noise=spectrum.values.sqrt()[:, None] * spectrum.coordinates(prior_noise.mT).mT,
        density=torch.ones_like(spectrum.values),
        count=float(counts.sum()),
        log_weight=float(0.5 * (counts * given.log()).sum()),
    )


def scaled_features(features: LinearOperator, root: Tensor, scale: Tensor) -> LinearOperator:
    """diag(root) Φ diag(scale), leaving out factors that are one."""
    if not bool((scale == 1).all()):
        features = Product(features, Diagonal(scale.to(features.like)))
    if not bool((root == 1).all()):
        features = Product(Diagonal(root.to(features.like)), features)
    return features


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
    whitened, ones = Dense(rows * prior.precision.rsqrt()[prior.group_of]), torch.ones_like(targets)
    seen = project(whitened, decompose_whitened(whitened), targets, noise, prior_noise, ones, ones)
    count = sum(s.count for s in statistics)
    return Whitened(prior.std, replace(seen, remainder=remainder + seen.remainder, count=count, log_weight=log_weight))


def compressed(statistics: tuple[Statistics, ...], noise_precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets and noise of a small model with the same posterior, the rows in units of the noise."""
    roots = noise_precision.sqrt()
    rows = [root * s.values.sqrt()[:, None] * _stored(s).vectors.mT for s, root in zip(statistics, roots, strict=True)]
    targets = torch.cat([root * s.targets for s, root in zip(statistics, roots, strict=True)])
    return torch.cat(rows), targets, torch.cat([s.noise for s in statistics])


def _stored(statistics: Statistics) -> Spectrum:
    if not isinstance(statistics.basis, Spectrum):
        raise ValueError(
            "a Krylov space serves one prior precision and one noise: use method=CG() or Exact() for several"
        )
    return statistics.basis
