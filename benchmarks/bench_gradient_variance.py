"""How much less noisy are minibatch gradients of L′ than of L, and when does it lose?

L has the noise in its fit term, L′ in its anchor, and the mixture a fraction c in the first. At the minimiser the
leverages h predict what each one's gradients vary by: Σ w (h − 2ch + c²), w being the squared lengths of the rows. Here
the variance is measured from minibatches drawn at random, for many posterior draws at once.
"""

from dataclasses import replace
from itertools import islice

import harness


def measure(n: int, d: int, dimension: float | None, long_rows: int, draws: int, batch_size: int, seed: int) -> dict:
    """`dimension` sets the prior precision; None is a precision of one half. `long_rows` rows are unit rows times 30."""
    import torch
    from problems import drawing, hessian, minimiser, normals, precision_for

    from lapwing.linalg.stochastic import best_fraction, gradient_variances

    features = normals(n, d, seed=seed)
    if long_rows:
        features = torch.cat([30 * torch.eye(long_rows, d).double(), 0.02 * features[long_rows:]])
    precision = 0.5 if dimension is None else precision_for(torch.linalg.svdvals(features).square(), dimension)
    objective = drawing(features, precision, draws, seed + 1)
    truth, weights = minimiser(objective), features.square().sum(1)
    inverse = torch.linalg.inv(hessian(features, precision))
    leverages = ((features @ inverse) * features).sum(1)
    few = objective.features.matmat(truth[:, :8]).square().mean(1)
    fractions = {
        "fit": 1.0,
        "anchor": 0.0,
        "mixture": best_fraction(weights, leverages),
        "mixture_from_8_draws": best_fraction(weights, few),
        "mixture_by_count": float(leverages.sum()) / n,
    }

    def predicted(fraction: float) -> float:
        return float((weights * (leverages - 2 * fraction * leverages + fraction**2)).sum())

    variance, exact = {}, {}
    for name, fraction in fractions.items():
        problem = replace(objective, fraction=fraction)
        variance[name] = from_minibatches(problem, truth, batch_size, seed)
        exact[name] = float(gradient_variances(problem, truth, batch_size).mean())
    measured = variance["fit"] / variance["anchor"]
    theory = predicted(1.0) / predicted(0.0)
    best = variance["mixture"] / min(variance["fit"], variance["anchor"])
    return {
        "effective_dimension": float(leverages.sum()),
        "prior_precision": precision,
        "fractions": fractions,
        "variances": variance,
        "variances_over_all_batches": exact,
        "measured_ratio": measured,
        "ratio_over_all_batches": exact["fit"] / exact["anchor"],
        "predicted_ratio": theory,
        "ratio_by_count": n / float(leverages.sum()) - 1,
        "ratio_error": abs(measured / theory - 1),
        "anchor_loses": measured < 1,
        "mixture_over_better": best,
        "mixture_over_better_predicted": predicted(fractions["mixture"]) / min(predicted(1.0), predicted(0.0)),
        "mixture_by_count_over_better": variance["mixture_by_count"] / min(variance["fit"], variance["anchor"]),
        "holds": abs(measured / theory - 1) <= 0.05 and best <= 1.0,
    }


def from_minibatches(objective, z, batch_size: int, seed: int, batches: int = 400) -> float:
    """The mean over minibatches and draws of ‖ĝ − g‖²; every objective sees the same minibatches."""
    import torch

    from lapwing.linalg.stochastic import Minibatches

    drawn = Minibatches(objective.features, batch_size, momentum=0.0, reshuffled=False)
    n, total = objective.features.shape[0], 0.0
    whole = objective.fit_gradient(z, torch.arange(n), objective.features)
    for rows, features in islice(drawn.stream(torch.Generator().manual_seed(seed)), batches):
        gradient = n / len(rows) * objective.fit_gradient(z, rows, features)
        total += float((gradient - whole).square().sum(0).mean())
    return total / batches


NORMAL = {"long_rows": 0, "draws": 1000, "batch_size": 20, "seed": 0}
CELLS = {
    "γ = n/18": {"n": 1000, "d": 100, "dimension": 55.0, **NORMAL},
    "γ = n/10": {"n": 1000, "d": 130, "dimension": 100.0, **NORMAL},
    "γ = n/2": {"n": 200, "d": 110, "dimension": 99.0, **NORMAL},
    "γ = 0.83 n": {"n": 120, "d": 100, "dimension": 99.9, **NORMAL},
    "a few long rows": {"n": 65, "d": 9, "dimension": None, **NORMAL, "long_rows": 5, "draws": 5000},
    "γ = n/17, large": {"n": 20_000, "d": 1_300, "dimension": 20_000 / 17, **NORMAL, "draws": 32, "batch_size": 100},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
