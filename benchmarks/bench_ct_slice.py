"""Can a whole slice be reconstructed with error bars without ever forming a matrix, and are its errors where they say?

Shepp-Logan and a real head CT slice (Hounsfield units, the middle of ct_cranium_hu_int16.npz in $LAPWING_DATA), parallel
beam, 5 % noise. Matrix-free end to end: hyperparameters by preconditioned dual CG with random signs, the posterior by a
shared Krylov space. `coverage` is the share of the largest tenth of the errors that lies in the tenth of the pixels with
the largest standard deviation: 0.1 by chance.
"""

import harness


def picture(data: str, size: int):
    """A phantom, or the middle slice of a head."""
    from lapwing.bench.data.storage import find, read_npz
    from lapwing.tomography import read_image
    from lapwing.tomography.scanning.images import normalised, resized

    if data == "shepp-logan":
        return read_image("shepp-logan", size)
    path = find("ct_cranium_hu_int16.npz", what="the head CT", brings="Debian's invesalius-examples has it.")
    (volume,) = read_npz(path, *_only(path))
    return resized(normalised(volume[len(volume) // 2]), size)


def _only(path) -> list[str]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        return [name for name in file.files if file[name].ndim == 3][:1]


def measure(
    data: str, size: int, angles: int, steps: int, hyper_steps: int, probes: int, rank: int, draws: int
) -> dict:
    import torch

    from lapwing import Krylov
    from lapwing.tomography import ParallelBeam, Settings, deep_image_prior, linearise, projector, quantify, simulate
    from lapwing.tomography.baselines import unit_log_density
    from lapwing.tomography.classical import fbp, tv
    from lapwing.tomography.posterior import stabiliser
    from lapwing.tomography.scores import psnr, ssim
    from lapwing.tomography.studies import Plan, tune
    from lapwing.tomography.type_ii.matrix_free import MatrixFree

    truth, seconds = picture(data, size), {}
    seconds["projector"], A = harness.timed(lambda: projector(ParallelBeam.spread(angles, size), size))
    scan = simulate(truth, A, noise=0.05)
    seconds["tv"], smooth = harness.timed(lambda: tv(scan).image)
    settings = Settings(steps=steps, tv_weight=1e-4)
    seconds["network"], found = harness.timed(lambda: deep_image_prior(scan, settings, progress=False))
    linear = linearise(found, store=False)
    how = MatrixFree(steps=hyper_steps, probes=probes, rank=rank, refresh=hyper_steps)
    seconds["hyperparameters"], tuned = harness.timed(
        lambda: tune(linear, Plan(settings, matrix_free=how), progress=False)
    )
    seconds["posterior"], post = harness.timed(
        lambda: quantify(linear, tuned.prior, tuned.noise_std, method=Krylov(rtol=0.05), draws=draws)
    )
    floor = stabiliser(A, scan.noise_std)
    error, std = (post.mean - truth).abs().reshape(-1), post.std.reshape(-1)
    tenth = len(error) // 10
    worst, widest = (set(values.topk(tenth).indices.tolist()) for values in (error, std))
    return {
        "weights": linear.jacobian.shape[1],
        "observations": len(linear.targets),
        "psnr": psnr(post.mean, truth), "psnr_linear": psnr(post.linear_mean, truth),
        "psnr_tv": psnr(smooth, truth), "psnr_fbp": psnr(fbp(scan), truth), "ssim": ssim(post.mean, truth),
        "log_density": post.log_density(truth, floor=floor),
        "log_density_patch_2": post.log_density(truth, patch=2, floor=floor),
        "log_density_unit": unit_log_density(post.mean, truth),
        "z_std": float(post.z_scores(truth, floor=floor).square().mean().sqrt()),
        "coverage": len(worst & widest) / tenth,
        "rank_correlation": float(torch.corrcoef(torch.stack([_ranks(error), _ranks(std)]))[0, 1]),
        "noise_ratio": tuned.noise_std / scan.noise_std, "tuning": tuned.method,
        "posterior": post.posterior.diagnostics["method"], "seconds": seconds,
    }  # fmt: skip


def _ranks(values):
    return values.argsort().argsort().double()


CELLS = {
    "shepp-logan, 24²": {
        "data": "shepp-logan", "size": 24, "angles": 10, "steps": 200, "hyper_steps": 2, "probes": 2, "rank": 10, "draws": 8,
    },
}  # fmt: skip
# not run yet, about fifteen minutes of one core: a cell {"data": "head", "size": 128, "angles": 30, "steps": 800,
# "hyper_steps": 8, "probes": 3, "rank": 30, "draws": 16}, and the same of "shepp-logan"

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
