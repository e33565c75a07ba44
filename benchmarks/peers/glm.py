"""The peers' side of bench_glm.py: NUTS by PyMC, statsmodels and glum, each in an environment of its own.

Reads a file of arrays (x, y, exposure) and settings, and prints one line of JSON. Columns are standardised and the
intercept centred as in `lapwing.linear`, so that all see the same prior; seconds are those of the processor.
"""

import json
import sys
import time

import numpy as np

settings = json.loads(sys.argv[2])
data = {} if settings["task"] == "data" else np.load(sys.argv[1])


def from_statsmodels(name: str) -> dict[str, np.ndarray]:
    """A data set that comes with the package: counts of visits to a doctor, or grades."""
    import statsmodels.api as sm

    loaded = getattr(sm.datasets, name).load_pandas()
    x = loaded.exog.to_numpy(float)
    return {"x": x, "y": loaded.endog.to_numpy(float).reshape(-1), "exposure": np.ones(len(x))}


def nuts() -> dict:
    """Four chains under the prior of a fit that is given: slopes N(0, 1/precision), intercept N(base, 10²)."""
    import pymc as pm

    x, y, exposure = data["x"], data["y"], data["exposure"]
    z = (x - data["centre"]) / data["scale"]
    with pm.Model():
        slopes = pm.Normal("slopes", 0, settings["precision"] ** -0.5, shape=x.shape[1])
        intercept = pm.Normal("intercept", settings["base"], 10)
        f = intercept + pm.math.dot(z, slopes)
        if settings["family"] == "poisson":
            pm.Poisson("y", exposure * pm.math.exp(f), observed=y)
        else:
            pm.Binomial("y", n=exposure, logit_p=f, observed=y)
        started = time.process_time()
        trace = pm.sample(1000, tune=1000, chains=4, cores=1, random_seed=0, progressbar=False)
        seconds = time.process_time() - started
    draws = trace.posterior["slopes"].to_numpy().reshape(-1, x.shape[1]) / data["scale"]
    ends = np.quantile(draws, [0.025, 0.975], axis=0)
    chains = trace.posterior["slopes"].to_numpy()
    within, between = chains.var(1, ddof=1).mean(0), chains.mean(1).var(0, ddof=1)
    return {
        "seconds": seconds, "mean": draws.mean(0).tolist(), "std": draws.std(0, ddof=1).tolist(),
        "lower": ends[0].tolist(), "upper": ends[1].tolist(),
        "r_hat": float(np.sqrt(1 + between / within).max()),
    }  # fmt: skip


def points() -> dict:
    """Maximum likelihood by statsmodels and by glum without a penalty."""
    import statsmodels.api as sm
    from glum import GeneralizedLinearRegressor

    x, y, exposure = data["x"], data["y"], data["exposure"]
    found = {}
    for repeat in range(3):
        started = time.process_time()
        fit = sm.GLM(y, sm.add_constant(x), family=sm.families.Poisson(), exposure=exposure).fit()
        found.setdefault("statsmodels_seconds", []).append(time.process_time() - started)
        started = time.process_time()
        other = GeneralizedLinearRegressor(family="poisson", alpha=0).fit(x, y / exposure, sample_weight=exposure)
        found.setdefault("glum_seconds", []).append(time.process_time() - started)
        del repeat
    return found | {"mean": fit.params[1:].tolist(), "std": fit.bse[1:].tolist(), "glum": other.coef_.tolist()}


if settings["task"] == "data":
    np.savez(sys.argv[1], **from_statsmodels(settings["name"]))
    print("{}")
else:
    print(json.dumps({"nuts": nuts, "points": points}[settings["task"]]()))
