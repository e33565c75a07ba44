"""Does lapwing's surrogate find better points than a Gaussian process in as many evaluations?

The protocol, written before the first run of a scored function. Sixty evaluations: ten of a scrambled Sobol sequence, the same for every
method of a seed, then fifty, one at a time, at the maximum of the logarithm of the expected improvement (`optimize_acqf`, 128 raw samples,
4 restarts, at most 50 iterations, the same for all). Each step fits its surrogate anew on inputs in the unit cube. One thread.

- `lapwing`: `lw.botorch.fit_surrogate(X, y, bounds, noise=0.0)`, else as it comes: these functions have no noise.
- `gp`: BoTorch's `SingleTaskGP` as it comes; its priors favour little noise.
- `vbll`: `VBLLModel` of botorch_community, three hidden layers of 64, standardised targets, 400 epochs of all data with a rate of 5e-3
  instead of up to 10,000, which would take minutes a step; fewer seeds than the others, for its time.
- `random`: sixty points of the same Sobol sequence.

Functions: Branin, Hartmann-6, Ackley-10, and `path`: a path through 25 points in the unit square, 50 inputs, past fifteen round obstacles,
from one corner to the other; its cost is the length inside obstacles, a tenth of the whole length, and the distance of its ends from the
corners. `regret` is against the optimum; for `path` it is the cost, whose optimum is not known and at least .14. Seeds come in order, all
functions of one before the next; those that were not run are not among the cells.

Chosen on other functions, one seed each: that the network reads places on half circles (best values of Levy-8 after 30 evaluations and of
Rosenbrock-4 after 40: .9 and 778; with the inputs themselves, where nearly all evaluations were in corners, 55 and, after 30, 8,600; the
Gaussian process 13.5 and, after 30, 5,670).

So far only seed 0 of the first three functions has been run, for time: one seed is no comparison, and nothing is known of the path nor of VBLL.

`step, n evaluations`: processor seconds of one step on Hartmann-6 with n evaluations, fit and acquisition. Needs `make peers`.
"""

from __future__ import annotations

import time
from typing import Any

import harness
import peer_environment

START, EVALUATIONS = 10, 60
FUNCTIONS = ("branin", "hartmann", "ackley", "path")
METHODS = ("random", "gp", "lapwing")
ROWS = (60, 500)


def regrets(seeds: range, functions: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The cells of some seeds, all of one before the next."""
    return {
        f"{function}, seed {seed}": {"function": function, "seed": seed, "methods": METHODS}
        for seed in seeds
        for function in functions
    }


STEPS: dict[str, dict[str, Any]] = {
    f"step, {rows} evaluations": {"function": "hartmann", "rows": rows, "methods": METHODS[1:]} for rows in ROWS
}
CELLS = regrets(range(1), FUNCTIONS[:3]) | STEPS  # so far


def path_cost(X: Any) -> Any:  # (…, 50) in the unit cube
    """Of a path through 25 points, each with its two coordinates."""
    import torch

    generator = torch.Generator().manual_seed(7)
    centres = 0.1 + 0.8 * torch.rand(15, 2, generator=generator, dtype=torch.float64)
    points = X.unflatten(-1, (25, 2))
    share = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    steps = points[..., 1:, :] - points[..., :-1, :]
    between = points[..., :-1, None, :] + share * steps[..., None, :]
    inside = ((between[..., None, :] - centres).norm(dim=-1) < 0.08).any(-1).double().mean(-1)
    lengths = steps.norm(dim=-1)
    ends = points[..., 0, :].norm(dim=-1) + (points[..., -1, :] - 1).norm(dim=-1)
    return (inside * lengths).sum(-1) + 0.1 * lengths.sum(-1) + ends


def problem(function: str) -> tuple[Any, int, float]:
    """What is to be maximised over the unit cube, its dimension and its maximum."""
    from botorch.test_functions import Ackley, Branin, Hartmann
    from botorch.utils.transforms import unnormalize

    if function == "path":
        return (lambda X: -path_cost(X)), 50, 0.0
    made = {"branin": Branin, "hartmann": Hartmann, "ackley": lambda **options: Ackley(10, **options)}[function]
    found = made(negate=True)
    bounds = found.bounds.double()
    return (lambda X: found(unnormalize(X, bounds))), found.dim, float(found.optimal_value)


def surrogate(method: str, X: Any, y: Any) -> tuple[Any, Any]:
    """A model of the data, and the best value so far in its units."""
    if method == "lapwing":
        import lapwing as lw

        return lw.botorch.fit_surrogate(X, y[:, None], cube(X.shape[1]), noise=0.0), y.max()
    if method == "gp":
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        model = SingleTaskGP(X, y[:, None])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model, y.max()
    from botorch_community.models.vblls import VBLLModel

    scaled = (y - y.mean()) / y.std()
    model = VBLLModel(in_features=X.shape[1], hidden_features=64, out_features=1, num_layers=3)
    model.fit(X, scaled[:, None], optimization_settings={"num_epochs": 400, "batch_size": 64, "lr": 5e-3})
    return model, scaled.max()


def cube(dimension: int) -> Any:  # (2, d)
    import torch

    return torch.stack([torch.zeros(dimension), torch.ones(dimension)]).double()


def candidate(method: str, X: Any, y: Any) -> Any:  # (1, d)
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf

    model, best = surrogate(method, X, y)
    improvement = LogExpectedImprovement(model, best_f=best)
    return optimize_acqf(improvement, cube(X.shape[1]), q=1, num_restarts=4, raw_samples=128, options={"maxiter": 50})[
        0
    ].detach()


def optimised(function: str, method: str, seed: int) -> dict[str, Any]:
    import torch

    value, dimension, optimum = problem(function)
    sobol = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    X = sobol.draw(EVALUATIONS if method == "random" else START, dtype=torch.float64)
    y = value(X)
    torch.manual_seed(seed)
    started = time.process_time()
    while len(y) < EVALUATIONS:
        chosen = candidate(method, X, y)
        X, y = torch.cat([X, chosen]), torch.cat([y, value(chosen)])
    regret = (optimum - y.cummax(0).values).tolist()
    return {
        "regret": regret[-1],
        "regret_after": {str(count): regret[count - 1] for count in range(10, EVALUATIONS + 1, 10)},
        "processor_seconds": time.process_time() - started,
    }


def one_step(function: str, method: str, rows: int) -> dict[str, Any]:
    import torch

    value, dimension, _ = problem(function)
    X = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0).draw(rows, dtype=torch.float64)
    torch.manual_seed(0)
    started = time.process_time()
    candidate(method, X, value(X))
    return {"processor_seconds": time.process_time() - started}


def measure(function: str, methods: list[str], seed: int | None = None, rows: int | None = None) -> dict[str, Any]:
    import warnings

    import torch

    warnings.simplefilter("ignore")  # of restarts that ended early
    torch.set_num_threads(1)
    if rows is not None:
        return {method: one_step(function, method, rows) for method in methods}
    assert seed is not None
    return {method: optimised(function, method, seed) for method in methods}


if __name__ == "__main__":
    peer_environment.enter("vbll")
    harness.main(__file__, CELLS, measure)
