"""Jackknife+ intervals from leverages, against MAPIE's with n refits: the same ends, and what they cost?

Protocol, written before the first score. Ridge regression on 40 random tanh features of eight inputs, targets sin(x₁) + x₂x₃ with skewed noise whose width
depends on x₁; 500 new targets. `lapwing`: `posterior.conformal()` with prior and noise of the same ridge penalty. `MAPIE`: CrossConformalRegressor of MAPIE 1.6
with method="plus" and scikit-learn's LeaveOneOut, around scikit-learn's Ridge. Level 0.9, three seeds. Seconds are processor seconds for everything,
fitting included.
"""

import time

import harness
import peer_environment

LEVEL, PENALTY, FEATURES, NEW = 0.9, 1.0, 40, 500


def problem(n: int, seed: int):
    import torch

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + NEW, 8, generator=generator, dtype=torch.float64)
    features = torch.tanh(x @ torch.randn(8, FEATURES, generator=generator, dtype=torch.float64) / 2)
    noise = torch.randn(n + NEW, generator=generator, dtype=torch.float64).exp() - 1.6
    y = x[:, 0].sin() + x[:, 1] * x[:, 2] + 0.3 * (0.5 + x[:, 0].abs()) * noise
    return features[:n], y[:n], features[n:], y[n:]


def ours(x, y, new):
    import lapwing as lw

    posterior = lw.infer(lw.LinearModel(x, y, lw.Gaussian(1.0)), prior=lw.Isotropic(PENALTY), draws=1)
    return posterior.conformal().interval(new, LEVEL)


def by_refits(x, y, new):
    import torch
    from mapie.regression import CrossConformalRegressor
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import LeaveOneOut

    model = CrossConformalRegressor(
        Ridge(alpha=PENALTY, fit_intercept=False), confidence_level=LEVEL, method="plus", cv=LeaveOneOut()
    )
    model.fit_conformalize(x.numpy(), y.numpy())
    _, ends = model.predict_interval(new.numpy())
    return torch.from_numpy(ends[:, 0, 0]), torch.from_numpy(ends[:, 1, 0])


def measure(n: int, seeds: int) -> dict:
    import torch

    torch.set_num_threads(1)
    found = {}
    every = {}
    for name, method in (("lapwing", ours), ("MAPIE", by_refits)):
        parts = []
        for seed in range(seeds):
            x, y, new, truth = problem(n, seed)
            started = time.process_time()
            low, high = method(x, y, new)
            seconds = time.process_time() - started
            inside = (low <= truth) & (truth <= high)
            parts.append((float(inside.double().mean()), float((high - low).mean()), seconds))
            every[name, seed] = torch.stack([low, high])
        coverage, width, seconds = (sum(part) / seeds for part in zip(*parts, strict=True))
        found[name] = {"coverage": coverage, "width": width, "seconds": seconds}
    gap = max(float((every["lapwing", seed] - every["MAPIE", seed]).abs().max()) for seed in range(seeds))
    return {**found, "largest_difference_of_ends": gap}


CELLS = {"500": {"n": 500, "seeds": 3}, "2,000": {"n": 2000, "seeds": 3}}

if __name__ == "__main__":
    peer_environment.enter("mapie")
    harness.main(__file__, CELLS, measure)
