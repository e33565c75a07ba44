"""The posterior over an image: mean, standard deviation, samples, covariances of patches, density of the truth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel
from lapwing.bayes.methods import Exact, Krylov, Method
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import Isotropic
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.runtime.progress import Report
from lapwing.studies.tomography.filter_prior import FilterPrior
from lapwing.studies.tomography.linear import Linearised, rows_through
from lapwing.studies.tomography.scanning.projector import Projector, square_image

DENSE_DUAL = 4000  # observations up to which the dual side is decomposed


@final
@dataclass(frozen=True, eq=False)
class ImagePosterior:
    """What a scan says about the image, around its reconstruction.

    `posterior` is that of the linear model: of image coordinates where the Jacobian is stored, else of white weights.

    Parameters
    ----------
    linear : Linearised
        A linearised reconstruction.
    prior : FilterPrior
        Of its filters.
    noise_std : float
        Standard deviation of a line integral.
    posterior : Posterior
        Of the linear model.
    mean : Tensor
        The network's own image, (size, size).
    std : Tensor
        (size, size).
    linear_mean : Tensor
        Of the linear model, (size, size).
    scale : float
        By which standard deviations were multiplied, as by a calibration.

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> found = ct.quantify(linear, prior, 0.1)
    >>> found.std.shape, found.samples(3).shape, found.exact
    (torch.Size([6, 6]), torch.Size([3, 6, 6]), True)
    """

    linear: Linearised
    prior: FilterPrior
    noise_std: float
    posterior: Posterior = field(repr=False)
    mean: Tensor = field(repr=False)  # (size, size), the network's own image
    std: Tensor = field(repr=False)  # (size, size)
    linear_mean: Tensor = field(repr=False)  # (size, size), of the linear model
    scale: float = 1.0  # by which standard deviations were multiplied

    @property
    def exact(self) -> bool:
        """Whether standard deviation and covariances are closed forms, and not from draws."""
        return bool(self.posterior.gaussian.is_closed_form)

    def about_linear_mean(self) -> ImagePosterior:
        """The same error bars about the linear model's own mean: the better image where a network was stopped early."""
        return replace(self, mean=self.linear_mean)

    def as_linearised(self) -> ImagePosterior:
        """Before any calibration: about the network's own image, with the standard deviations of the linear model."""
        return replace(self.widened(1 / self.scale), mean=self.linear.reconstruction.image)

    def widened(self, scale: float) -> ImagePosterior:
        """The same with standard deviations, draws and covariances multiplied by a scale, or its square."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale is {scale}, expected a positive number")
        return replace(self, std=scale * self.std, scale=scale * self.scale)

    def deviations(self, draws: int | None = None) -> Tensor:  # (draws, size, size)
        """Joint draws of the image about its mean: those of the posterior, or any number of a closed form."""
        features = self.posterior.map.features_at(None)
        weights = self.posterior.gaussian.deviations
        if draws is not None:
            weights = (self.posterior.sample(draws) - self.posterior.mean).mT
        return self.scale * (features @ weights).mT.reshape(-1, *self.mean.shape)

    def samples(self, draws: int | None = None) -> Tensor:  # (draws, size, size)
        """Joint draws of the image."""
        return self.mean + self.deviations(draws)

    def patches(self, side: int) -> Iterator[tuple[Tensor, Tensor]]:  # (pixels,), (pixels, pixels)
        """Every square patch, those at the right and lower edge smaller: indices of its pixels, and their covariance.

        A covariance from draws is averaged with its own diagonal where it has more than one pixel, as published.
        """
        size = len(self.mean)
        numbers = torch.arange(size * size).reshape(size, size)
        drawn = None if self.exact else self.deviations().reshape(-1, size * size)
        features = self.posterior.map.features_at(None)
        for top in range(0, size, side):
            for left in range(0, size, side):
                pixels = numbers[top : top + side, left : left + side].reshape(-1)
                if drawn is None:
                    yield pixels, self.scale**2 * _covariance(self.posterior, features, pixels)
                else:
                    sampled = drawn[:, pixels].mT @ drawn[:, pixels] / len(drawn)
                    yield pixels, (sampled + sampled.diagonal().diag()) / 2 if len(pixels) > 1 else sampled

    def covariance(self) -> Tensor:  # (size², size²)
        """Of the whole image: for small ones."""
        return next(self.patches(len(self.mean)))[1]

    def log_density(self, truth: Any, *, patch: int = 1, floor: float = 0.0) -> float:
        """log N(truth; mean, covariance + floor · I) per pixel, patches taken to be independent."""
        if patch < 1 or not floor >= 0:
            raise ValueError(f"patch is {patch} and floor {floor}: expected a side of at least 1 and none below zero")
        error = (square_image(truth, len(self.mean)) - self.mean).reshape(-1)
        if patch == 1:
            return marginal_log_density(error, self.std.reshape(-1).square() + floor)
        return sum(_log_normal(error[p], c, floor) for p, c in self.patches(patch)) / error.numel()

    def z_scores(self, truth: Any, *, floor: float = 0.0) -> Tensor:  # (size, size)
        """Errors in multiples of √(std² + floor)."""
        return (square_image(truth, len(self.mean)) - self.mean) / (self.std.square() + floor).sqrt()


def quantify(
    linear: Linearised, prior: FilterPrior, noise_std: float, *, method: Method | None = None, draws: int = 64,
    seed: int = 0, progress: bool | Report | None = None,
) -> ImagePosterior:  # fmt: skip
    """The posterior over the image at given hyperparameters.

    Exact where the Jacobian is stored or the data are few enough for the dense dual; else from `draws` in a shared
    Krylov space on the side of the data. Products are in float64, three times the cost of float32, which would end the
    space after a few steps.

    Parameters
    ----------
    linear : Linearised
        A linearised reconstruction.
    prior : FilterPrior
        Of its filters.
    noise_std : float
        Standard deviation of a line integral.
    method : method, optional
        How the posterior is found; chosen by size by default.
    draws : int
        Number of draws.
    seed : int
        Of all random numbers.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    ImagePosterior
        With `std`, `samples` and `log_density`.

    Raises
    ------
    ValueError
        If the noise is not positive.

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> bool((quantify(linear, prior, 0.1).std > 0).all())
    True
    """
    if not (math.isfinite(noise_std) and noise_std > 0):
        raise ValueError(f"noise_std is {noise_std}, expected a positive number")
    if isinstance(linear.jacobian, Dense):
        model = _in_image_space(linear, linear.jacobian.matrix, prior, noise_std)
    else:
        linear = linear.double()
        model = linear.model(prior, noise_std)
        few = len(linear.targets) <= DENSE_DUAL
        method = method or (Exact("dual") if few else Krylov())
        if isinstance(method, Exact):  # one reverse pass for each datum
            model = replace(model, features=Dense(rows_through(linear.projector.operator, model.features_at(None))))
    found = infer(model, prior=Isotropic(1.0), method=method, draws=draws, seed=seed, progress=progress)
    size = linear.projector.size
    predicted = found.predict(None)
    mean = linear.reconstruction.image
    shift = found.map.features_at(None) @ found.mean - linear.shift
    std = predicted.epistemic_variance.clamp_min(0).sqrt()
    return ImagePosterior(
        linear, prior, noise_std, found, mean, std.reshape(size, size), mean + shift.reshape(size, size)
    )


def _in_image_space(linear: Linearised, jacobian: Tensor, prior: FilterPrior, noise_std: float) -> LinearModel:
    """The same model over coordinates u of the image, x − f + J w̄ = R u with R Rᵀ = J Σ Jᵀ: no more than pixels."""
    seen = (prior.root().T @ jacobian.mT.contiguous()).mT  # J L
    values, vectors = torch.linalg.eigh(seen @ seen.mT)
    kept = values > values.max() * len(values) * torch.finfo(values.dtype).eps
    root = vectors[:, kept] * values[kept].sqrt()  # (pixels, rank)
    image = linear.reconstruction.image.reshape(-1)
    # w̄ in these coordinates, up to what the image cannot show
    weights = (vectors[:, kept].mT @ linear.shift) / values[kept].sqrt()

    def features_at(where: Projector | None) -> LinearOperator:
        return Dense(root if where is None else where.operator.matmat(root))

    def outputs_at(where: Projector | None) -> Tensor:
        return image if where is None else where.operator @ image

    return LinearModel(
        features_at(linear.projector), linear.targets, Gaussian(noise_std), features_at=features_at,
        point=LinearisationPoint(outputs_at, weights),
    )  # fmt: skip


def _covariance(posterior: Posterior, features: LinearOperator, pixels: Tensor) -> Tensor:
    """φ H⁻¹ φᵀ of some rows: what the prior says, less what the data took."""
    unit = torch.zeros(features.shape[0], len(pixels), dtype=torch.float64)
    unit[pixels, torch.arange(len(pixels))] = 1
    rows = features.rmatmat(unit).double()  # (p, pixels)
    return rows.mT @ posterior.gaussian.covariance_times(rows.mT)


def marginal_log_density(error: Tensor, variance: Tensor) -> float:
    """The mean over pixels of log N(error; 0, variance)."""
    if not bool((variance > 0).all()):
        raise ValueError(
            f"{int((variance <= 0).sum())} pixels have no variance at all, as where a sigmoid saturates: give a floor "
            "(see `stabiliser`)"
        )
    return float((-0.5 * (error.square() / variance + (2 * math.pi * variance).log())).mean())


def _log_normal(error: Tensor, covariance: Tensor, floor: float) -> float:
    eye = torch.eye(len(error), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(covariance + floor * eye)
    if int(failed):
        raise ValueError(f"the covariance of a patch is singular at a floor of {floor:g}: give a larger one")
    white = torch.linalg.solve_triangular(factor, error[:, None], upper=False)
    return float(-0.5 * white.square().sum() - factor.diagonal().log().sum() - 0.5 * len(error) * math.log(2 * math.pi))


def stabiliser(projector: Projector, noise_std: float, vectors: int = 100) -> float:
    """noise² · mean diag (AᵀA)⁺ over the leading singular vectors: what the noise alone makes of one pixel.

    The publication adds it to every variance of a test density. It does not depend on the network. No more than half of
    the singular vectors are used: the last ones of a small scan would drown the posterior in noise.

    Parameters
    ----------
    projector : Projector
        Of the scan.
    noise_std : float
        Standard deviation of a line integral.
    vectors : int
        Leading singular vectors, at most.

    Returns
    -------
    float
        A variance.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector
    >>> round(stabiliser(projector(ParallelBeam.spread(9, 6), 6), 1.0), 3)
    0.047
    """
    from scipy.sparse.linalg import svds

    matrix = projector.operator.matrix
    rank = max(1, min(vectors, min(matrix.shape) // 2))
    if min(matrix.shape) <= 1024:
        singular = torch.linalg.svdvals(projector.operator.dense())[:rank]
    else:
        start = torch.ones(min(matrix.shape), dtype=torch.float64).numpy()
        singular = torch.from_numpy(svds(matrix, k=rank, v0=start, return_singular_vectors=False).copy())
    kept = singular[singular > 1e-10 * singular.max()]
    return float(noise_std**2 * kept.pow(-2).sum() / matrix.shape[1])
