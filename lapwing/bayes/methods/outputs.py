"""How uncertain the outputs of a linear model are at new inputs: in closed form, or from draws of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.fits.loss import PerOutput
from lapwing.bayes.likelihoods import Spread
from lapwing.bayes.statistics import Whitened
from lapwing.linalg.operators import LinearOperator
from lapwing.linalg.spectral import Spectrum
from lapwing.runtime.memory import available_bytes

BLOCK_BYTES = 2**26  # of the Jacobian of a few data
STORED_SHARE = 4  # coordinates of held-out outputs may take this part of the free memory
DIRECTIONS = 30_000  # beyond these a ratio costs more than sharing out all of them over a grid, once
STEP = 0.04
DENSE = 4000  # weights of features that outputs share, up to which their covariance is formed
OUTPUTS = 256  # a datum, beyond which no rows of a Jacobian are made: draws say how uncertain they are


@final
@dataclass(frozen=True, eq=False)
class OutputUncertainty:
    """What a posterior says about the outputs at some inputs: before and after the data, and in joint draws."""

    prior_variance: Tensor  # outputs' shape
    spread: Spread
    draws: Tensor  # (draws, *outputs' shape), zero-mean


@final
@dataclass(frozen=True, eq=False)
class JointOutputs:
    """A Gaussian over some outputs: what the functions may be there, without the noise of an observation."""

    mean: Tensor  # (k,)
    covariance: Tensor  # (k, k)
    standard_error: Tensor | None = None  # (k, k), Monte-Carlo error of the covariance; None where it is closed form

    @property
    def correlation(self) -> Tensor:  # (k, k)
        """The covariance of the outputs over their standard deviations."""
        std = self.covariance.diagonal().sqrt().clamp_min(torch.finfo(self.covariance.dtype).tiny)
        return self.covariance / std / std[:, None]


def closed_form(
    posterior: Whitened, features: LinearOperator, shape: tuple[int, ...], deviations: Tensor,
    *, full: bool, seed: int, batch_size: int | None = None,
) -> OutputUncertainty:  # fmt: skip
    """The uncertainty of outputs of a shape (n,) or (n, …, c), by products of their rows with eigenvectors."""
    if full and isinstance(features, PerOutput) and features.shape[1] <= DENSE:
        return _of_shared(posterior, features, shape, deviations, seed)
    dtype, parts, images = _working(posterior, features), [], []
    k, std, deviations = (known.to(dtype) for known in (posterior.values, posterior.std, deviations))
    for data in _data(features, shape, batch_size, std):
        rows = _blocks(data, shape, full)
        whitened = rows * std
        inside = _coordinates(posterior, whitened)
        covariance = posterior_covariance(_prior(posterior, whitened, full), _weighed(inside, full), k, full)
        found = [whitened.square().sum(2), covariance, *(_centred(posterior, whitened, inside, k) if full else ())]
        parts.append([part.double() for part in found])
        images.append((rows @ deviations).permute(2, 0, 1).double())
    prior_variance, covariance, *centred = (torch.cat(part) for part in zip(*parts, strict=True))
    spread, draws = _closed(covariance, shape, seed), torch.cat(images, dim=1).reshape(-1, *shape)
    return OutputUncertainty(prior_variance.reshape(shape), _with_centred(spread, *centred), draws)


def _of_shared(
    posterior: Whitened, features: PerOutput, shape: tuple[int, ...], deviations: Tensor, seed: int
) -> OutputUncertainty:
    """The same of outputs (n, c) that share their features, by the covariance of the weights."""
    std, vectors, left = posterior.std, posterior.vectors, 1 / (1 + posterior.values)
    inside = torch.eye(len(std), dtype=torch.float64) if posterior.spectrum.complete else vectors @ vectors.mT
    weights = (vectors * left) @ vectors.mT + torch.eye(len(std), dtype=torch.float64) - inside
    covariance = features.covariances(std[:, None] * weights * std)
    prior = features.row_squares(std.square().to(features.like)).double().reshape(shape)
    total = covariance.diagonal(dim1=1, dim2=2).sum(1)
    c = shape[-1]
    centred = (1 - 1 / c) * prior.sum(1), (total - covariance.sum((1, 2)) / c).clamp_min(0)
    draws = (features @ deviations.to(features.like)).double().mT.reshape(-1, *shape)
    return OutputUncertainty(prior, _with_centred(_closed(covariance, shape, seed), *centred), draws)


def _centred(whitened: Whitened, rows: Tensor, inside: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:  # (b,), (b,)
    """The variance of outputs less the mean over their place, summed over it: before the data, and after."""
    rows, inside = (part - part.mean(1, keepdim=True) for part in (rows, inside))
    after = posterior_covariance(_prior(whitened, rows, False), _weighed(inside, False), k, False)
    return rows.square().sum((1, 2)), after.sum(1)


def _with_centred(spread: Spread, before: Tensor | None = None, after: Tensor | None = None) -> Spread:
    """A spread with these variances of centred outputs, where it has places with several."""
    if spread.covariance is None:
        return spread
    prior, centred = (None if part is None else part.reshape(spread.variance.shape[:-1]) for part in (before, after))
    return replace(spread, centred=centred, centred_prior=prior)


def needed_bytes(features: LinearOperator, shape: tuple[int, ...], draws: int) -> float:
    """Memory that a prediction takes for outputs of this shape that come from so many draws, by its largest parts.

    Columns for the draws and for the prior's, a product with them, and the images in double precision.
    """
    item, width = features.like.element_size(), features.shape[1]
    columns, images = draws * width * (16 + 2 * item), draws * prod(shape) * (24 + 2 * item)
    return columns + images + features.costs.working_bytes(draws)


def over_ratio(
    whitened: Whitened, features: LinearOperator, shape: tuple[int, ...], prior_noise: Tensor, seed: int,
    *, full: bool = True,
) -> Callable[[float], Spread]:  # fmt: skip
    """The spread as a function of the ratio of the old precision to a new one, from one set of products.

    Where directions are many, as in a Kronecker structure of a large network, or their coordinates would not fit into
    memory, the products are shared out over a grid of eigenvalues: variances are then good to 2e-4.
    """
    k = whitened.values
    wide = prior_noise.shape[1] > 0 and is_wide(features, shape)
    if wide and (whitened.exact or not _fits(prod(shape), len(k))):

        def drawn(ratio: float) -> Spread:
            inside = whitened.statistics.basis.expand(whitened.pull(ratio))
            columns = (ratio**0.5 * whitened.std)[:, None] * (prior_noise + inside)
            return of_draws((features @ columns.to(features.like)).double().mT.reshape(-1, *shape), full)

        return drawn
    if not whitened.exact:
        projected = whitened.project(features)
        prior_draws = (features @ (whitened.std[:, None] * prior_noise).to(features.like)).double()

        def sampled(ratio: float) -> Spread:
            draws = ratio**0.5 * (prior_draws + projected @ whitened.pull(ratio))
            return of_draws(draws.mT.reshape(-1, *shape), full)

        return sampled
    many = len(k) > DIRECTIONS or not _fits(prod(shape), len(k))
    grid, dtype, parts = Grid.of(k) if many else None, _working(whitened, features), []
    std = whitened.std.to(dtype)
    for data in _data(features, shape, None, std):
        scaled = _blocks(data, shape, full) * std
        inside = _coordinates(whitened, scaled)
        kept = inside if grid is None else grid.products(inside, full)
        parts.append((kept.double(), _prior(whitened, scaled, full)))
    inside, priors = torch.cat([part[0] for part in parts]), [part[1] for part in parts if part[1] is not None]
    prior, nodes = torch.cat(priors).double() if priors else None, k if grid is None else grid.nodes
    weighed = _weighed(inside, full) if grid is None else partial(torch.tensordot, inside, dims=1)

    def closed(ratio: float) -> Spread:
        return _closed(ratio * posterior_covariance(prior, weighed, ratio * nodes, full), shape, seed)

    return closed


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """Eigenvalues shared out linearly, in their logarithm, over nodes 4 % apart: sums over them cost few nodes.

    1 / (1 + r k) is interpolated with a relative error of at most a step squared over eight, 2e-4; an eigenvalue below
    1e-16 of the largest counts as that.
    """

    nodes: Tensor  # (nodes,)
    order: Tensor  # (rank,), directions by the interval that they lie in
    sizes: tuple[int, ...]  # directions in each interval
    share: Tensor  # (rank,), of each direction in that order, at the upper end of its interval

    @staticmethod
    def of(values: Tensor) -> Grid:
        """The grid of these eigenvalues."""
        largest = float(values.max().clamp_min(1e-300))
        low = max(float(values.min()), 1e-16 * largest)
        count = int(torch.tensor(largest / low).log() / STEP) + 2
        place = ((values.clamp_min(low) / low).log() / STEP).clamp(0, count - 1 - 1e-9)
        order = place.argsort()
        sizes = torch.bincount(place.long(), minlength=count - 1).tolist()
        nodes = low * (STEP * torch.arange(count, dtype=torch.float64)).exp()
        return Grid(nodes, order, tuple(sizes), (place - place.floor())[order])

    def products(self, inside: Tensor, full: bool) -> Tensor:  # (b, c, rank) -> (b, c[, c], nodes)
        """Products of the coordinates of outputs, for the directions of each node."""
        b, c, _ = inside.shape
        found = inside.new_zeros(len(self.nodes), b, c, *(c,) if full else ())
        ordered, shares = inside[:, :, self.order], self.share.to(inside)
        parts = zip(ordered.split(self.sizes, dim=2), shares.split(self.sizes), strict=True)
        for number, (part, share) in enumerate(parts):
            if len(share):
                found[number] += _products(part * (1 - share), part, full)
                found[number + 1] += _products(part * share, part, full)
        return found.movedim(0, -1)


def of_draws(draws: Tensor, full: bool = True) -> Spread:  # (draws, n, …, c) or (draws, n)
    """The spread that zero-mean draws show."""
    full = full and draws.ndim > 2
    covariance = torch.einsum("s...c,s...d->...cd", draws, draws) / len(draws) if full else None
    return Spread(draws.square().mean(0), covariance, draws)


def _closed(covariance: Tensor, shape: tuple[int, ...], seed: int) -> Spread:
    """The spread of known (n, c, c) covariances, or of (n, c) variances."""
    full = covariance.ndim == 3
    variance = covariance.diagonal(dim1=1, dim2=2) if full else covariance
    kept = covariance.reshape(*shape, shape[-1]) if full and len(shape) > 1 else None
    return Spread(variance.clamp_min(0).reshape(shape), kept, seed=seed)


def _products(left: Tensor, right: Tensor, full: bool) -> Tensor:  # (b, c, r) -> (b, c, c) or (b, c)
    return left @ right.mT if full else (left * right).sum(2)


def posterior_covariance(prior: Tensor | None, weighed: Callable[[Tensor], Tensor], k: Tensor, full: bool) -> Tensor:
    """What the data leave of a prior covariance, with k times its precision added in each direction.

    `weighed` sums what directions have in it, with a weight for each; prior=None says that they have all of it.
    Directions of small eigenvalues are known badly, and are left in the prior's part, from which k / (1 + k) of them is
    taken: their error counts no more than what the data say there. Others are taken out whole, and 1 / (1 + k) of them
    is added. What lies outside of them is still a difference, and with `full` all of it is: good to rounding of the
    prior, so that a variance below eps · prior is not known. Only with prior=None does nothing cancel.
    """
    left = 1 / (1 + k)
    if prior is None:
        return weighed(left)
    if full:
        return prior - weighed(1 - left)
    large = k >= 1
    outside = (prior - weighed(large.to(k))).clamp_min(0)
    return (outside + weighed(torch.where(large, left, left - 1))).clamp_min(0)


def _prior(whitened: Whitened, rows: Tensor, full: bool) -> Tensor | None:
    return None if whitened.spectrum.complete else _products(rows, rows, full)


def _weighed(inside: Tensor, full: bool) -> Callable[[Tensor], Tensor]:
    return lambda weights: _products(inside * weights.to(inside), inside, full)


def of_deviations(
    std: Tensor, features: LinearOperator, shape: tuple[int, ...], deviations: Tensor, prior_noise: Tensor,
    *, full: bool,
) -> OutputUncertainty:  # fmt: skip
    """From draws; the prior variance from the rows where they are fewer than the draws, or from prior draws."""
    if prod(shape[1:]) <= deviations.shape[1] and not (features.costs.too_many_outputs or is_wide(features, shape)):
        images, prior, *centred = _by_rows(std, features, shape, deviations, full)
    else:
        prior, *centred = _by_prior_draws(std, features, shape, prior_noise, full)
        images = features @ deviations.to(features.like)
    draws = images.double().mT.reshape(-1, *shape)
    return OutputUncertainty(prior.reshape(shape), _with_centred(of_draws(draws, full), *centred), draws)


def _by_rows(
    std: Tensor, features: LinearOperator, shape: tuple[int, ...], deviations: Tensor, full: bool
) -> list[Tensor]:  # (n · c, k), (n, c)[, (places,)]
    """Images of deviations, the prior variance of outputs, and with `full` that of centred ones, from the same rows.

    Variances are sums of squares, in which nothing cancels: they need no more digits than the rows have.
    """
    scale, columns, parts = std.to(features.like), deviations.to(features.like), []
    for rows in _data(features, shape, None, scale):
        images = rows.flatten(0, 1) @ columns
        parts.append([images, *_squares(rows * scale, shape, full)])
    return [torch.cat(part).double() for part in zip(*parts, strict=True)]


def _by_prior_draws(
    std: Tensor, features: LinearOperator, shape: tuple[int, ...], prior_noise: Tensor, full: bool
) -> list[Tensor]:  # (n, c)[, (places,)]
    """The prior variance of outputs, and with `full` that of centred ones; images of prior draws end with this call."""
    images = (features @ (std[:, None] * prior_noise).to(features.like)).double()
    sums = _squares(images.reshape(shape[0], -1, images.shape[1]), shape, full)
    return [part / images.shape[1] for part in sums]


def _squares(data: Tensor, shape: tuple[int, ...], full: bool) -> list[Tensor]:  # (b, c, d) -> (b, c)[, (places,)]
    """Squared lengths of rows, and with `full` those of rows less the mean over their place, summed over it."""
    rows = _blocks(data, shape, full)
    lengths = torch.linalg.vector_norm(rows, dim=2).square()
    if not full:
        return [lengths]
    centred = rows - rows.mean(1, keepdim=True)
    return [lengths, torch.linalg.vector_norm(centred, dim=(1, 2)).square()]


def _working(whitened: Whitened, features: LinearOperator) -> torch.dtype:
    """Double precision, but where variances are sums of squares that nothing cancels in: there that of the features."""
    kept = whitened.spectrum.complete and whitened.spectrum.keeps_precision
    return features.like.dtype if kept else torch.float64


def _data(features: LinearOperator, shape: tuple[int, ...], batch_size: int | None, like: Tensor) -> Iterator[Tensor]:
    """The rows of a few data at a time, where a tensor lies and in its precision: (b, c, d)."""
    n, c = shape[0], prod(shape[1:])
    batch = batch_size or max(1, BLOCK_BYTES // (c * features.shape[1] * like.element_size()))
    for start in range(0, n, batch):
        stop = min(start + batch, n)
        yield features.rows(start * c, stop * c).to(like).reshape(stop - start, c, -1)


def _blocks(data: Tensor, shape: tuple[int, ...], full: bool) -> Tensor:  # (b, c, d)
    """Rows of data with several places, each place as a datum of its own where covariances are wanted."""
    return data.reshape(-1, shape[-1], data.shape[2]) if full and len(shape) > 2 else data


def is_wide(features: LinearOperator, shape: tuple[int, ...]) -> bool:
    """Whether the outputs of a datum are so many that rows of features which are not stored should not be made."""
    outputs = prod(shape[1:])
    return not features.costs.squares_are_cheap and (outputs > OUTPUTS or not _fits(outputs, features.shape[1]))


def _fits(rows: int, columns: int) -> bool:
    return 8.0 * rows * columns <= available_bytes() / STORED_SHARE


def _coordinates(whitened: Whitened, rows: Tensor) -> Tensor:  # (b, c, d) -> (b, c, rank)
    return whitened.spectrum.coordinates(rows.reshape(-1, rows.shape[2])).reshape(*rows.shape[:2], -1)


def variances(rows: Tensor, spectrum: Spectrum, k: Tensor) -> tuple[Tensor, Tensor]:
    """Prior and posterior variance of whitened rows: ‖φ‖², and φ (I + V diag(k) Vᵀ)⁻¹ φᵀ without cancellation."""
    prior, squares = rows.square().sum(1), spectrum.coordinates(rows).square()
    return prior, posterior_covariance(None if spectrum.complete else prior, squares.matmul, k, full=False)


def joint_of_draws(features: LinearOperator, rows: Tensor, mean: Tensor, deviations: Tensor) -> JointOutputs:
    """The joint distribution of chosen rows of outputs, with the error that draws leave."""
    draws = (features @ deviations.to(features.like))[rows.to(features.like.device)].double().cpu()
    covariance = draws @ draws.mT / draws.shape[1]
    own = covariance.diagonal()
    error = ((covariance.square() + own * own[:, None]) / draws.shape[1]).sqrt()
    return JointOutputs(mean, covariance, error)


def joint_in_closed_form(posterior: Whitened, features: LinearOperator, rows: Tensor, mean: Tensor) -> JointOutputs:
    """The same without error, by one reverse pass for each row."""
    units = torch.zeros(features.shape[0], len(rows), dtype=features.like.dtype, device=features.like.device)
    units[rows.to(units.device), torch.arange(len(rows))] = 1
    whitened = features.rmatmat(units).mT.double().cpu() * posterior.std
    inside, k = posterior.spectrum.coordinates(whitened), posterior.values
    if posterior.spectrum.complete:
        return JointOutputs(mean, (inside / (1 + k)) @ inside.mT)
    return JointOutputs(mean, whitened @ whitened.mT - (inside * (k / (1 + k))) @ inside.mT)
