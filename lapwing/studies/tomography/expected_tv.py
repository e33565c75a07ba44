"""The expected total variation of a Gaussian image in closed form, and the hyperprior made from it (TV-PredCP)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import Dense, Sparse
from lapwing.studies.tomography.filter_prior import FilterBlock, FilterPrior, distances
from lapwing.studies.tomography.linear import Linearised
from lapwing.studies.tomography.total_variation import differences


def expected_tv(means: Tensor, variances: Tensor) -> Tensor:  # (differences, …), (differences, …) -> (…)
    """E[TV(x)] of a Gaussian image, from means μ and variances s² of its differences.

    Σ s √(2/π) exp(−μ²/2s²) + μ erf(μ / (s √2)): smooth in the variances, so that its derivatives are exact.

    Parameters
    ----------
    means : Tensor
        Of the differences.
    variances : Tensor
        Of the differences.

    Returns
    -------
    Tensor
        One number.

    Examples
    --------
    >>> expected_tv(torch.zeros(3), torch.ones(3)).item() / (2 / math.pi) ** 0.5
    3.0...
    """
    std = variances.clamp_min(1e-30).sqrt()
    spread = std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (means / std).square())
    return (spread + means * torch.erf(means / (std * math.sqrt(2)))).sum(0)


@final
@dataclass(frozen=True, eq=False)
class DifferenceMoments:
    """What the expected TV of every block needs: means of the differences, and variances at unit tap covariances.

    Those of a block are (classes, differences): with the tap covariances c of a prior, s² = c · variances. They are
    exact, or from probes; from probes they belong to a positive semi-definite matrix too.
    """

    means: Tensor  # (differences,)
    variances: tuple[Tensor, ...]  # per block
    standard_error: float = 0.0  # relative, of one variance

    def kappa(self, prior: FilterPrior, number: int) -> Tensor:  # ()
        """κ: the expected TV of the image when only one block is random; differentiable in the hyperparameters."""
        return expected_tv(self.means, prior.coefficients(number) @ self.variances[number])


def difference_moments(linear: Linearised, *, probes: int = 16, seed: int = 0) -> DifferenceMoments:
    """The moments of a linearised reconstruction: exact where its Jacobian is stored, else by random signs.

    From probes: signs over the filters, the same for all taps, so that one probe takes a forward pass per tap.

    Parameters
    ----------
    linear : Linearised
        A linearised reconstruction.
    probes : int
        Random signs, where the Jacobian is not stored.
    seed : int
        Of all random numbers.

    Returns
    -------
    DifferenceMoments
        Means and variances of the differences.

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> ct.difference_moments(linear).means.shape  # 2 · 6 · 5 differences
    torch.Size([60])
    """
    D = differences(linear.projector.size)
    means = D @ linear.reconstruction.image.reshape(-1)
    if isinstance(linear.jacobian, Dense):
        found = [_exact(linear.jacobian.matrix, D, block) for block in linear.blocks]
        return DifferenceMoments(means, tuple(found))
    generator = torch.Generator().manual_seed(seed)
    found = [_sampled(linear, D, block, probes, generator) for block in linear.blocks]
    return DifferenceMoments(means, tuple(found), (2 / probes) ** 0.5)


def _exact(jacobian: Tensor, D: Sparse, block: FilterBlock) -> Tensor:  # (classes, differences)
    seen = D @ block.of(jacobian.mT).reshape(-1, len(jacobian)).mT.contiguous()  # (differences, filters · taps)
    taps = seen.reshape(len(seen), -1, block.taps)
    return _by_distance(taps.mT @ taps, block)


def _sampled(linear: Linearised, D: Sparse, block: FilterBlock, probes: int, generator: Generator) -> Tensor:
    p = linear.jacobian.shape[1]
    filters = len(block.of(torch.zeros(p)))
    total = torch.zeros(D.shape[0], block.taps, block.taps, dtype=torch.float64)
    for _ in range(probes):
        signs = (2 * torch.randint(2, (filters,), generator=generator) - 1).double()
        columns = torch.zeros(p, block.taps, dtype=torch.float64)
        block.put(columns, signs[:, None, None] * torch.eye(block.taps, dtype=torch.float64))
        seen = D @ (linear.jacobian @ columns)  # (differences, taps)
        total += seen[:, :, None] * seen[:, None]
    return _by_distance(total / probes, block)


def _by_distance(products: Tensor, block: FilterBlock) -> Tensor:  # (differences, taps, taps) -> (classes, differences)
    return torch.einsum("dij,cij->cd", products, distances(block.side)[1])


@final
@dataclass(frozen=True)
class TvPredCp:
    """The hyperprior that puts an exponential density on the expected TV of every block, as a density over log ℓ.

    log p(ℓ) = `temper` · (log rate − rate · κ(ℓ) + log |∂κ / ∂ log ℓ|) for each block of k × k filters. A density has a
    temper of 1; the publication multiplies all of it by `scale` · n · tv_weight and leaves the rate at 1.

    Parameters
    ----------
    rate : float
        Of the exponential density.
    temper : float
        Factor of the log density.

    Raises
    ------
    ValueError
        If the rate is not positive, or the temper is negative.

    Examples
    --------
    >>> TvPredCp.weighted(observations=1000, tv_weight=1e-3)
    TvPredCp(rate=1.0, temper=1.0)
    """

    rate: float = 1.0
    temper: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.temper >= 0):
            raise ValueError(f"rate is {self.rate} and temper {self.temper}: expected positive numbers")

    @staticmethod
    def tempered(observations: int, tv_weight: float, scale: float = 1.0) -> TvPredCp:
        """As published: the whole log-prior times scale · n · tv_weight (scale 1 for digits, 50 for the walnut)."""
        return TvPredCp(1.0, scale * observations * tv_weight)

    @staticmethod
    def weighted(observations: int, tv_weight: float, scale: float = 1.0) -> TvPredCp:
        """A proper density whose rate is scale · n · tv_weight."""
        return TvPredCp(scale * observations * tv_weight, 1.0)

    def log_density(self, moments: DifferenceMoments, prior: FilterPrior, number: int) -> Tensor:  # ()
        """log p(log ℓ) of one block; differentiable, its own gradient by exact second derivatives of κ."""
        with torch.enable_grad():
            place = prior.log_lengthscale if prior.log_lengthscale.requires_grad else None
            lengths = prior.log_lengthscale.detach().clone().requires_grad_() if place is None else place
            at = replace(prior, log_lengthscale=lengths)
            kappa = moments.kappa(at, number)
            (slope,) = torch.autograd.grad(kappa, lengths, create_graph=True)
            found = math.log(self.rate) - self.rate * kappa + slope[number].abs().clamp_min(1e-30).log()
            return self.temper * found


@final
@dataclass(frozen=True, eq=False)
class LengthscaleSweep:
    """κ over lengthscales, and whether it is monotone, without which its density would be counted twice."""

    lengthscales: Tensor
    kappa: Tensor

    @property
    def monotone(self) -> bool:
        """Whether κ never turns."""
        steps = self.kappa.diff()
        return bool((steps <= 0).all() or (steps >= 0).all())


def sweep(moments: DifferenceMoments, prior: FilterPrior, number: int, points: int = 100) -> LengthscaleSweep:
    """κ of one block over lengthscales from 0.01 to 100, at its own variance.

    Parameters
    ----------
    moments : DifferenceMoments
        Of the linearised reconstruction.
    prior : FilterPrior
        Of its filters.
    number : int
        Of the block.
    points : int
        Lengthscales that are tried.

    Returns
    -------
    LengthscaleSweep
        κ over lengthscales.

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> sweep(ct.difference_moments(linear), prior, 0, points=5).kappa.shape
    torch.Size([5])
    """
    lengths = torch.logspace(-2, 2, points, dtype=torch.float64)
    logs = prior.log_lengthscale.detach().repeat(points, 1)
    logs[:, number] = lengths.log()
    coefficients = torch.stack([replace(prior, log_lengthscale=row).coefficients(number) for row in logs])
    variances = (coefficients.detach() @ moments.variances[number]).mT  # (differences, points)
    return LengthscaleSweep(lengths, expected_tv(moments.means[:, None], variances))
