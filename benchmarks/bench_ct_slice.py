"""Can a whole slice be reconstructed with error bars without ever forming a matrix, and are its errors where they say?

Shepp-Logan and a real head CT slice (Hounsfield units, the middle of ct_cranium_hu_int16.npz in $LAPWING_DATA), parallel
beam, 5 % noise. Matrix-free end to end: hyperparameters by preconditioned dual CG with random signs, the posterior by a
shared Krylov space. `coverage` is the share of the largest tenth of the errors that lies in the tenth of the pixels with
the largest standard deviation: 0.1 by chance. The projector of 128² pixels and 60 angles is made in under 10 s of one core,
or the cell fails. Step length and weight of TV were chosen at 64².

The error bars are calibrated by rays that were held out: a second network is fitted without one of every six angles, and
the rays of those choose the mean (the network's image or the linear model's) and the scale of its standard deviations.
All of that was developed at 40² and 48², on Shepp-Logan, the head and ellipses; `psnr`, `log_density` and `z_std` are of
the network's image as it was before, `calibrated_…` are of what `Calibration.applied` returns, and the cells "dropout"
have the density of MC dropout. The truth is used for scores alone. With $LAPWING_SCRATCH set to a folder, training goes on
from there after a kill, and the pictures for `plot_slices.py` are left there.
"""

import os
import time
from dataclasses import asdict
from pathlib import Path

import harness


