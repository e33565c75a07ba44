"""Do the error bars of a linearised deep image prior beat those of MC dropout, and none, on scans of digits?

The 28 × 28 MNIST test digits, parallel beam with 41 bins, white noise of 5 or 10 % of the mean line integral. Smaller than
the publication, so that all cells fit in about half an hour of one core: `images` test digits a cell in place of 50, a
U-Net of 3 × 16 channels in place of 3 × 32, at most `steps` steps of Adam at 1e-3 in place of 7,400 – 50,000 at 1e-4, stopped
where the misfit is the noise. Hyperparameters by L-BFGS on the exact evidence at the linear mode, TV-PredCP tempered as
published; beside it, at the network's own weights. Log-densities are per pixel, pixels independent unless said, all with the published stabiliser.
"""

import harness

ANGLES, NOISES, IMAGES, STEPS = (5, 10, 20, 30), (5, 10), 2, 1500


def digits(count: int):
    """The first test digits, as attenuations in [0, 1]."""
    from lapwing.bench import data as sets

    return sets.mnist(10, count).test[0].reshape(count, 28, 28).double()


def blobs(count: int):
    """Pictures of bundled digits, where MNIST is not there: 8 × 8, enlarged to 16 × 16."""
    from torch.nn.functional import interpolate

    from lapwing.bench import data as sets

    small = sets.digits().test[0][:count].reshape(count, 1, 8, 8).double()
    return interpolate(small / small.max(), size=(16, 16), mode="bilinear")[:, 0]


def measure(data: str, angles: int, noise_percent: int, images: int, steps: int) -> dict:
    import torch

    from lapwing.tomography import ParallelBeam, projector, simulate
    from lapwing.tomography.deep_image_prior import PUBLISHED_DIGITS, Settings
    from lapwing.tomography.posterior import quantify
    from lapwing.tomography.scores import histogram_distance
    from lapwing.tomography.studies import Plan, study, tune

    torch.set_num_threads(1)
    pictures = digits(images) if data == "mnist" else blobs(images)
    size = pictures.shape[-1]
    A = projector(ParallelBeam.spread(angles, size), size)
    channels = (16, 16, 16) if data == "mnist" else (6, 6, 6)
    settings = Settings(channels, tv_weight=PUBLISHED_DIGITS[noise_percent, angles][0], steps=steps)
    rows, z, gaps = [], [], []
    for number, picture in enumerate(pictures):
        scan = simulate(picture, A, noise=noise_percent / 100, seed=number)
        found = study(scan, Plan(settings, seed=number), progress=False)
        post, dropout = found.posterior, found.dropout
        error = post.z_scores(scan.truth, floor=found.floor)
        z.append(error.reshape(-1))
        spread = (post.std.square() + found.floor).sqrt()
        gaps.append(histogram_distance(spread, error * spread))
        scores = found.scores()
        tuned = tune(post.linear, Plan(settings, evidence_at="weights"), progress=False)
        other = quantify(post.linear, tuned.prior, tuned.noise_std)
        rows.append({
            "log_density": scores["DIP"]["log_density"],
            "log_density_at_weights": other.log_density(scan.truth, floor=found.floor),
            "z_std_at_weights": float(other.z_scores(scan.truth, floor=found.floor).square().mean().sqrt()),
            "log_density_joint": post.log_density(scan.truth, patch=size, floor=found.floor),
            "log_density_dropout": scores["DIP, dropout"]["log_density"],
            "log_density_unit": scores["DIP, unit variance"]["log_density"],
            "psnr": scores["DIP"]["psnr"], "psnr_dropout": scores["DIP, dropout"]["psnr"],
            "psnr_linear": scores["DIP, linear mean"]["psnr"],
            "psnr_tv": scores["TV"]["psnr"], "psnr_fbp": scores["FBP"]["psnr"],
            "ssim": scores["DIP"]["ssim"], "ssim_tv": scores["TV"]["ssim"],
            "z_std": float(error.square().mean().sqrt()),
            "z_std_dropout": float(((scan.truth - dropout.mean).square() / (dropout.std.square() + found.floor)).mean().sqrt()),
            "noise_ratio": found.tuned.noise_std / scan.noise_std,
            "steps": found.reconstruction.steps, "stopped_at_noise": found.reconstruction.stopped_at_noise,
            "seconds": found.seconds,
        })  # fmt: skip
    keys = [key for key, value in rows[0].items() if isinstance(value, float)]
    means = {key: sum(row[key] for row in rows) / len(rows) for key in keys}
    lead = [row["log_density"] - row["log_density_dropout"] for row in rows]
    return {
        **means,
        "images": images,
        "z_std_pooled": float(torch.cat(z).square().mean().sqrt()),
        "histogram_distance": sum(gaps) / len(gaps),
        "ahead_of_dropout": sum(gap > 0 for gap in lead),
        "ahead_of_unit": sum(row["log_density"] > row["log_density_unit"] for row in rows),
        "rows": rows,
    }


def cells() -> dict[str, dict]:
    """The smallest on bundled digits, then MNIST by noise and angles."""
    found = {"bundled, 10 angles, 5 %": {"data": "digits", "angles": 10, "noise_percent": 5, "images": 1, "steps": 300}}
    for noise in NOISES:
        for angles in ANGLES if noise == 5 else ANGLES[:-1]:  # 30 angles at 10 % are left out to save time
            arguments = {"data": "mnist", "angles": angles, "noise_percent": noise, "images": IMAGES, "steps": STEPS}
            found[f"{angles} angles, {noise} %"] = arguments
    return found


CELLS = cells()

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
