"""scaling: what a fit and a prediction cost as the network and the data grow, in forward passes.

Networks of two hidden layers with unit noise and a given precision, so that nothing is tuned and nothing is trained;
times are processor time in one process, divided by that of a forward pass over the same data, so that they say more of
the method than of the machine. `fit` is in passes over all training data, `predict` in passes over 200 new inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn

from benchmarks.about import TASKS
from benchmarks.networks import mlp
from benchmarks.outcomes import Cell
from benchmarks.tasks.study import Study
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.methods import KFAC, Diagonal, Exact, Krylov
from lapwing.bayes.priors import Isotropic
from lapwing.facade import fit
from lapwing.network.parameters import last_layer

INPUTS, OUTPUTS, NEW, DRAWS = 20, 3, 200, 32
WIDTHS, SIZES = (8, 32, 128), (250, 1000, 4000)
WIDTH, SIZE = 32, 1000  # what stays while the other grows
DATA = {
    **{f"width {width}": (width, SIZE) for width in WIDTHS},
    **{f"{size} data": (WIDTH, size) for size in SIZES if size != SIZE},
}


def weights(width: int) -> int:
    """How many the network has.

    >>> weights(8)
    267
    """
    return (INPUTS + 1) * width + (width + 1) * width + (width + 1) * OUTPUTS


def _options(method: str, model: nn.Module) -> dict[str, Any]:
    ways = {"exact": Exact(), "krylov": Krylov(), "diagonal": Diagonal(), "kfac": KFAC(), "last-layer": None}
    return {"method": ways[method], "select": last_layer(model) if method == "last-layer" else None}


def seconds(work: Callable[[], Any], at_least: float = 0.05) -> tuple[float, Any]:
    """Processor time of one call, repeated until it can be measured, and what the call gave."""
    calls, began = 0, time.process_time()
    while calls == 0 or time.process_time() - began < at_least:
        found, calls = work(), calls + 1
    return (time.process_time() - began) / calls, found


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """Passes of a fit and of a prediction."""
    del folder
    width, size = DATA[cell.data]
    generator = Generator().manual_seed(cell.seed)
    model = mlp([INPUTS, width, width, OUTPUTS], seed=cell.seed).eval()
    x, new = (torch.randn(rows, INPUTS, generator=generator) for rows in (size, NEW))
    with torch.no_grad():
        y = model(x) + torch.randn(size, OUTPUTS, generator=generator)
        pass_over_data, pass_over_new = (seconds(partial(model, given))[0] for given in (x, new))
    options = _options(cell.method, model)

    def fitted() -> Any:
        return fit(
            model, (x, y), Gaussian(1.0), prior=Isotropic(1.0), draws=DRAWS, seed=cell.seed, progress=False, **options
        )

    spent, posterior = seconds(fitted)
    asked, _ = seconds(lambda: posterior.predict(new).variance)
    return {
        "fit_passes": spent / pass_over_data, "predict_passes": asked / pass_over_new, "fit_seconds": spent,
        "predict_seconds": asked, "weights": float(weights(width)), "rows": float(size * OUTPUTS),
    }  # fmt: skip


STUDY = Study(
    "scaling", TASKS["scaling"],
    ("exact", "krylov", "diagonal", "kfac", "last-layer"), tuple(DATA), run,
    ("fit_passes", "predict_passes", "fit_seconds", "predict_seconds", "weights", "rows"), lambda _: 1000,
    default_seeds=3,
)  # fmt: skip
