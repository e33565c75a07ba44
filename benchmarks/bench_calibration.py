"""Are error bars as wide as they should be, over many data sets drawn from the model itself?

Simulation-based calibration (Talts et al. 2018): weights are drawn from the prior and data from these weights; among draws from
the posterior of a right method the rank of the truth is uniform. The whole pipeline is run, from data to draws. `trained` is
the honest case besides: data of a random teacher, a student network trained on them, precision and noise by evidence; nothing
says that its intervals must be right, and their coverage is what is found.
"""

from __future__ import annotations

import harness
import torch
from torch import Tensor

LEVELS = (0.5, 0.8, 0.95)
DRAWS, INPUTS = 19, 5
PRECISION, NOISE = 0.7, 0.6


def uniform(ranks: Tensor, bins: int) -> float:
    """The p-value of Pearson's test that ranks 0 to bins − 1 are equally frequent."""
    counts = torch.bincount(ranks, minlength=bins).double()
    expected = len(ranks) / bins
    statistic = ((counts - expected).square() / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((bins - 1) / 2).double(), statistic / 2))


def covered(truth: Tensor, mean: Tensor, std: Tensor) -> list[float]:
    """Which central intervals of a normal hold the truth, one for every level."""
    half = torch.special.ndtri(torch.tensor([(1 + level) / 2 for level in LEVELS], dtype=torch.float64))
    return ((truth - mean).abs() <= half * std).double().tolist()


