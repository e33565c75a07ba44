"""What fails without each of three conjectures about poses and prototypes?

Pictures turned by ±30°, judged on test pictures. (a) Poses: every 8 is averaged with itself upside down, so that it is met
both ways up, and p(η | x̂) is a flow, a Gaussian, or a flow that does not see x̂: the share of 8s and of 2s with two modes
half a turn apart, the overlap of p(η | x̂) with itself half a turn on (1 for what looks the same both ways up, 0 for what
does not), and log p(η | x̂) of inferred poses. (b) Invariance: prototypes should be one over the whole group, also where the data
show a part of it. The network of the two stages is made alike over ±ρ ("network"), or the encoder of the joint model is
averaged over ±ρ ("encoder"): differences of prototypes of one picture over those between kinds, and the share of pictures
whose prototype is nearest to that of the same picture turned otherwise, each along the range of the data and along the
whole circle.
"""

import harness
from bench_symmetry import pictures, with_two_fold

DEGREES = 30


def centred(density):
    """Each circular density turned to have its modes at 0° and ±180°, the larger one at 0°: (n, points)."""
    import torch

    points = density.shape[1]
    angles = (torch.arange(points) + 0.5) / points * 2 * torch.pi - torch.pi
    doubled = torch.polar(density, (2 * angles).expand_as(density)).sum(1).angle() / 2
    shifts = (-doubled / (2 * torch.pi) * points).round().int().tolist()
    rolled = torch.stack([row.roll(shift) for row, shift in zip(density, shifts, strict=True)])
    off = rolled[:, points // 4 : 3 * points // 4].sum(1) < rolled.sum(1) / 2
    return torch.where(off[:, None], rolled.roll(points // 2, 1), rolled)


def poses(model, images, labels) -> dict:
    """(a) on test pictures."""
    import torch

    from lapwing.studies.symmetry.study import density_of_angle, pose_scores, upside_down

    found = {}
    for kind in (2, 8):
        chosen = images[labels == kind]
        _, density = density_of_angle(model, model.prototype(chosen))
        half = density.roll(density.shape[1] // 2, 1)
        scores = pose_scores(model, chosen)
        found |= {
            f"upside_down_{kind}": upside_down(model, chosen),
            f"overlap_{kind}": float((torch.minimum(density, half).sum(1) / density.sum(1)).mean()),
            f"pose_score_{kind}": float(scores.mean()),
            f"mean_density_{kind}": [round(value, 6) for value in centred(density).mean(0).tolist()],
        }
    scores = pose_scores(model, images)
    return found | {"pose_score": float(scores.mean()), "pose_score_error": float(scores.std() / len(scores) ** 0.5)}


def found_again(model, images, degrees: float) -> float:
    """Share of pictures whose prototype is nearest to that of the same picture turned otherwise, of all pictures'."""
    import torch

    from lapwing.studies.symmetry.study import rotated

    first, second = (model.prototype(rotated(images, degrees, seed=seed)[0]).flatten(1) for seed in (20, 21))
    return float((torch.cdist(first, second).argmin(1) == torch.arange(len(images))).double().mean())


def prototypes(model, images, labels) -> dict:
    """(b) on test pictures before they are turned."""
    from lapwing.studies.symmetry.study import orbit_ratio

    return {
        "orbit_ratio_in_data": orbit_ratio(model, images, labels, DEGREES),
        "orbit_ratio": orbit_ratio(model, images, labels),
        "found_again_in_data": found_again(model, images, DEGREES),
        "found_again": found_again(model, images, 180),
    }


def measure(
    data: str, size: int, network_steps: int, steps: int, part: str, shape: str, conditional: bool, reach: float
) -> dict:
    import math

    from lapwing.studies.symmetry import Affine, JointModel, JointSettings, Settings, SymmetryModel, Training
    from lapwing.studies.symmetry.study import rotated

    images, labels, cut = pictures(data, size)
    if part == "poses":
        images = with_two_fold(images, labels == 8)
    turned, _ = rotated(images, DEGREES, seed=0)
    if part == "encoder":
        settings = JointSettings(
            8, 128, 6, reach / 180, first_beta=1, training=Training(steps, learning_rate=2e-3)
        )  # fmt: skip
        return prototypes(JointModel(settings=settings).fit(turned[:cut], progress=False), images[cut:], labels[cut:])
    stages = Training(network_steps, learning_rate=2e-3), Training(steps, learning_rate=5e-3, weight_decay=3e-2)
    group = Affine.of(rotation=max(math.radians(reach), 1e-6))  # a bound is positive
    model = SymmetryModel(group, Settings(192, *stages, shape, conditional)).fit(turned[:cut], progress=False)
    if part == "network":
        return prototypes(model, images[cut:], labels[cut:])
    return poses(model, turned[cut:], labels[cut:])


PLAIN = {"shape": "spline", "conditional": True, "reach": 180}
MNIST = {"data": "mnist", "size": 5000, "network_steps": 150}
KINDS = {
    "flow": PLAIN,
    "Gaussian": {**PLAIN, "shape": "gaussian"},
    "without x̂": {**PLAIN, "conditional": False},
}
CELLS = {
    "digits, network ±30°": {
        "data": "digits",
        "size": 1437,
        "network_steps": 40,
        "steps": 2,
        "part": "network",
        **PLAIN,
        "reach": 30,
    },
    **{f"poses, {name}": {**MNIST, "steps": 800, "part": "poses", **options} for name, options in KINDS.items()},
    **{
        f"{part} ±{reach}°": {**MNIST, "steps": steps, "part": part, **PLAIN, "reach": reach}
        for part, steps in (("network", 2), ("encoder", 500))
        for reach in (0, 30, 60, 90, 180)
    },
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
