"""Is a cold posterior better than Bayes' own, where no Gaussian is fitted to it?

Stochastic gradient Langevin dynamics at p(w | data)^(1/T) for the networks of bench_variational.py, four chains from
draws of the prior. A step is proportional to T, so that the chains drift alike and only their noise differs. T is to be
chosen by `validation_nll`. R-hat is of the outputs at 50 training images, the largest: it says how far these chains are from
having met. `nll` is of the averaged predictive, `gibbs_nll` the average over single draws.
"""

import harness

LONGEST = 2000


def measure(data: str, hidden: int, temperature: str, warmup: int) -> dict:
    from lapwing.bench.studies import temperature as study

    train, validation, test = study.pictures(data)
    found = study.by_langevin(train, hidden, float(temperature), warmup=warmup)
    diagnostics = found.diagnostics
    return {
        **study.scores(found, validation, test),
        "r_hat": diagnostics["r_hat"],
        "ess": diagnostics["ess"],
        "mean_square_weight": float(found.positions.square().mean()),
        "gradients": diagnostics["gradients"],
    }


def cells() -> dict[str, dict]:
    """The smallest on bundled digits, then MNIST: a grid of T at 64 units, and two of it at 256."""
    found = {"digits, N = 16, T = 0.1": {"data": "digits", "hidden": 16, "temperature": "0.1", "warmup": 200}}
    for hidden, temperatures in ((64, ("1", "0.3", "0.1", "0.03", "0.01", "0.001")), (256, ("1", "0.01"))):
        for temperature in temperatures:
            arguments = {"data": "mnist", "hidden": hidden, "temperature": temperature, "warmup": LONGEST}
            found[f"N = {hidden}, T = {temperature}"] = arguments
    return found


CELLS = cells()

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
