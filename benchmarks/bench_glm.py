"""Are the error bars of the generalised linear models those of NUTS, and what do they cost beside glum and statsmodels?

Protocol, written before the first run. Two data sets that come with statsmodels: `randhie` (visits to a doctor: counts,
9 columns, the first 2,000 rows for NUTS and all 20,190 for the seconds) and `spector` (grades that
improved or not: 32 rows, 3 columns, one trial each, so few that the posterior is not quite Gaussian). Our fit tunes its precision; NUTS (PyMC, four
chains of 1,000 draws after 1,000 for tuning, seed 0) has the same prior at that precision, so that both look at the same
posterior. Reported: the largest difference of the means in standard deviations, the range of the ratios of standard
deviations, and the largest difference of the ends of 95 % intervals in standard deviations.
A difference of means below 0.1 and ratios within 5 % are called agreement; the error
of NUTS itself is about 0.03 standard deviations. The seconds of the processor are medians of three fits on one thread;
coefficients are compared with those of maximum likelihood, in their standard errors. Nothing is tuned on the result.

`LAPWING_GLM_PEERS` is the Python of an environment with pymc, statsmodels and glum; without it nothing is measured.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

PEERS = Path(__file__).parent / "peers" / "glm.py"


def ask(path: Path, **settings: object) -> dict:
    python = os.environ.get("LAPWING_GLM_PEERS")
    if python is None:
        raise FileNotFoundError("set LAPWING_GLM_PEERS to the Python of an environment with pymc, statsmodels and glum")
    cleared = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, str(PEERS), str(path), json.dumps(settings)]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True, env=cleared).stdout.splitlines()[-1]
    )


def measure(name: str, family: str, task: str, rows: int) -> dict:
    from lapwing.linear import BayesianBinomialRegressor, BayesianPoissonRegressor

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        ask(path, task="data", name=name)
        data = {key: values[:rows] for key, values in np.load(path).items()}
        data["x"] = data["x"][:, data["x"].std(0) > 0]
        estimator = {"poisson": BayesianPoissonRegressor, "binomial": BayesianBinomialRegressor}[family]
        seconds = []
        for _ in range(3):
            started = time.process_time()
            model = estimator().fit(data["x"], data["y"], exposure=data["exposure"])
            seconds.append(time.process_time() - started)
        np.savez(path, **data, centre=model._columns.centre.numpy(), scale=model._columns.scale.numpy())
        (precision,) = model.precisions_.values()
        theirs = ask(path, task=task, family=family, precision=precision, base=model._base)
    table = model.summary(0.95)[1:]
    mean, std = table["mean"].to_numpy(), table["std"].to_numpy()
    their_mean, their_std = np.array(theirs["mean"]), np.array(theirs["std"])
    found = {
        "rows": len(data["x"]), "columns": data["x"].shape[1], "precision": precision, "our_seconds": seconds,
        "largest_difference_of_means": float(np.abs((mean - their_mean) / their_std).max()),
        "ratios_of_stds": [float((std / their_std).min()), float((std / their_std).max())],
    }  # fmt: skip
    if task == "nuts":
        ends = [np.abs(table[side].to_numpy() - theirs[side]) / their_std for side in ("lower", "upper")]
        return found | {
            "largest_difference_of_ends": float(np.max(ends)), "their_seconds": theirs["seconds"],
            "their_r_hat": theirs["r_hat"], "speedup": theirs["seconds"] / statistics.median(seconds),
        }  # fmt: skip
    return found | {
        "statsmodels_seconds": theirs["statsmodels_seconds"], "glum_seconds": theirs["glum_seconds"],
        "largest_difference_from_glum": float(np.abs((mean - theirs["glum"]) / their_std).max()),
    }  # fmt: skip


CELLS = {
    "randhie, NUTS": {"name": "randhie", "family": "poisson", "task": "nuts", "rows": 2000},
    "randhie, seconds": {"name": "randhie", "family": "poisson", "task": "points", "rows": 20_190},
    "spector, NUTS": {"name": "spector", "family": "binomial", "task": "nuts", "rows": 32},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
