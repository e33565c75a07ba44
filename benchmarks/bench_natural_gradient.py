"""Do natural gradients reach the ELBO of Bayes by Backprop in half the epochs?

One hidden layer of 50 ReLU units on scikit-learn's digits (1,257 of them, batches of 64), η = 0.1, a falling step length.
Every method has a grid of 16 settings (rates, and for Backprop first widths, for the others decays of the curvature and its
first value), of which the one with the best ELBO on the training data at seed 0 is run with three other seeds. `epochs` are
those of Bayes by Backprop; VOGN and IVON get half. An ELBO is that of the training data, with its Kullback-Leibler part in
closed form and 64 draws for the rest. A first run had four settings for Backprop, whose best was the last of them, and 16
for the others: hence this grid.
"""

import harness

RATES = {"backprop": (1e-2, 3e-2, 0.1, 0.3), "natural": (0.05, 0.1, 0.2, 0.4)}
DECAYS, CURVATURES, WIDTHS = (0.9, 0.98), (0.02, 0.2), (0.01, 0.04, 0.1, 0.2)
SEEDS = (1, 2, 3)


def settings(kind: str) -> list[tuple]:
    from lapwing.families import variational

    if kind == "backprop":
        return [(variational.BayesByBackprop(rate), width) for rate in RATES["backprop"] for width in WIDTHS]
    return [
        (variational.NaturalGradient(kind, learning_rate=rate, curvature_decay=decay, initial_curvature=curvature), None)
        for rate in RATES["natural"] for decay in DECAYS for curvature in CURVATURES
    ]  # fmt: skip


def elbo(setting: tuple, epochs: int, seed: int) -> float:
    from torch import nn

    import lapwing as lw
    from benchmarks import data, networks
    from lapwing.families import variational

    (method, width), (x, y) = setting, data.digits().train
    pair = x.float().flatten(1), y
    model = networks.mlp([pair[0].shape[1], 50, 10], activation=nn.ReLU, seed=seed)
    found = variational.fit(
        model, pair, lw.Categorical(), temperature=0.1, epochs=epochs, batch_size=64, method=method, seed=seed,
        initial_std=width, schedule=lambda done: 1 - done, progress=False,
    )  # fmt: skip
    return found.elbo(pair, draws=64).value.value


def measure(kind: str, epochs: int, most: int | None = None) -> dict:
    from dataclasses import asdict

    from lapwing.training import Diverged

    mine, tried = epochs if kind == "backprop" else epochs // 2, []
    for method in settings(kind)[:most]:
        try:
            tried.append((elbo(method, mine, 0), method))
        except (Diverged, ValueError):
            tried.append((float("-inf"), method))
    best = max(tried, key=lambda pair: pair[0])[1]
    others = [elbo(best, mine, seed) for seed in SEEDS]
    mean = sum(others) / len(others)
    spread = (sum((one - mean) ** 2 for one in others) / (len(others) - 1)) ** 0.5
    return {
        "epochs": mine, "elbo": mean, "standard_error": spread / len(others) ** 0.5, "chosen": {**asdict(best[0]), "initial_std": best[1]},
        "tried": [value if value > float("-inf") else None for value, _ in tried],
    }  # fmt: skip


CELLS = {
    "IVON, 4 epochs, small": {"kind": "ivon", "epochs": 4, "most": 2},
    **{
        f"{name}, {epochs} epochs": {"kind": kind, "epochs": epochs}
        for epochs in (20, 80)
        for name, kind in (("Bayes by Backprop", "backprop"), ("VOGN", "vogn"), ("IVON", "ivon"))
    },
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
