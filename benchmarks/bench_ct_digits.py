"""Do the error bars of a linearised deep image prior beat those of MC dropout, and none, on scans of digits?

The 28 × 28 MNIST test digits, parallel beam with 41 bins, white noise of 5 or 10 % of the mean line integral; one cell is
one digit, so that a killed run goes on. Smaller than the publication: `IMAGES` test digits in place of 50, a U-Net of
3 × 16 channels in place of 3 × 32, at most 1,000 steps of Adam at 3e-3 in place of 7,400 – 50,000 at 1e-4, stopped where
the misfit is the noise. Step length and number were chosen on two training digits; steps of 1e-3 left the network short
of the noise. Hyperparameters by L-BFGS on the exact evidence at the linear mode, TV-PredCP tempered as published. Dropout
has the same network, steps and step length. Log-densities are per pixel, pixels independent unless said; every variance,
of dropout too, has the same published stabiliser added.
"""

import harness

ANGLES, NOISES, IMAGES, STEPS = (5, 10, 20, 30), (5, 10), 10, 1000


def digit(data: str, number: int):
    """A test digit as attenuations in [0, 1]; bundled ones, where MNIST is not there, enlarged to 16 × 16."""
    from torch.nn.functional import interpolate

    from benchmarks import data as sets

    if data == "mnist":
        return sets.mnist(10, number + 1).test[0][number].reshape(28, 28).double()
    small = sets.digits().test[0][number].reshape(1, 1, 8, 8).double()
    return interpolate(small / small.max(), size=(16, 16), mode="bilinear")[0, 0]


def measure(data: str, angles: int, noise_percent: int, number: int, steps: int) -> dict:
    import torch

    from lapwing.studies.tomography import ParallelBeam, projector, simulate
    from lapwing.studies.tomography.deep_image_prior import PUBLISHED_DIGITS, Settings
    from lapwing.studies.tomography.scores import histogram_distance
    from lapwing.studies.tomography.studies import Plan, study

    torch.set_num_threads(1)
    truth = digit(data, number)
    size = len(truth)
    A = projector(ParallelBeam.spread(angles, size), size)
    channels = (16, 16, 16) if data == "mnist" else (6, 6, 6)
    weight = PUBLISHED_DIGITS[noise_percent, angles][0]
    settings = Settings(channels, tv_weight=weight, steps=steps, learning_rate=3e-3)
    scan = simulate(truth, A, noise=noise_percent / 100, seed=number)
    found = study(scan, Plan(settings, seed=number), progress=False)
    post, floor, scores = found.posterior, found.floor, found.scores()
    spreads = {
        "": (post.mean, post.std),
        "_linear": (post.linear_mean, post.std),
        "_dropout": (found.dropout.mean, found.dropout.std),
    }
    names = {"": "DIP", "_linear": "DIP, linear mean", "_dropout": "DIP, dropout"}
    result = {}
    for key, (mean, std) in spreads.items():
        spread = (std.square() + floor).sqrt()
        result[f"log_density{key}"] = scores[names[key]]["log_density"]
        result[f"psnr{key}"], result[f"ssim{key}"] = scores[names[key]]["psnr"], scores[names[key]]["ssim"]
        result[f"z_std{key}"] = float(((truth - mean) / spread).square().mean().sqrt())
        result[f"histogram_distance{key}"] = histogram_distance(spread, truth - mean)
    return {
        **result,
        "log_density_unit": scores["DIP, unit variance"]["log_density"],
        "log_density_joint": post.log_density(truth, patch=size, floor=floor),
        "psnr_tv": scores["TV"]["psnr"], "psnr_fbp": scores["FBP"]["psnr"],
        "floor_share": floor / (floor + float(post.std.square().mean())),
        "noise_ratio": found.tuned.noise_std / scan.noise_std,
        "steps": found.reconstruction.steps, "stopped_at_noise": found.reconstruction.stopped_at_noise,
        "seconds": found.seconds,
    }  # fmt: skip


def cells() -> dict[str, dict]:
    """The smallest on a bundled digit, then MNIST: all noises and angles of a digit before the next."""
    found = {"bundled, 5 angles, 5 %": {"data": "digits", "angles": 5, "noise_percent": 5, "number": 0, "steps": 10}}
    for number in range(IMAGES):
        for noise in NOISES:
            for angles in ANGLES:
                name = f"{angles} angles, {noise} %, digit {number}"
                found[name] = {
                    "data": "mnist",
                    "angles": angles,
                    "noise_percent": noise,
                    "number": number,
                    "steps": STEPS,
                }
    return found


CELLS = cells()  # a digit takes about 30 s of a free core

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
