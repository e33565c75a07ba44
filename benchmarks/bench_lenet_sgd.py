"""What do stochastic gradients on L' need for the draws of a network's posterior?

The networks of `bench_lenet_fit`, with few enough data that `Exact` says what the draws should be. At the precision that evidence finds (for LeNet, the one it finds with 1,000 images, `bench_lenet_fit`), `sgd` has the relative error of the drawn functions at new inputs after so many epochs, from the same noise;
`block_passes` are those of a Krylov space, counted as products with the Jacobian or its transpose, and `function_error` its
error. One epoch is two such products with every row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import harness
from bench_lenet_fit import RTOL, deviations, trained

import lapwing as lw
from lapwing.bayes.methods.storing import stored_features

CELLS: dict[str, dict[str, Any]] = {
    "digits, small": {"source": "digits", "n": 100, "epochs": 10, "draws": 4, "sgd": [4, 16]},
    "LeNet, Fashion-MNIST, 300": {
        "source": "fashion",
        "n": 300,
        "epochs": 12,
        "draws": 8,
        "sgd": [4, 16, 64, 256],
        "precision": 0.016,
    },
}
BATCH = 128


def measure(source: str, n: int, epochs: int, draws: int, sgd: list[int], precision: float | None = None) -> dict:
    model, data, new = trained(source, n, epochs)
    linear = lw.linearise(model, data, lw.Categorical())
    exact = lw.infer(linear, prior=lw.GPrior(precision), method=lw.Exact(), draws=draws, progress=False)
    prior, truth = lw.GPrior(float(exact.prior.precision[0])), deviations(exact, new)
    stored = replace(linear, features=stored_features(linear.features, linear.outputs))
    krylov = lw.infer(stored, prior=prior, method=lw.Krylov(rtol=RTOL), draws=draws, progress=False)
    errors = {}
    for number in sgd:
        method = lw.SGD("L'", BATCH, steps=number * -(-stored.features.shape[0] // BATCH))
        drawn = lw.infer(stored, prior=prior, method=method, draws=draws, progress=False)
        errors[str(number)] = float((deviations(drawn, new) - truth).norm() / truth.norm())
    return {
        "effective_dimension": exact.effective_dimension.value, "prior_precision": float(exact.prior.precision[0]),
        "block_passes": krylov.diagnostics.data_passes,
        "function_error": float((deviations(krylov, new) - truth).norm() / truth.norm()), "sgd": errors,
    }  # fmt: skip


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
