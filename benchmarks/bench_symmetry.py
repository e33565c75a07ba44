"""Does p(η | x̂) say how far pictures were turned?

Pictures turned uniformly by ±ρ; a network that infers poses and a flow p(η | x̂) learn from them, and are judged on
pictures held out: the half-width of 90 % of p(η | x̂) (median over prototypes; 0.9 ρ plus the data's own spread is right),
the half-width of all inferred angles, which was published for MNIST with another model and mixes the data's spread with
arbitrary zeros, differences of prototypes along an orbit over those between kinds, and the correlation of applied and
inferred angles over the whole circle. MNIST is averaged to 14 × 14 pixels, 5,000 pictures, one seed. The network starts
from a pose by third moments; "start" is that start alone, with a p(η | x̂) of its own, and says what training adds. In
the cell with two-fold 8s, each 8 is averaged with itself upside down before it is turned: it looks the same both ways
up, which an 8 as drawn does not.
"""

import harness


def pictures(data: str, size: int):
    import torch
    from torch.nn import functional

    from benchmarks.data import digits, mnist

    loaded = digits() if data == "digits" else mnist(train=size, test=750)
    x, y = (torch.cat(both) for both in zip(loaded.train, loaded.test, strict=True))
    pictures = functional.pad(x.float(), [2] * 4) if data == "digits" else functional.avg_pool2d(x, 2)
    return pictures, y, len(loaded.train[1])


def with_two_fold(images, chosen):
    """Pictures of which the chosen ones are averaged with themselves upside down."""
    import torch

    return torch.where(chosen[:, None, None, None], (images + images.flip(2, 3)) / 2, images)


def measure(
    data: str, size: int, degrees: float, steps: int, width: int, trained: bool, two_fold: int | None = None
) -> dict:
    import math

    from lapwing.studies.symmetry import Affine, Settings, SymmetryModel, Training
    from lapwing.studies.symmetry.inference import Poser, seeded
    from lapwing.studies.symmetry.study import judged, rotated, upside_down

    images, labels, cut = pictures(data, size)
    if two_fold is not None:
        images = with_two_fold(images, labels == two_fold)
    images, _ = rotated(images, degrees, seed=0)
    settings = Settings(
        width, Training(150, learning_rate=2e-3), Training(steps, learning_rate=5e-3, weight_decay=3e-2)
    )
    group = Affine.of(rotation=math.pi)
    start = None if trained else seeded(0, lambda: Poser(group, images[0].numel(), width)).eval()
    model = SymmetryModel(group, settings).fit(images[:cut][:size], poser=start, progress=False)
    test, kinds = images[cut:][:size], labels[cut:][:size]
    found = judged(model, test, kinds, degrees).plain()
    return found | {f"upside_down_{kind}": upside_down(model, test[kinds == kind]) for kind in (2, 8)}


DIGITS = {"data": "digits", "size": 1437, "degrees": 45, "width": 192}
MNIST = {"data": "mnist", "size": 5000, "steps": 400, "width": 192}
CELLS = {
    "digits, 45°, a part": {**DIGITS, "size": 120, "width": 24, "steps": 10, "trained": False},
    "digits, 45°": {**DIGITS, "steps": 900, "trained": True},
    **{f"MNIST, {degrees}°": {**MNIST, "degrees": degrees, "trained": True} for degrees in (0, 15, 30, 45, 90, 180)},
    **{f"MNIST, {degrees}°, start": {**MNIST, "degrees": degrees, "trained": False} for degrees in (45,)},
    "digits, 45°, start": {**DIGITS, "steps": 900, "trained": False},
    "MNIST, 45°, two-fold 8s": {**MNIST, "degrees": 45, "trained": True, "two_fold": 8},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
