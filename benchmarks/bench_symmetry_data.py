"""Does undoing rotations save data?

MNIST averaged to 14 × 14 pixels and turned by any angle; 300 test pictures turned too. Each model is scored by a lower
bound on log p(x) of the pixels in the disc, in nats a picture: a linear Gaussian model of pictures (exact), a variational
autoencoder of pictures, and `SymmetryModel`, which is a linear Gaussian model of prototypes with poses; both bounds from
64 importance weights. 15 % of the pictures are held out to choose ranks and epochs. The autoencoder's 32 latents, 256 hidden
units and 2,000 steps were the best of four on pictures held out, and take about twice the time of the prototypes. One
seed.
"""

import harness


def pictures(data: str, size: int):
    import torch
    from torch.nn import functional

    from benchmarks.data import digits, mnist
    from lapwing.studies.symmetry.study import rotated

    loaded = digits() if data == "digits" else mnist(train=size, test=300)

    def read(part, seed: int) -> torch.Tensor:
        x = functional.pad(part.float(), [2] * 4) if data == "digits" else functional.avg_pool2d(part, 2)
        return rotated(x, 180, seed=seed)[0]

    return read(loaded.train[0][:size], 0), read(loaded.test[0][:300], 1)


def measure(data: str, size: int, model: str, steps: int, interpolation: str = "bilinear") -> dict:
    import math

    from lapwing.studies.symmetry import JointModel, JointSettings, Settings, SymmetryModel, Training
    from lapwing.studies.symmetry.prototypes import Subspace
    from lapwing.studies.symmetry.warping import checked, disc

    train, test = pictures(data, size)
    if model == "linear":
        inside = disc(train.shape[-1], train).bool()
        train, test = (checked(part, turned=True)[:, 0, inside].double() for part in (train, test))
        cut = round(0.15 * len(train))
        found = Subspace.of(train[cut:], train[:cut]).log_prob(test)
    elif model == "autoencoder":
        settings = JointSettings(32, 256, posed=False, first_beta=1, training=Training(steps, learning_rate=2e-3))
        found = JointModel(settings=settings).fit(train, progress=False).log_prob(test, draws=2, importance=64).value
    else:
        stages = Training(150, learning_rate=2e-3), Training(steps, learning_rate=5e-3, weight_decay=3e-2)
        fitted = SymmetryModel(settings=Settings(192, *stages, interpolation=interpolation)).fit(train, progress=False)
        found = fitted.log_prob(test, draws=2, importance=64).value
    return {"log_prob": float(found.mean()), "standard_error": float(found.std() / math.sqrt(len(found)))}


MODELS = {
    "linear": {"model": "linear", "steps": 0},
    "autoencoder": {"model": "autoencoder", "steps": 2000},
    "prototypes": {"model": "prototypes", "steps": 300},
    "prototypes, bicubic": {"model": "prototypes", "steps": 300, "interpolation": "bicubic"},
}
CELLS = {
    "digits, 300 pictures, linear": {"data": "digits", "size": 300, "model": "linear", "steps": 0},
    **{
        f"MNIST, {size:,} pictures, {name}": {"data": "mnist", "size": size, **model}
        for size in (1000, 5000, 20000)
        for name, model in MODELS.items()
    },
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
