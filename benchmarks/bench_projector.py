"""How long does a projector take to make, and are its products as fast as SciPy's?

The same matrix, multiplied by SciPy alone, is the unit; medians of repeats in turn. The adjoint is compared on random vectors.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import harness
import torch

from lapwing.studies import tomography as ct

CELLS: dict[str, dict[str, Any]] = {
    "32², 12 angles": {"size": 32, "angles": 12, "repeats": 5, "fan": False},
    "128², 60 angles": {"size": 128, "angles": 60, "repeats": 100, "fan": False},
    "128², 60 angles, fan": {"size": 128, "angles": 60, "repeats": 100, "fan": True},
    "256², 120 angles": {"size": 256, "angles": 120, "repeats": 30, "fan": False},
}


def measure(size: int, angles: int, repeats: int, fan: bool) -> dict:
    kind = ct.FanBeam if fan else ct.ParallelBeam
    seconds, made = harness.timed(lambda: ct.projector(kind.spread(angles=angles, size=size), size))
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(size, size, generator=generator, dtype=torch.float64)
    sinogram = torch.randn(made.shape, generator=generator, dtype=torch.float64)
    matrix = made.operator.matrix
    transposed, flat, rows = matrix.T.tocsr(), image.numpy().reshape(-1), sinogram.numpy().reshape(-1)
    times: dict[str, list[float]] = {"project": [], "scipy": [], "back": [], "scipy_back": []}
    for _ in range(repeats):
        times["project"].append(harness.timed(lambda: made.project(image))[0])
        times["scipy"].append(harness.timed(lambda: matrix @ flat)[0])
        times["back"].append(harness.timed(lambda: made.back_project(sinogram))[0])
        times["scipy_back"].append(harness.timed(lambda: transposed @ rows)[0])
    middle = {name: median(found) for name, found in times.items()}
    there, back = float((made.project(image) * sinogram).sum()), float((made.back_project(sinogram) * image).sum())
    return {
        "rays": sinogram.numel(), "entries": matrix.nnz, "build_seconds": seconds, "project_seconds": middle["project"],
        "project_ratio": middle["project"] / middle["scipy"], "back_ratio": middle["back"] / middle["scipy_back"],
        "adjoint_difference": abs(there - back) / abs(there),
    }  # fmt: skip


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
