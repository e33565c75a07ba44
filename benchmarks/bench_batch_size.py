"""How large must a batch be for the error of L′, with the noise in the anchor, if the noise stays in the fit term (L)?

Theory: n/γ − 1 times as large, 16 where the effective dimension γ is n/17. Here the error of the draws in the energy norm
is measured over batch sizes, at an equal number of steps of one length, with batches drawn independently of each other.
A batch holds different rows, so its variance has the factor (n − b)/(n − 1), which favours large batches a little.
"""

import harness


def measure(n: int, d: int, decay: float, draws: int, steps: int, batch_sizes: list[int], seed: int) -> dict:
    """Normal features with column j scaled by (j + 1)^−decay: 0 is the easy case, more makes SGD converge slowly."""
    import numpy as np
    import torch
    from problems import drawing, hessian, minimiser, normals, precision_for

    from lapwing.linalg.stochastic import best_fraction

    features = normals(n, d, seed=seed) * torch.arange(1, d + 1).double() ** -decay
    precision = precision_for(torch.linalg.eigvalsh(features.mT @ features), n / 17)
    objective, system = drawing(features, precision, draws, seed + 1), hessian(features, precision)
    truth = minimiser(objective)
    weights, leverages = features.square().sum(1), ((features @ torch.linalg.inv(system)) * features).sum(1)

    def error(z) -> float:
        e = z - truth
        return float(((e * (system @ e)).sum() / (truth * (system @ truth)).sum()).sqrt())

    length = stable_length(objective, min(batch_sizes), seed)
    fractions = {"fit": 1.0, "anchor": 0.0, "mixture": best_fraction(weights, leverages)}
    errors = {
        name: [error(descend(objective, fraction, size, steps, length, seed)) for size in batch_sizes]
        for name, fraction in fractions.items()
    }
    # the batch size at which the fit curve, straight between its logarithms, meets each error of the anchor curve
    sizes, fit, anchor = (np.log(values) for values in (batch_sizes, errors["fit"], errors["anchor"]))
    reached = (anchor >= fit.min()) & (anchor <= fit.max())
    ratios = np.exp(np.interp(-anchor[reached], -fit, sizes) - sizes[reached])
    return {
        "batch_sizes": batch_sizes,
        "errors": errors,
        "error_at_start": error(objective.anchors),
        "step_length": length,
        "mixture_fraction": fractions["mixture"],
        "effective_dimension": float(leverages.sum()),
        "condition_number": float(torch.linalg.eigvalsh(system)[-1]) / precision,
        "predicted_ratio": float((weights * (1 - leverages)).sum() / (weights * leverages).sum()),
        "batch_size_ratios": ratios.tolist(),
        "batch_size_ratio": float(np.median(ratios)) if len(ratios) else None,
        "squared_error_ratio": float(np.exp(2 * np.median(fit - anchor))),
        "mixture_over_anchor": float(np.exp(np.median(np.log(errors["mixture"]) - anchor))),
    }


def stable_length(objective, batch_size: int, seed: int, momentum: float = 0.9) -> float:
    """SGD's own rule for the step length, at the smallest batch."""
    import torch

    from lapwing.linalg.stochastic import Minibatches

    batches = Minibatches(objective.features, batch_size, momentum)
    return batches.step_length(objective.precision, torch.Generator().manual_seed(seed))


def descend(objective, fraction: float, batch_size: int, steps: int, length: float, seed: int):
    from dataclasses import replace

    import torch

    from lapwing.linalg.stochastic import StochasticGradients

    solver = StochasticGradients(batch_size, steps, averaging=0.01, step_length=length, reshuffled=False)
    return solver.solve(replace(objective, fraction=fraction), generator=torch.Generator().manual_seed(seed)).x


SIZES = {"draws": 8, "seed": 0}
CELLS = {
    "n = 2,048": {"n": 2048, "d": 132, "decay": 0.0, "steps": 1200, "batch_sizes": [8, 32, 128, 512], **SIZES},
    "n = 16,384": {
        "n": 16_384, "d": 1_060, "decay": 0.0, "steps": 2_000, "batch_sizes": [2**i for i in range(4, 12)], **SIZES,
    },
    "n = 8,192, decaying spectrum": {
        "n": 8_192, "d": 800, "decay": 0.5, "steps": 2_000, "batch_sizes": [2**i for i in range(4, 11)], **SIZES,
    },
}  # fmt: skip

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
