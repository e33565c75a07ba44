"""Does it pay to choose the angles of a scan by what the first few left open?

Images of 32 × 32 pixels: bars that all run in one random direction ("bars"), or discs, which have none ("discs"). Four
equispaced angles are measured, the deep image prior is fitted and linearised, and six more are chosen one after the other
by the information gain under its posterior covariance. Beside it: ten equispaced angles, turned by half a step, and the
mean over four sets of ten random ones. Every set is then reconstructed alike, by total variation with the weight that the
noise asks for with equispaced angles, and scored by its root mean square error. Noise is 5 % of the mean line integral.
"""

import math

import harness

SIZE, FIRST, TOTAL, CANDIDATES, RANDOM = 32, 4, 10, 60, 4


def image(kind: str, seed: int):
    """Four bars of one direction, or five discs, at random places; and the direction in radians."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    axis = torch.arange(SIZE, dtype=torch.float64) - (SIZE - 1) / 2
    x, y = axis[None, :], -axis[:, None]
    found, direction = torch.zeros(SIZE, SIZE, dtype=torch.float64), uniform(0, math.pi)
    for number in range(4 if kind == "bars" else 5):
        value = uniform(0.4, 1)
        if kind == "bars":
            place = -9 + 6 * number + uniform(-1, 1)
            along = x * math.cos(direction) + y * math.sin(direction) - uniform(-2, 2)
            across = y * math.cos(direction) - x * math.sin(direction) - place
            inside = (along.abs() < uniform(6, 10)) & (across.abs() < uniform(0.8, 1.8))
        else:
            inside = (x - uniform(-8, 8)).square() + (y - uniform(-8, 8)).square() < uniform(2, 5) ** 2
        found = torch.where(inside, value, found)
    return found, direction


def measure(kind: str, images: int, steps: int) -> dict:
    rows = [one(kind, seed, steps) for seed in range(images)]
    keys = ("chosen", "equispaced", "random")
    gaps = [row["equispaced"] - row["chosen"] for row in rows]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / max(1, len(gaps) - 1)) ** 0.5
    return {
        **{f"error_{key}": sum(row[key] for row in rows) / len(rows) for key in keys},
        "gain": mean, "gain_standard_error": spread / len(gaps) ** 0.5,
        "ahead": sum(gap > 0 for gap in gaps), "images": images,
        "degrees_to_direction": sum(row["degrees_to_direction"] for row in rows) / len(rows),
        "rows": rows,
    }  # fmt: skip


def one(kind: str, seed: int, steps: int) -> dict:
    """Errors of one image from chosen, equispaced and random angles."""
    import torch

    from lapwing.studies.tomography import (
        ParallelBeam,
        Settings,
        deep_image_prior,
        linearise,
        next_angles,
        projector,
        quantify,
        simulate,
        tune,
        tv,
    )

    torch.set_num_threads(1)
    truth, direction = image(kind, seed)
    bins = ParallelBeam.spread(1, SIZE).bins

    def scanned(angles):
        return simulate(truth, projector(ParallelBeam(angles, bins), SIZE), noise=0.05, seed=seed)

    even = (torch.arange(TOTAL, dtype=torch.float64) + 0.5) * (math.pi / TOTAL)
    weight = tv(scanned(even)).weight

    def error(angles) -> float:
        return float((tv(scanned(angles), weight).image - truth).square().mean().sqrt())

    first = torch.arange(FIRST, dtype=torch.float64) * (math.pi / FIRST)
    scan = scanned(first)
    settings = Settings((8, 8, 8), steps=steps, learning_rate=3e-3)
    linear = linearise(deep_image_prior(scan, settings, seed=seed, progress=False))
    tuned = tune(linear, progress=False)
    left = torch.arange(CANDIDATES, dtype=torch.float64) * (math.pi / CANDIDATES)
    left = left[[i for i in range(CANDIDATES) if i % (CANDIDATES // FIRST)]]
    covariance = quantify(linear, tuned.prior, tuned.noise_std, draws=2).covariance()
    picked = next_angles(covariance, left, TOTAL - FIRST, noise_std=scan.noise_std, bins=bins).angles
    generator = torch.Generator().manual_seed(seed + 1000)
    random = [math.pi * torch.rand(TOTAL, generator=generator, dtype=torch.float64) for _ in range(RANDOM)]
    edge = direction + math.pi / 2  # rays along the bars have this angle
    away = ((picked - edge + math.pi / 2) % math.pi - math.pi / 2).abs()
    return {
        "chosen": error(torch.cat([first, picked])), "equispaced": error(even),
        "random": sum(map(error, random)) / RANDOM,
        "degrees": torch.rad2deg(picked).tolist(), "direction": math.degrees(edge % math.pi),
        "degrees_to_direction": float(torch.rad2deg(away).mean()),
    }  # fmt: skip


PLAN = {
    "bars, 1 image": {"kind": "bars", "images": 1, "steps": 15},
    "bars": {"kind": "bars", "images": 10, "steps": 600},
    "discs": {"kind": "discs", "images": 10, "steps": 600},
}
RUN = 3  # cells of the plan that have been run; ten images take about four minutes of a free core
CELLS = dict(list(PLAN.items())[:RUN])

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
