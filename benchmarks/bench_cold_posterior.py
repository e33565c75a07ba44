"""Is a cold posterior better than Bayes' own, where no Gaussian is fitted to it? And what has to be cold?

Stochastic gradient Langevin dynamics for the network of bench_variational.py with 64 units, four chains: at
(likelihood × prior)^(1/T), the cold posterior, and at likelihood^(1/η) × prior, what a variational fit at temperature η is
after. A step is proportional to the temperature, so that the chains drift alike and only their noise differs. A temperature is
to be chosen by `validation_nll`. R-hat is of the outputs at 50 training images, the largest: it says how far these chains
are from having met. `nll` is of the averaged predictive, `gibbs_nll` the average over single draws.
"""

import harness

LONGEST = 2000


def measure(data: str, hidden: int, temperature: str, warmup: int, tempered: str = "posterior") -> dict:
    from benchmarks.tasks import temperature as study

    train, validation, test = study.pictures(data)
    found = study.by_langevin(train, hidden, float(temperature), tempered=tempered, warmup=warmup)
    diagnostics = found.diagnostics
    return {
        **study.scores(found, validation, test),
        "r_hat": diagnostics["r_hat"],
        "ess": diagnostics["ess"],
        "mean_square_weight": float(found.positions.square().mean()),
        "gradients": diagnostics["gradients"],
    }


def cells() -> dict[str, dict]:
    """The smallest on bundled digits, then MNIST: a grid of T, and of η."""
    found = {"digits, N = 16, T = 0.1": {"data": "digits", "hidden": 16, "temperature": "0.1", "warmup": 200}}
    for temperature in ("1", "0.3", "0.1", "0.01"):
        arguments = {"data": "mnist", "hidden": 64, "temperature": temperature, "warmup": LONGEST}
        found[f"N = 64, T = {temperature}"] = arguments
    for temperature in ("0.1", "0.01"):
        arguments = {"data": "mnist", "hidden": 64, "temperature": temperature, "warmup": LONGEST}
        found[f"N = 64, η = {temperature}"] = {**arguments, "tempered": "likelihood"}
    return found


CELLS = cells()

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