def network(seed: int, width: int = 6) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = torch.nn.Linear(INPUTS, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        return torch.nn.Sequential(*layers).double().eval()


def linear(seed: int, n: int, method) -> tuple[int, list[float]]:
    """A design matrix under Gaussian noise: rank of the function at a new input, and coverage of a new datum."""
    import lapwing as lw

    random = torch.Generator().manual_seed(seed)
    x, new = (torch.randn(rows, INPUTS, generator=random, dtype=torch.float64) for rows in (n, 1))
    truth = torch.randn(INPUTS, generator=random, dtype=torch.float64) / PRECISION**0.5
    y = x @ truth + NOISE * torch.randn(n, generator=random, dtype=torch.float64)
    posterior = lw.infer(
        lw.LinearModel(x, y, lw.Gaussian(NOISE)), prior=lw.Isotropic(PRECISION), method=method, draws=DRAWS, seed=seed
    )
    prediction, datum = (
        posterior.predict(new),
        new @ truth + NOISE * torch.randn(1, generator=random, dtype=torch.float64),
    )
    rank = int((new @ posterior.draws.mT < new @ truth).sum())
    return rank, covered(datum[0], prediction.mean[0], prediction.variance[0].sqrt())


def labels(seed: int, n: int, method) -> tuple[int, list[float]]:
    """The same under class labels, where Laplace's approximation is not exact; coverage of the logit."""
    import lapwing as lw

    random = torch.Generator().manual_seed(seed)
    x, new = (torch.randn(rows, INPUTS, generator=random, dtype=torch.float64) for rows in (n, 1))
    truth = torch.randn(INPUTS, generator=random, dtype=torch.float64) / PRECISION**0.5
    y = (torch.rand(n, generator=random, dtype=torch.float64) < torch.sigmoid(x @ truth)).double()
    posterior = lw.infer(
        lw.LinearModel(x, y, lw.Bernoulli()), prior=lw.Isotropic(PRECISION), method=method, draws=DRAWS, seed=seed
    )
    prediction = posterior.predict(new)
    rank = int((new @ posterior.draws.mT < new @ truth).sum())
    std = prediction.epistemic_variance[0].sqrt()
    return rank, covered((new @ truth)[0], prediction.mean[0], std)


def linearised(seed: int, n: int, method) -> tuple[int, list[float]]:
    """A small network and data of its own linearisation: here the posterior is exact again."""
    import lapwing as lw

    random, model = torch.Generator().manual_seed(seed), network(seed % 7)
    x, new = (torch.randn(rows, INPUTS, generator=random, dtype=torch.float64) for rows in (n, 1))
    known = lw.linearise(model, (torch.cat([x, new]), torch.zeros(n + 1, 1).double()), lw.Gaussian(NOISE))
    jacobian = known.features.dense()
    truth = torch.randn(jacobian.shape[1], generator=random, dtype=torch.float64) / PRECISION**0.5
    function = known.offset + jacobian @ truth
    y = function + NOISE * torch.randn(n + 1, generator=random, dtype=torch.float64)
    posterior = lw.fit(
        model,
        (x, y[:n, None]),
        lw.Gaussian(NOISE),
        prior=lw.Isotropic(PRECISION),
        method=method,
        draws=DRAWS,
        seed=seed,
    )
    prediction = posterior.predict(new, mean="linear")
    rank = int((jacobian[n:] @ posterior.draws.mT < jacobian[n:] @ truth).sum())
    return rank, covered(y[n], prediction.mean[0, 0], prediction.variance[0, 0].sqrt())


def trained(seed: int, n: int, method) -> tuple[int, list[float]]:
    """A student trained on the data of a random teacher; rank and coverage of a new datum."""
    import lapwing as lw

    random, teacher, student = torch.Generator().manual_seed(seed), network(seed + 10_000, 8), network(seed)
    x, new = (torch.randn(rows, INPUTS, generator=random, dtype=torch.float64) for rows in (n, 1))
    with torch.no_grad():
        signal, found = 3 * teacher(x), 3 * teacher(new)
    y = signal + NOISE * torch.randn(n, 1, generator=random, dtype=torch.float64)
    student.train()
    optimiser = torch.optim.Adam(student.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(200):
        optimiser.zero_grad()
        (student(x) - y).square().mean().backward()
        optimiser.step()
    posterior = lw.fit(student.eval(), (x, y), lw.Gaussian(), method=method, draws=DRAWS, seed=seed)
    prediction = posterior.predict(new)
    std = prediction.variance[0, 0].sqrt()
    datum = found[0, 0] + NOISE * torch.randn((), generator=random, dtype=torch.float64)
    samples = prediction.mean[0, 0] + std * torch.randn(DRAWS, generator=random, dtype=torch.float64)
    return int((samples < datum).sum()), covered(datum, prediction.mean[0, 0], std)


PROBLEMS = {"linear": linear, "labels": labels, "linearised": linearised, "trained": trained}


def measure(problem: str, method: str, n: int, repeats: int, seed: int) -> dict:
    import lapwing as lw

    methods = {"exact": lw.Exact(), "krylov": lw.Krylov(rtol=1e-3)}
    found = [PROBLEMS[problem](seed + number, n, methods[method]) for number in range(repeats)]
    ranks, hits = torch.tensor([rank for rank, _ in found]), torch.tensor([hit for _, hit in found])
    coverage = hits.mean(0)
    errors = [(level * (1 - level) / repeats) ** 0.5 for level in LEVELS]
    return {
        "repeats": repeats, "rank_p_value": uniform(ranks, DRAWS + 1),
        "rank_counts": torch.bincount(ranks, minlength=DRAWS + 1).tolist(),
        **{f"coverage_{round(100 * level)}": float(part) for level, part in zip(LEVELS, coverage, strict=True)},
        "coverage_z": [(float(part) - level) / error for part, level, error in zip(coverage, LEVELS, errors, strict=True)],
    }  # fmt: skip


CELLS = {
    "linear, a few": {"problem": "linear", "method": "exact", "n": 12, "repeats": 40, "seed": 0},
    "linear": {"problem": "linear", "method": "exact", "n": 12, "repeats": 200, "seed": 0},
    "linear, Krylov": {"problem": "linear", "method": "krylov", "n": 12, "repeats": 200, "seed": 1_000},
    "logistic": {"problem": "labels", "method": "exact", "n": 40, "repeats": 200, "seed": 0},
    "linearised network": {"problem": "linearised", "method": "exact", "n": 20, "repeats": 200, "seed": 0},
    "linearised network, Krylov": {"problem": "linearised", "method": "krylov", "n": 20, "repeats": 200, "seed": 1_000},
    "trained network": {"problem": "trained", "method": "exact", "n": 60, "repeats": 200, "seed": 0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