def picture(data: str, size: int):
    """A phantom, or the middle slice of a head."""
    from lapwing.studies.datasets.storage import find, read_npz
    from lapwing.studies.tomography import read_image
    from lapwing.studies.tomography.scanning.images import normalised, resized

    if data == "shepp-logan":
        return read_image("shepp-logan", size)
    path = find("ct_cranium_hu_int16.npz", what="the head CT", brings="Debian's invesalius-examples has it.")
    (volume,) = read_npz(path, "volume")
    return resized(normalised(volume[len(volume) // 2]), size)


def scratch(data: str, size: int, angles: int) -> Path | None:
    """Where checkpoints and pictures are kept, if anywhere."""
    if "LAPWING_SCRATCH" not in os.environ:
        return None
    folder = Path(os.environ["LAPWING_SCRATCH"]) / f"{data}-{size}-{angles}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def by_dropout(data: str, size: int, angles: int, channels: int, steps: int) -> dict:
    """The same scan by a network with dropout, at training and test."""
    from lapwing.studies.tomography import ParallelBeam, Settings, dropout_image_prior, projector, simulate
    from lapwing.studies.tomography.posterior import stabiliser
    from lapwing.studies.tomography.scores import psnr, ssim

    truth = picture(data, size)
    scan = simulate(truth, projector(ParallelBeam.spread(angles, size), size), noise=0.05)
    settings = Settings((channels,) * 3, steps=steps, tv_weight=1e-4, learning_rate=3e-3)
    found = dropout_image_prior(scan, settings, progress=False)
    floor = stabiliser(scan.projector, scan.noise_std)
    return {
        "psnr": psnr(found.mean, truth), "ssim": ssim(found.mean, truth), **spread(truth - found.mean, found.std, floor)
    }  # fmt: skip


def measure(data: str, size: int, angles: int, channels: int, steps: int, **how: int) -> dict:
    if not how:
        return by_dropout(data, size, angles, channels, steps)
    return by_laplace(data, size, angles, channels, steps, **how)


def by_laplace(
    data: str, size: int, angles: int, channels: int, steps: int, hyper_steps: int, probes: int, rank: int, draws: int
) -> dict:
    import numpy as np

    from lapwing import Krylov
    from lapwing.studies.tomography import (
        ParallelBeam,
        Settings,
        calibrate,
        deep_image_prior,
        linearise,
        projector,
        quantify,
        simulate,
    )
    from lapwing.studies.tomography.baselines import unit_log_density
    from lapwing.studies.tomography.classical import fbp, tv
    from lapwing.studies.tomography.posterior import stabiliser
    from lapwing.studies.tomography.scores import psnr, ssim
    from lapwing.studies.tomography.studies import Plan, tune
    from lapwing.studies.tomography.type_ii.matrix_free import MatrixFree

    folder, truth, seconds = scratch(data, size, angles), picture(data, size), {}
    started = time.process_time()
    assert projector(ParallelBeam.spread(60, 128), 128).shape == (60, 183)
    seconds["projector"] = time.process_time() - started
    assert seconds["projector"] < 10
    A = projector(ParallelBeam.spread(angles, size), size)
    scan = simulate(truth, A, noise=0.05)
    seconds["tv"], smooth = harness.timed(lambda: tv(scan).image)
    settings = Settings((channels,) * 3, steps=steps, tv_weight=1e-4, learning_rate=3e-3)
    seconds["network"], found = harness.timed(
        lambda: deep_image_prior(scan, settings, checkpoint=folder and folder / "half.pt", progress=False)
    )
    linear = linearise(found, store=False)
    how = MatrixFree(steps=hyper_steps, probes=probes, rank=rank, max_cg_steps=30, rtol=0.03)
    seconds["hyperparameters"], tuned = harness.timed(
        lambda: tune(linear, Plan(settings, matrix_free=how), progress=False)
    )

    def images():
        post = quantify(linear, tuned.prior, tuned.noise_std, method=Krylov(rtol=0.05), draws=draws)
        return post, post.deviations()

    seconds["posterior"], (post, deviations) = harness.timed(images)
    std, diagnostics = post.std, post.posterior.diagnostics
    seconds["calibration"], calibration = harness.timed(
        lambda: calibrate(linear, tuned, method=Krylov(rtol=0.05), draws=min(draws, 8), progress=False)
    )
    mended = calibration.applied(post)
    floor = stabiliser(A, scan.noise_std)
    mean, back = found.image, fbp(scan)
    if folder is not None:
        shown = {"truth": truth, "fbp": back, "tv": smooth, "dip": mean, "std": std, "draw": mean + deviations[0],
                 "calibrated": mended.mean, "calibrated_std": mended.std}  # fmt: skip
        np.savez_compressed(folder / "images.npz", **{name: image.numpy() for name, image in shown.items()})
    return {
        "weights": linear.jacobian.shape[1],
        "observations": len(linear.targets),
        "psnr": psnr(mean, truth), "psnr_linear": psnr(post.linear_mean, truth),
        "psnr_tv": psnr(smooth, truth), "psnr_fbp": psnr(back, truth),
        "ssim": ssim(mean, truth), "ssim_tv": ssim(smooth, truth),
        "log_density_unit": unit_log_density(mean, truth),
        **spread(truth - mean, std, floor),
        **{f"linear_{name}": value for name, value in spread(truth - post.linear_mean, std, floor).items()},
        "calibrated_psnr": psnr(mended.mean, truth), "calibrated_ssim": ssim(mended.mean, truth),
        **{f"calibrated_{name}": value for name, value in spread(truth - mended.mean, mended.std, floor).items()},
        "calibration": asdict(calibration),
        "noise_ratio": tuned.noise_std / scan.noise_std, "tuning": tuned.method, "notes": list(tuned.notes),
        "posterior": {key: getattr(diagnostics, key) for key in ("method", "converged", "limited_by", "block_steps", "error_bound")},
        "settings": {key: str(value) for key, value in asdict(settings).items()}, "seconds": seconds,
    }  # fmt: skip


def spread(error, std, floor: float) -> dict[str, float]:
    """How well the standard deviations describe the errors."""
    import torch

    from lapwing.studies.tomography.posterior import marginal_log_density

    error, std = error.reshape(-1), std.reshape(-1)
    tenth = len(error) // 10
    worst, widest = (set(values.topk(tenth).indices.tolist()) for values in (error.abs(), std))
    variance = std.square() + floor
    return {
        "log_density": marginal_log_density(error, variance),
        "z_std": float((error.square() / variance).mean().sqrt()),
        "coverage": len(worst & widest) / tenth,
        "rank_correlation": float(torch.corrcoef(torch.stack([_ranks(error.abs()), _ranks(std)]))[0, 1]),
        "floor_std": floor**0.5, "std_rms": float(std.square().mean().sqrt()), "error_rms": float(error.square().mean().sqrt()),
    }  # fmt: skip


def _ranks(values):
    return values.argsort().argsort().double()


SMALL = {"channels": 4, "steps": 10, "hyper_steps": 1, "probes": 2, "rank": 6, "draws": 4}
FULL = {"channels": 16, "steps": 1000, "hyper_steps": 15, "probes": 4, "rank": 60, "draws": 32}
PLAN = {
    "shepp-logan, 16²": {"data": "shepp-logan", "size": 16, "angles": 8, **SMALL},
    "shepp-logan, 128²": {"data": "shepp-logan", "size": 128, "angles": 30, **FULL},
    "head, 128²": {"data": "head", "size": 128, "angles": 60, **FULL},
    "shepp-logan, 64²": {"data": "shepp-logan", "size": 64, "angles": 15, **FULL},
    "head, 64²": {"data": "head", "size": 64, "angles": 30, **FULL},
    "shepp-logan, 64², dropout": {"data": "shepp-logan", "size": 64, "angles": 15, "channels": 16, "steps": 1000},
    "head, 64², dropout": {"data": "head", "size": 64, "angles": 30, "channels": 16, "steps": 1000},
    "shepp-logan, 128², dropout": {"data": "shepp-logan", "size": 128, "angles": 30, "channels": 16, "steps": 1000},
    "head, 128², dropout": {"data": "head", "size": 128, "angles": 60, "channels": 16, "steps": 1000},
}
RUN = 3  # cells of the plan that have been run; a slice of 128² takes seven to fourteen minutes of a core
CELLS = dict(list(PLAN.items())[:RUN])

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
