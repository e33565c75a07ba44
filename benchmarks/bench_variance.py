"""How good is a predictive variance, for what it costs at prediction?

The networks of `bench_lenet_fit`, few enough data for a closed form to be known. The variance at a new input comes from draws,
one product with the Jacobian each (`jvps` an input), from the closed form of the Krylov space that drew them (its lower and
upper bound, one product for every output, and a pass over the training data), or from the closed form of `Exact`, the
truth. `sd_error` is the root of the mean square relative error of standard deviations over inputs and outputs; theory says
1 / √(2 k) for k draws that are exact. `repeats` seeds give it an error bar.
"""

from __future__ import annotations

from typing import Any

import harness
import torch
from bench_lenet_fit import RTOL, trained

import lapwing as lw

CELLS: dict[str, dict[str, Any]] = {
    "digits, small": {"source": "digits", "n": 60, "epochs": 5, "draws": [8, 32], "repeats": 2},
    "LeNet, Fashion-MNIST, 150": {
        "source": "fashion", "n": 150, "epochs": 12, "draws": [8, 16, 32, 64, 128], "repeats": 4, "precision": 0.016,
    },
}  # fmt: skip


def measure(source: str, n: int, epochs: int, draws: list[int], repeats: int, precision: float | None = None) -> dict:
    model, data, new = trained(source, n, epochs)
    linear = lw.linearise(model, data, lw.Categorical())
    exact = lw.infer(linear, prior=lw.GPrior(precision), method=lw.Exact(), draws=0, progress=False)
    prior, truth = lw.GPrior(float(exact.prior.precision[0])), exact.predict(new).epistemic_variance.double().sqrt()
    rows = []
    for count in draws:
        found = [drawn(linear, prior, new, truth, count, seed) for seed in range(repeats)]
        errors, bounds = (torch.tensor(one) for one in zip(*found, strict=True))
        rows.append({
            "draws": count, "jvps": count, "sd_error": float(errors.mean()),
            "standard_error": float(errors.std() / repeats**0.5), "theory": (2 * count) ** -0.5,
            "space_sd_error": float(bounds.mean()),
        })  # fmt: skip
    return {"effective_dimension": exact.effective_dimension.value, "outputs": truth.shape[1], "rows": rows}


def drawn(linear: Any, prior: Any, new: Any, truth: Any, draws: int, seed: int) -> tuple[float, float]:
    """Errors of the standard deviations: of the draws, and of the middle of the space's bounds."""
    posterior = lw.infer(
        linear, prior=prior, method=lw.Krylov(rtol=RTOL), draws=draws, seed=seed, progress=False
    )  # fmt: skip
    seen = posterior.predict(new, bounds=True)
    assert seen.bounds is not None
    middle = sum(bound.double() for bound in seen.bounds) / 2
    return error(seen.epistemic_variance.double().sqrt(), truth), error(middle.sqrt(), truth)


def error(sd: Any, truth: Any) -> float:
    return float((sd / truth - 1).square().mean().sqrt())


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
