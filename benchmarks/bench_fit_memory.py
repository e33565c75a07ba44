"""Does the memory of a whole fit come out as foretold?

LeNet with class labels, float32, `Exact` with 32 draws, `Krylov` and `CG` with 8. The peak of resident memory during the fit,
over what the process held before, beside `diagnostics.memory`, which is worked out before anything large is made.
"""

from __future__ import annotations

import gc
from pathlib import Path

import harness
import torch

import lapwing as lw
from benchmarks import networks

CELLS = {f"{n} data": {"n": n} for n in (40, 100, 150)}
CELLS |= {f"Krylov, {n:,} data": {"n": n, "method": "krylov"} for n in (400, 1600)}
CELLS |= {"CG, 400 data": {"n": 400, "method": "cg"}}


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


METHODS = {"exact": lw.Exact(), "krylov": lw.Krylov(rtol=0.05), "cg": lw.CG(rtol=1e-2)}


def measure(n: int, method: str = "exact") -> dict:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(n, 1, 28, 28, generator=generator), torch.randint(10, (n,), generator=generator)
    model, options = networks.lenet().eval(), {"prior": lw.Isotropic(1.0), "method": METHODS[method], "progress": False}
    lw.fit(model, (x[:4], y[:4]), lw.Categorical(), draws=2, **options)  # what the first call ever allocates
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    posterior = lw.fit(model, (x, y), lw.Categorical(), draws=8 if method != "exact" else 32, **options)
    peak, predicted = resident("VmHWM") - before, posterior.diagnostics.memory[method]
    return {"peak_bytes": peak, "predicted_bytes": predicted, "predicted_over_measured": predicted / peak}


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
