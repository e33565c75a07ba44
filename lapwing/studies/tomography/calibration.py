"""How much wider the error bars must be: asked of rays that a second network has not seen.

The features of a linearised network were learnt from the very scan that the posterior explains, so that no evidence of
that scan sees what they cannot draw. Rays that were held out do: a network fitted to the other angles, linearised under
the same prior, predicts them with a mean and a standard deviation, and the scale of its covariance under which they are
likeliest is the scale of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.methods import Method
from lapwing.runtime.progress import Report, reporter
from lapwing.studies.tomography.deep_image_prior import deep_image_prior
from lapwing.studies.tomography.filter_prior import FilterPrior
from lapwing.studies.tomography.linear import Linearised, linearise
from lapwing.studies.tomography.posterior import ImagePosterior, quantify
from lapwing.studies.tomography.scanning.projector import Projector
from lapwing.studies.tomography.scanning.scan import Scan
from lapwing.studies.tomography.type_ii.result import TypeII

EVERY = 6  # angles, of which one is held out
SCALES = (1e-2, 1e2)
DRAWS = 16  # of the second posterior: a variance for every ray


@final
@dataclass(frozen=True)
class HeldOut:
    """How one mean predicts rays that it has not seen."""

    residual_rms: float  # of measured less predicted line integrals
    scale: float  # of the standard deviations under which they are likeliest
    log_density: float  # per ray, at that scale
    log_density_as_it_was: float  # per ray, at a scale of one


@final
@dataclass(frozen=True)
class Calibration:
    """What held-out rays say of error bars, about the network's image and about the linear model's mean.

    Parameters
    ----------
    network : HeldOut
        About the network's own image.
    linear : HeldOut
        About the mean of the linear model.
    angles : int
        How many were held out.
    rays : int
        How many of their rays cross the image.

    Examples
    --------
    >>> near, far = HeldOut(0.1, 1.5, -0.2, -0.5), HeldOut(0.3, 2.5, -0.9, -1.5)
    >>> found = Calibration(network=far, linear=near, angles=2, rays=40)
    >>> found.prefers_linear, found.scale
    (True, 1.5)
    >>> found.words()
    'By 40 rays of 2 angles held out, error bars are about the mean of the linear model, times 1.5.'
    """

    network: HeldOut
    linear: HeldOut
    angles: int
    rays: int

    @property
    def prefers_linear(self) -> bool:
        """Whether the mean of the linear model predicts unseen rays better than the network's image does."""
        return self.linear.log_density >= self.network.log_density

    @property
    def scale(self) -> float:
        """By which standard deviations about the better mean are to be multiplied."""
        return self.linear.scale if self.prefers_linear else self.network.scale

    def words(self) -> str:
        """What was found, as a sentence."""
        image = "the mean of the linear model" if self.prefers_linear else "the network's image"
        angles = "one angle" if self.angles == 1 else f"{self.angles} angles"
        return f"By {self.rays} rays of {angles} held out, error bars are about {image}, times {self.scale:.2g}."

    def applied(self, posterior: ImagePosterior) -> ImagePosterior:
        """A posterior about the better mean, with standard deviations and draws widened."""
        found = posterior.about_linear_mean() if self.prefers_linear else posterior
        return found.widened(self.scale)


