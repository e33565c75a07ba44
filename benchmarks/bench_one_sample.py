"""Is one posterior draw enough to tune the prior precision?

The features are the Jacobian of a network with one hidden layer, m outputs and weights in both layers, at digit images:
n·m rows, known exactly, so the precision at the maximum of the evidence is known from an eigen-decomposition too. The
targets come from a model of that kind with noise. The same data are tuned with few draws of many seeds: the spread is
that of the draws alone. Theory: γ itself is estimated with a relative standard deviation of √(2/(kγ)) at most from k draws.
"""

import time

import harness


def jacobian(inputs, hidden: int, outputs: int, seed: int):
    """∂/∂(V, W) of V tanh(W x), at random weights; the outputs of one input in consecutive rows: (n·m, hidden (m + p))."""
    import torch
    from problems import normals

    n, p = inputs.shape
    first, last = normals(hidden, p, seed=seed) / p**0.5, normals(outputs, hidden, seed=seed + 1) / hidden**0.5
    active = torch.tanh(inputs @ first.mT)  # (n, hidden)
    by_last = torch.einsum("nh,om->nomh", active, torch.eye(outputs, dtype=inputs.dtype))
    by_first = torch.einsum("oh,nh,np->nohp", last, 1 - active.square(), inputs)
    return torch.cat([by_last.reshape(n * outputs, -1), by_first.reshape(n * outputs, -1)], dim=1)


def measure(n: int, m: int, hidden: int, draws: list[int], seeds: int, noise_std: float) -> dict:
    import numpy as np
    import torch
    from problems import normals
    from sklearn.datasets import load_digits

    import lapwing as lw

    images = torch.from_numpy(load_digits().data)[:n] / 16
    features = jacobian((images - images.mean()) / images.std(), hidden, m, seed=0)
    weights = normals(features.shape[1], seed=2)
    targets = features @ weights + noise_std * normals(n * m, seed=3)
    model = lw.LinearModel(features, targets.reshape(n, m) if m > 1 else targets, lw.Gaussian())
    exact = lw.infer(model, prior=lw.Isotropic(), method=lw.Exact(), draws=1)
    result = {
        "rows": features.shape[0],
        "weights": features.shape[1],
        "effective_dimension": float(exact.effective_dimension),
        "prior_precision": float(exact.prior.precision[0]),
        "noise_precision": float(exact.gaussian.noise_precision[0]),
    }
    for k in draws:
        started = time.perf_counter()
        runs = [
            lw.infer(model, prior=lw.Isotropic(), method=lw.Krylov(rtol=0.01), draws=k, seed=seed, progress=False)
            for seed in range(seeds)
        ]
        prior, noise, gamma = (
            np.array([float(value(run)) / float(value(exact)) - 1 for run in runs])
            for value in (lambda p: p.prior.precision[0], lambda p: p.gaussian.noise_precision[0], lambda p: p.effective_dimension)
        )  # fmt: skip
        lost = [exact.at(float(run.prior.precision[0]), float(run.likelihood.noise_std)).log_evidence for run in runs]
        result[f"draws_{k}"] = {
            "prior_precision_error_mean": float(prior.mean()),
            "prior_precision_error_sd": float(prior.std(ddof=1)),
            "prior_precision_error_rms": float(np.sqrt((prior**2).mean())),
            "prior_precision_error_largest": float(np.abs(prior).max()),
            "noise_precision_error_rms": float(np.sqrt((noise**2).mean())),
            "effective_dimension_error_rms": float(np.sqrt((gamma**2).mean())),
            "effective_dimension_error_theory": float((2 / (k * float(exact.effective_dimension))) ** 0.5),
            "log_evidence_lost": float(exact.log_evidence) - float(np.mean([float(value) for value in lost])),
            "passes": float(np.mean([run.diagnostics.data_passes for run in runs])) / 2,
            "converged": all(run.diagnostics.converged for run in runs),
            "seconds_each": (time.perf_counter() - started) / seeds,
        }
    return result


CELLS = {
    "m = 2, 4 seeds": {"n": 100, "m": 2, "hidden": 3, "draws": [1, 8], "seeds": 4, "noise_std": 0.5},
    "m = 1": {"n": 400, "m": 1, "hidden": 8, "draws": [1, 2, 8], "seeds": 20, "noise_std": 0.5},
    "m = 100": {"n": 40, "m": 100, "hidden": 8, "draws": [1, 2, 8], "seeds": 20, "noise_std": 0.5},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
