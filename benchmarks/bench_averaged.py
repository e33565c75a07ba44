"""How far is the bound by products alone from the dense one, by the number of its draws?

The protocol, which was committed before any score:

- `cnn`: the network of `bench_few_digits.py`, case `unfinished` (2,202 weights), trained for 60 epochs on 100 MNIST digits; 100 test digits. (LeNet-5 on 300 digits,
  which was meant, is beyond the memory that the dense search takes, and on 100 it took more time than there was.)
- Dense: `method=Exact()`, one precision for all weights, at the maximum of the bound. By draws: `method=Krylov()`, `curvature="expected"`, with 8, 32 and 128
  draws; at the dense precision, and with 32 also with one of its own (`tuned`).
- `curvature`: the Frobenius norm of the difference of all B over that of the dense B. `mean`: the norm of the difference of the mean outputs on the training
  data over that of the dense ones. `probs`: the mean absolute difference of test probabilities, whose widths come from the draws too; the test NLL of
  both; the log evidence, the logarithm of the precision over the dense one, turns and seconds. The Jacobian is stored for both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bench_few_digits as few_digits
import harness

CELLS: dict[str, dict[str, Any]] = {
    "cnn, 100 digits": {"rows": 100, "draws": [8, 32, 128], "test": 100},
}


def measure(rows: int, draws: list[int], test: int, epochs: int = 60) -> dict[str, Any]:
    import torch

    import lapwing as lw

    torch.set_num_threads(1)
    linear, (x, y) = problem(rows, test, epochs)
    seconds, dense = harness.timed(lambda: lw.infer(linear, prior=lw.Isotropic(), method=lw.Exact(), draws=2))
    truth = parts(dense, linear, x)
    result: dict[str, Any] = {
        "weights": linear.features.shape[1], "seconds": seconds, "nll": loss(truth["probs"], y),
        "precision": float(dense.prior.precision[0]), "log_evidence": float(dense.log_evidence.value),
        "effective_dimension": float(dense.effective_dimension.value),
    }  # fmt: skip
    priors = {f"{count} draws": (count, lw.Isotropic(result["precision"])) for count in draws}
    for name, (count, prior) in {**priors, "32 draws, tuned": (32, lw.Isotropic())}.items():
        result[name] = compared(linear, prior, count, (x, y), dense, truth)
    return result


def problem(rows: int, test: int, epochs: int) -> tuple[Any, tuple[Any, Any]]:
    """A linearised network, its features stored, and test data."""
    import lapwing as lw
    from benchmarks.data import mnist
    from lapwing.linalg.operators import Dense
    from lapwing.network.linearisation import linearise
    from lapwing.training import adam, train

    task = mnist(rows, test)
    model = few_digits.CASES["unfinished"].network(0)
    model = train(
        model, task.train, lw.Categorical(), epochs=epochs, batch_size=64, optimiser=adam(2e-3), seed=0, progress=False
    )
    linear = linearise(model, task.train, lw.Categorical())
    return replace(linear, features=Dense(linear.features.rows(0, linear.features.shape[0]))), task.test


def parts(posterior: Any, linear: Any, x: Any) -> dict[str, Any]:
    """What is compared of a posterior."""
    fit = posterior.gaussian.fit
    curvature = fit.turn.curvature if hasattr(fit, "turn") else fit.search.curvature(fit.ascent)
    outputs = linear.features @ posterior.mean.to(linear.features.like)
    return {"curvature": curvature, "mean": outputs.double(), "probs": posterior.predict(x).probs.double()}


def compared(
    linear: Any, prior: Any, draws: int, test: tuple[Any, Any], dense: Any, truth: dict[str, Any]
) -> dict[str, Any]:
    """One posterior by draws beside the dense one."""
    from math import log

    import lapwing as lw

    seconds, found = harness.timed(
        lambda: lw.infer(linear, prior=prior, method=lw.Krylov(), curvature="expected", draws=draws, progress=False)
    )
    ours = parts(found, linear, test[0])
    errors = {name: float((ours[name] - truth[name]).norm() / truth[name].norm()) for name in ("curvature", "mean")}
    return {
        **errors, "probs": float((ours["probs"] - truth["probs"]).abs().mean()), "nll": loss(ours["probs"], test[1]),
        "log_evidence": float(found.log_evidence.value), "turns": found.diagnostics.bound_steps,
        "converged": found.diagnostics.converged, "data_passes": found.diagnostics.data_passes,
        "log_precision_ratio": log(float(found.prior.precision[0]) / float(dense.prior.precision[0])), "seconds": seconds,
    }  # fmt: skip


def loss(probs: Any, labels: Any) -> float:
    from lapwing import metrics

    return metrics.nll(probs, labels)


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
