"""Does p(η | x̂) say how far pictures were turned?

Pictures turned uniformly by ±ρ; a network that infers poses and a flow p(η | x̂) learn from them, and are judged on
pictures held out: the half-width of 90 % of p(η | x̂) (median over prototypes; 0.9 ρ plus the data's own spread is right),
the half-width of all inferred angles, which was published for MNIST with another model and mixes the data's spread with
arbitrary zeros, differences of prototypes along an orbit over those between kinds, and the correlation of applied and
inferred angles over the whole circle. MNIST is averaged to 14 × 14 pixels, 5,000 pictures, one seed.
"""

import harness


def pictures(data: str, size: int):
    import torch
    from torch.nn import functional

    from lapwing.bench.data import digits, mnist

    if data == "digits":
        x, y = (torch.cat(both) for both in zip(digits().train, digits().test, strict=True))
        return functional.pad(x.float(), [2] * 4)[:size], y[:size]
    x, y = mnist(train=size, test=0).train
    return functional.avg_pool2d(x, 2), y


def measure(data: str, size: int, degrees: float, steps: int, width: int) -> dict:
    import math

    from lapwing.symmetry import Affine, Settings, SymmetryModel, Training
    from lapwing.symmetry.study import judged, rotated

    images, labels = pictures(data, size)
    images, _ = rotated(images, degrees, seed=0)
    cut = round(0.85 * len(images))
    settings = Settings(
        width, Training(steps // 4, learning_rate=2e-3), Training(steps, learning_rate=5e-3, weight_decay=3e-2)
    )
    model = SymmetryModel(Affine.of(rotation=math.pi), settings).fit(images[:cut], progress=False)
    return judged(model, images[cut:], labels[cut:], degrees).plain()


MNIST = {"data": "mnist", "size": 5000, "steps": 1000, "width": 192}
CELLS = {
    "digits, 45°": {"data": "digits", "size": 1797, "degrees": 45, "steps": 500, "width": 96},
    **{f"MNIST, {degrees}°": {**MNIST, "degrees": degrees} for degrees in (0, 30, 90)},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
