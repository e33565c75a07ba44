"""One scan from end to end: classical answers, the deep image prior, its hyperparameters and its error bars."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

from torch import Tensor

from lapwing.runtime.progress import Report, reporter
from lapwing.studies.tomography.baselines import SampledImages, dropout_image_prior, unit_log_density
from lapwing.studies.tomography.calibration import EVERY, Calibration, calibrate
from lapwing.studies.tomography.classical import cgls, fbp, tv
from lapwing.studies.tomography.deep_image_prior import Reconstruction, Settings, deep_image_prior
from lapwing.studies.tomography.expected_tv import TvPredCp, difference_moments
from lapwing.studies.tomography.filter_prior import FilterPrior
from lapwing.studies.tomography.linear import Linearised, linearise
from lapwing.studies.tomography.posterior import ImagePosterior, quantify, stabiliser
from lapwing.studies.tomography.scanning.geometry import FanBeam, ParallelBeam
from lapwing.studies.tomography.scanning.scan import Scan
from lapwing.studies.tomography.scores import psnr, ssim
from lapwing.studies.tomography.type_ii.exact import exact
from lapwing.studies.tomography.type_ii.matrix_free import MatrixFree, matrix_free
from lapwing.studies.tomography.type_ii.result import EvidenceAt, Hyperprior, TypeII

EXACT_DATA = 2000  # observations up to which Gram matrices of all blocks are kept
Scaling = Literal["tempered", "weighted", "none"]


@final
@dataclass(frozen=True)
class Plan:
    """What a study does, beside the network's own settings.

    Parameters
    ----------
    settings : Settings
        Of the network and its fit.
    hyperprior : "tempered", "weighted" or "none"
        How total variation weighs on lengthscales.
    hyperprior_scale : float
        Its factor.
    evidence_at : "mode" or "weights"
        Where the evidence is taken.
    matrix_free : MatrixFree, optional
        How gradients are estimated; exact where it fits by default.
    dropout : bool
        Whether to fit a network with dropout too, to compare.
    draws : int
        Number of draws.
    seed : int
        Of all random numbers.
    hold_out : int, optional
        One of so many angles is held out to calibrate the error bars, which takes a second network; None for bars as
        they are.

    Examples
    --------
    >>> Plan(draws=32).hyperprior
    'tempered'
    """

    settings: Settings = field(default_factory=Settings)
    hyperprior: Scaling = "tempered"
    hyperprior_scale: float = 1.0
    evidence_at: EvidenceAt = "mode"
    matrix_free: MatrixFree | None = None  # None: exact where it fits
    dropout: bool = True
    draws: int = 64
    seed: int = 0
    hold_out: int | None = EVERY


@final
@dataclass(frozen=True, eq=False)
class Study:
    """Everything found of one scan.

    Parameters
    ----------
    scan : Scan
        What was measured.
    images : dict of Tensor
        Classical reconstructions by name.
    reconstruction : Reconstruction
        By the network.
    tuned : TypeII
        Hyperparameters.
    posterior : ImagePosterior
        Of the image, calibrated where the plan says so.
    calibration : Calibration or None
        What rays that were held out say of it.
    dropout : SampledImages or None
        By a network with dropout.
    floor : float
        Added to every variance of a test density.
    seconds : dict of float
        By phase.

    Examples
    --------
    >>> import torch
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(8), ct.projector(ct.ParallelBeam.spread(5, 8), 8))
    >>> plan = Plan(Settings((3, 3), (2,), steps=20), dropout=False, draws=4)
    >>> found = study(scan, plan, progress=False)
    >>> found.posterior.std.shape, "PSNR" in str(found.scores()).upper()
    (torch.Size([8, 8]), True)
    """

    scan: Scan
    images: dict[str, Tensor]  # classical reconstructions by name
    reconstruction: Reconstruction
    tuned: TypeII
    posterior: ImagePosterior
    calibration: Calibration | None
    dropout: SampledImages | None
    floor: float  # added to every variance of a test density
    seconds: dict[str, float]

    def scores(self) -> dict[str, dict[str, float]]:
        """PSNR, SSIM and log-density per pixel of every method, where the truth is known."""
        truth = self.scan.truth
        if truth is None:
            return {}
        found = {name: {"psnr": psnr(image, truth), "ssim": ssim(image, truth)} for name, image in self.images.items()}
        before = self.posterior.as_linearised()
        posteriors = {"DIP": before, "DIP, linear mean": before.about_linear_mean()}
        if self.calibration is not None:
            posteriors["DIP, calibrated"] = self.posterior
        for name, post in posteriors.items():
            density = post.log_density(truth, floor=self.floor)
            found[name] = {"psnr": psnr(post.mean, truth), "ssim": ssim(post.mean, truth), "log_density": density}
        found["DIP, unit variance"] = {**found["DIP"], "log_density": unit_log_density(before.mean, truth)}
        if self.dropout is not None:
            mean = self.dropout.mean
            density = self.dropout.log_density(truth, floor=self.floor)
            found["DIP, dropout"] = {"psnr": psnr(mean, truth), "ssim": ssim(mean, truth), "log_density": density}
        return found


def tune(
    linear: Linearised, plan: Plan | None = None, *, prior: FilterPrior | None = None,
    progress: bool | Report | None = None,
) -> TypeII:  # fmt: skip
    """Hyperparameters and noise of a linearised reconstruction, exact where the data are few, else matrix-free.

    Parameters
    ----------
    linear : Linearised
        A linearised reconstruction.
    plan : Plan, optional
        What to do.
    prior : FilterPrior, optional
        Where the search begins.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    TypeII
        Hyperparameters, and the way there.

    Examples
    --------
    >>> import torch
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> 0 < tune(linear, progress=False).noise_std < 1
    True
    """
    plan = plan or Plan()
    hyperprior = None
    begin = prior or FilterPrior.typical(linear.blocks, linear.weights)
    observations = len(linear.targets)
    weight = linear.reconstruction.settings.tv_weight
    if plan.hyperprior != "none" and weight > 0:
        make = TvPredCp.tempered if plan.hyperprior == "tempered" else TvPredCp.weighted
        density = make(observations, weight, plan.hyperprior_scale)
        hyperprior = Hyperprior.of(density, difference_moments(linear, seed=plan.seed), begin)
    few = min(observations, linear.projector.size**2) <= EXACT_DATA
    if plan.matrix_free is None and few:
        return exact(linear, begin, hyperprior=hyperprior, evidence_at=plan.evidence_at, progress=progress)
    return matrix_free(
        linear, begin, plan.matrix_free or MatrixFree(), hyperprior=hyperprior, evidence_at=plan.evidence_at,
        progress=progress,
    )  # fmt: skip


def study(
    scan: Scan, plan: Plan | None = None, *, checkpoint: str | Path | None = None,
    progress: bool | Report | None = None,
) -> Study:  # fmt: skip
    """Reconstruct a scan, tune the prior and quantify the image.

    Parameters
    ----------
    scan : Scan
        What was measured.
    plan : Plan, optional
        What to do.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Study
        Everything found.

    Examples
    --------
    >>> import torch
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(8), ct.projector(ct.ParallelBeam.spread(5, 8), 8))
    >>> plan = Plan(Settings((3, 3), (2,), steps=20), dropout=False, draws=4)
    >>> found = study(scan, plan, progress=False)
    >>> found.posterior.std.shape, "PSNR" in str(found.scores()).upper()
    (torch.Size([8, 8]), True)
    """
    plan, report, seconds = plan or Plan(), reporter(progress), {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[name], clock = now - clock, now

    report("classical reconstructions")
    images = {"FBP": fbp(scan)} if isinstance(scan.projector.geometry, ParallelBeam | FanBeam) else {}
    images["CGLS"] = cgls(scan).image
    if scan.noise_std is not None:
        images["TV"] = tv(scan).image
    lap("classical")
    found = deep_image_prior(scan, plan.settings, seed=plan.seed, checkpoint=checkpoint, progress=progress)
    lap("deep image prior")
    report("linearising the network")
    linear = linearise(found)
    lap("linearise")
    tuned = tune(linear, plan, progress=progress)
    lap("hyperparameters")
    posterior = quantify(linear, tuned.prior, tuned.noise_std, draws=plan.draws, seed=plan.seed, progress=progress)
    lap("posterior")
    calibration = None
    if plan.hold_out is not None:
        calibration = calibrate(linear, tuned, every=plan.hold_out, seed=plan.seed + 1, progress=progress)
        posterior = calibration.applied(posterior)
    lap("calibration")
    dropout = dropout_image_prior(scan, plan.settings, seed=plan.seed, progress=progress) if plan.dropout else None
    lap("dropout")
    floor = stabiliser(scan.projector, scan.noise_std or tuned.noise_std)
    return Study(scan, images, found, tuned, posterior, calibration, dropout, floor, seconds)
