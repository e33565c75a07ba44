"""How long do the estimators of tables take on one core, and how much memory?

`BayesianMLPRegressor` as it comes, on the training rows of split 0 of concrete (927) and protein (41,157), fitted by a fresh process on one
thread after a fit to a few rows that loads everything. Seconds are those of the processor and of the clock, for `fit` alone; of concrete
the median of three fits. To reach: 2 s for one member and 5 s for five at about 1,000 rows, 5 min and 4 GB for protein.

OpenBLAS, which numpy and scipy bring, chooses its kernels by the model of the processor: `kernels` in a result says which. Cells
named after older kernels ask for these by $OPENBLAS_CORETYPE; the others leave the choice to OpenBLAS, whatever the environment asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import harness
import numpy as np

OWN_CHOICE, AVX2 = "", "Haswell"
CELLS: dict[str, dict[str, Any]] = {
    "concrete, 1 member": {"data": "concrete", "members": 1, "repeats": 3, "kernels": OWN_CHOICE},
    "concrete, 5 members": {"data": "concrete", "members": 5, "repeats": 3, "kernels": OWN_CHOICE},
    "concrete, 1 member, Haswell": {"data": "concrete", "members": 1, "repeats": 3, "kernels": AVX2},
    "concrete, 5 members, Haswell": {"data": "concrete", "members": 5, "repeats": 3, "kernels": AVX2},
    "protein, 5 members": {"data": "protein", "members": 5, "repeats": 1, "kernels": OWN_CHOICE},
}


def measure(data: str, members: int, repeats: int, kernels: str) -> dict[str, Any]:
    """In a process of its own, whose environment decides the kernels and the number of threads."""
    asked = {"OPENBLAS_CORETYPE": kernels} if kernels else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    command = [sys.executable, __file__, "fits", data, str(members), str(repeats)]
    finished = subprocess.run(
        command, env=kept | asked | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)} with kernels {kernels!r} ended with:\n{finished.stderr}")
    return json.loads(finished.stdout.splitlines()[-1])


def fits(data: str, members: int, repeats: int) -> dict[str, Any]:
    import torch
    from bench_tabular import split
    from threadpoolctl import threadpool_info

    from lapwing.tabular import BayesianMLPRegressor

    torch.set_num_threads(1)
    x, y, new, truth = split(data, 0)
    model = BayesianMLPRegressor(members=members, verbose=False)
    model.fit(x[:100], y[:100])
    taken = []
    for _ in range(repeats):
        before = time.process_time()
        clock, _ = harness.timed(lambda: model.fit(x, y))
        taken.append([time.process_time() - before, clock])
    seconds, clock = np.median(taken, axis=0).round(3).tolist()
    return {
        "rows": len(x), "columns": x.shape[1], "iterations": model.n_iter_, "processor_seconds": seconds, "clock_seconds": clock,
        "peak_bytes": harness.peak_memory(), "nll": float(f"{-model.log_predictive_density(new, truth).mean():.6g}"),
        "kernels": sorted({one["architecture"] for one in threadpool_info() if one["internal_api"] == "openblas"}),
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["fits"]:
        print(json.dumps(fits(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        harness.main(__file__, CELLS, measure)