def calibrate(
    linear: Linearised, tuned: TypeII, *, every: int = EVERY, method: Method | None = None, draws: int = DRAWS,
    seed: int = 1, progress: bool | Report | None = None,
) -> Calibration:  # fmt: skip
    """Hold out one of every few angles, fit a second network to the others, and compare what it says of them.

    It takes as long as one more reconstruction and one more posterior, with fewer draws.

    Parameters
    ----------
    linear : Linearised
        The linearised reconstruction that is to be calibrated.
    tuned : TypeII
        Its hyperparameters.
    every : int
        One of so many angles is held out.
    method : method, optional
        How the posterior is found; chosen by size by default.
    draws : int
        Of the second posterior.
    seed : int
        Of the second network and of its draws.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Calibration
        `applied(posterior)` is the posterior with its bars widened.

    Raises
    ------
    ValueError
        If there are too few angles to hold one out.

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(8), ct.projector(ct.ParallelBeam.spread(8, 8), 8))
    >>> linear = ct.linearise(ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False))
    >>> tuned = ct.tune(linear, progress=False)
    >>> found = ct.calibrate(linear, tuned, every=4, progress=False)
    >>> posterior = found.applied(ct.quantify(linear, tuned.prior, tuned.noise_std))
    >>> found.angles, posterior.scale == found.scale
    (2, True)
    """
    reconstruction, report = linear.reconstruction, reporter(progress)
    scan = reconstruction.scan
    held = held_out(scan.projector.shape[0], every)
    report(f"a second network, without {int(held.sum())} angles")
    second = deep_image_prior(part_of(scan, ~held), reconstruction.settings, seed=seed, progress=progress)
    again = linearise(second, store=linear.stored)
    prior = carried(tuned.prior, linear.weights, again.weights)
    report("its posterior")
    posterior = quantify(again, prior, tuned.noise_std, method=method, draws=draws, seed=seed, progress=progress)
    report("")
    rays = scan.projector.part(held)
    return compare(posterior, rays, scan.sinogram[held].reshape(-1), tuned.noise_std)


def held_out(angles: int, every: int) -> Tensor:  # (angles,), bool
    """One of every few angles, beginning in the middle of the first few.

    >>> held_out(7, 3)
    tensor([False,  True, False, False,  True, False, False])
    """
    if every < 2 or angles < 3:
        raise ValueError(
            f"{angles} angles and one of every {every} to hold out: expected at least 3 angles, and every 2 or more"
        )
    step = min(every, angles)
    return torch.arange(angles) % step == step // 2


def part_of(scan: Scan, angles: Tensor) -> Scan:
    """The scan of some angles alone."""
    return replace(scan, projector=scan.projector.part(angles), sinogram=scan.sinogram[angles])


def carried(prior: FilterPrior, weights: Tensor, others: Tensor) -> FilterPrior:
    """A prior for other weights of the same network: variances stand to what is typical of them as they did."""
    before, after = (FilterPrior.typical(prior.blocks, w).log_variance for w in (weights, others))
    return replace(prior, log_variance=prior.log_variance + after - before)


def compare(posterior: ImagePosterior, rays: Projector, measured: Tensor, noise_std: float) -> Calibration:
    """How well a posterior predicts line integrals that it has not seen."""
    deviations = posterior.deviations().reshape(-1, rays.size**2)
    variances = (rays.operator @ deviations.mT.contiguous()).square().mean(1)
    seen = variances > 0  # other rays miss the image
    ahead = {
        name: likeliest((measured - rays.project(image).reshape(-1))[seen], variances[seen], noise_std)
        for name, image in (("network", posterior.mean), ("linear", posterior.linear_mean))
    }
    return Calibration(**ahead, angles=rays.shape[0], rays=int(seen.sum()))


def likeliest(residual: Tensor, variance: Tensor, noise_std: float) -> HeldOut:
    """The scale s with the largest product of N(residual; 0, s² variance + noise²), ray by ray.

    >>> generator = torch.Generator().manual_seed(0)
    >>> variance = torch.linspace(0.5, 2, 4000).double()
    >>> residual = (9 * variance + 0.01).sqrt() * torch.randn(4000, generator=generator).double()
    >>> abs(likeliest(residual, variance, 0.1).scale - 3) < 0.1
    True
    """

    def log_density(log_scale: Any) -> float:
        total = math.exp(2 * float(log_scale)) * variance + noise_std**2
        return float(-0.5 * (residual.square() / total + (2 * math.pi * total).log()).mean())

    low, high = (math.log(scale) for scale in SCALES)
    found = scipy.optimize.minimize_scalar(lambda x: -log_density(x), bounds=(low, high), method="bounded")
    rms = float(residual.square().mean().sqrt())
    return HeldOut(rms, math.exp(float(found.x)), log_density(found.x), log_density(0.0))
