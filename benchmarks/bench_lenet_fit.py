"""What does a whole fit of a network cost: posterior, evidence-tuned precision and 32 draws?

LeNet on Fashion-MNIST (the smallest cell: a small network on scikit-learn's digits), trained here for a few epochs, so that
it does not interpolate. `block_passes` counts products of all columns at once with the Jacobian or its transpose;
`columns_per_draw` are such products of one column, a draw; `mode_passes` go through the data with one column. `function_error` compares
the drawn functions at new inputs with those of the same space after a quarter as many steps again, of which each divides the error by
a few. A cell that was killed goes on from its checkpoint, and then says nothing of time.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness

import lapwing as lw
from benchmarks import data, networks
from lapwing.bayes.statistics import from_space
from lapwing.linalg import krylov
from lapwing.training import train

CELLS: dict[str, dict[str, Any]] = {
    "digits, small": {"source": "digits", "n": 150, "epochs": 3, "draws": 8},
    "LeNet, Fashion-MNIST": {"source": "fashion", "n": 1000, "epochs": 8, "draws": 32},
    "LeNet, Fashion-MNIST, 3,000": {"source": "fashion", "n": 3000, "epochs": 8, "draws": 32},
}
RTOL = 0.02


def measure(source: str, n: int, epochs: int, draws: int) -> dict:
    model, (x, y), new = trained(source, n, epochs)
    return whole_fit(model, x, y, new, draws)


def trained(source: str, n: int, epochs: int) -> tuple:
    """A network, its training data and a few new inputs."""
    task = data.digits() if source == "digits" else data.fashion_mnist(train=n, test=200)
    model = networks.batchnorm_cnn(width=4) if source == "digits" else networks.lenet()
    x, y = task.train[0][:n], task.train[1][:n]
    return (
        train(model, (x, y), lw.Categorical(), epochs=epochs, batch_size=64, progress=False),
        (x, y),
        task.test[0][:50],
    )


def deviations(posterior: Any, new: Any) -> Any:
    """The drawn functions, around the network."""
    return posterior.functions(new) - posterior.predict(new).mean


def grown(posterior: Any) -> Any:
    """The same draws from a larger space."""
    found = posterior.gaussian
    known, ritz = found.statistics, found.ritz
    space = krylov.grow(ritz.operator, ritz.space, max(2, ritz.space.steps // 4))
    larger = from_space(space, ritz, count=known.count, log_weight=known.log_weight)
    return replace(posterior, gaussian=replace(found, statistics=larger, ritz=larger.basis))


def whole_fit(model: Any, x: Any, y: Any, new: Any, draws: int) -> dict:
    confidence = float(model(x).detach().softmax(1).max(1).values.mean())
    started, folder = time.perf_counter(), Path(tempfile.gettempdir()) / f"lapwing-lenet-fit-{len(x)}"
    resumed = folder.exists()
    posterior = lw.fit(
        model, (x, y), lw.Categorical(), method=lw.Krylov(rtol=RTOL), draws=draws, progress=False, checkpoint=folder
    )
    seconds = float("nan") if resumed else time.perf_counter() - started
    d = posterior.diagnostics
    forward, _ = harness.timed(lambda: model(x).detach())
    ours, exact = deviations(posterior, new), deviations(grown(posterior), new)
    shutil.rmtree(folder)
    return {
        "weights": d.weights, "rows": d.observations, "mean_confidence": confidence,
        "prior_precision": float(posterior.prior.precision[0]), "effective_dimension": posterior.effective_dimension.value,
        "block_passes": d.data_passes, "block_steps": d.block_steps, "columns_per_draw": d.column_products / draws,
        "mode_passes": d.mode_passes, "error_bound": d.error_bound,
        "function_error": float((ours - exact).norm() / exact.norm()), "log_evidence": posterior.log_evidence.value,
        "fit_seconds": seconds, "forward_passes_that_take_as_long": seconds / forward,
    }  # fmt: skip


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
