# %% [markdown]
# # Counts, costs, shares and levels
# One table of patients, five kinds of targets, and a generalised linear model for each. The table is simulated, so that
# the true coefficients are known and the error bars can be checked against them.

# %%
import numpy as np
import pandas
import torch
from matplotlib.figure import Figure

import lapwing as lw
from lapwing.linear import (
    BayesianBinomialRegressor,
    BayesianGammaRegressor,
    BayesianNegativeBinomialRegressor,
    BayesianOrdinalClassifier,
    BayesianPoissonRegressor,
)

rng = np.random.default_rng(0)
names = ["age", "weight", "pressure", "sugar", "pulse", "sleep"]
patients = pandas.DataFrame(rng.normal(size=(400, 6)), columns=names)
truth = np.array([0.5, -0.3, 0.2, 0.0, 0.1, -0.6])
score = patients.to_numpy() @ truth
years = rng.uniform(0.5, 3.0, 400)

# %% [markdown]
# Visits and emergencies are counted over different numbers of years; emergencies vary more than Poisson's counts do.
# Costs are positive, answers are successes among ten, and health has four levels.

# %%
targets = {
    "visits": rng.poisson(years * np.exp(1 + score)),
    "emergencies": rng.poisson(years * np.exp(score) * rng.gamma(2.0, 0.5, 400)),
    "costs": np.exp(5 + score) * rng.gamma(3.0, 1 / 3, 400),
    "answers": rng.binomial(10, 1 / (1 + np.exp(-score))),
    "health": np.digitize(score + rng.logistic(size=400), [-1.5, 0.0, 1.5]),
}
models = {
    "visits": BayesianPoissonRegressor().fit(patients, targets["visits"], exposure=years),
    "emergencies": BayesianNegativeBinomialRegressor().fit(patients, targets["emergencies"], exposure=years),
    "costs": BayesianGammaRegressor().fit(patients, targets["costs"]),
    "answers": BayesianBinomialRegressor(trials=10).fit(patients, targets["answers"]),
    "health": BayesianOrdinalClassifier().fit(patients, targets["health"]),
}
print(models["emergencies"].summary().round(2).to_string())

# %% [markdown]
# How many of the true coefficients are inside their interval? A formula does the same for columns of words
# (`FormulaDesign("age + C(region)")` of `lapwing.linear`, in a pipeline; it needs `pip install lapwing[formula]`).

# %%
tables = {name: model.summary(level=0.9).loc[names] for name, model in models.items()}
inside = {name: int(((table["lower"] < truth) & (truth < table["upper"])).sum()) for name, table in tables.items()}
print(f"{sum(inside.values())} of {5 * len(names)} true coefficients are inside their 90 % interval: {inside}")

# %% [markdown]
# Counts with a Poisson model that are not Poisson's: the evidence sees it.

# %%
plain = BayesianPoissonRegressor().fit(patients, targets["emergencies"], exposure=years)
evidence = plain.log_evidence_, models["emergencies"].log_evidence_
print(f"log evidence of the emergencies: Poisson {evidence[0]:.0f}, negative binomial {evidence[1]:.0f}")

# %% [markdown]
# The same densities serve a network or any linear model, there with their parameters given: `lw.NegativeBinomial`,
# `lw.Gamma`, `lw.Binomial` and `lw.Ordinal`.

# %%
columns = torch.from_numpy(patients.to_numpy())
likelihoods = {
    "emergencies": lw.NegativeBinomial(0.5), "costs": lw.Gamma(3.0), "answers": lw.Binomial(10),
    "health": lw.Ordinal((-1.5, 0.0, 1.5)),
}  # fmt: skip
known = {"emergencies": np.log(years), "costs": np.full(400, 5.0)}  # what is added to the logarithm of the mean
for name, likelihood in likelihoods.items():
    offset = torch.as_tensor(known.get(name, np.zeros(400)))
    posterior = lw.infer(lw.LinearModel(columns, torch.as_tensor(targets[name]).double(), likelihood, offset=offset))
    print(
        f"{name}: sleep {float(posterior.mean[5]):.2f} ± {float(posterior.covariance[5, 5]) ** 0.5:.2f}, in truth -0.6"
    )

# %%
figure = Figure(figsize=(9, 2.6), layout="constrained")
panels = figure.subplots(1, 5, sharey=True)
for panel, (name, table) in zip(panels, tables.items(), strict=True):
    half = (table["upper"] - table["lower"]) / 2
    panel.errorbar(
        (table["upper"] + table["lower"]) / 2, range(6), xerr=half, fmt="none", color="tab:blue", label="90 %"
    )
    panel.plot(truth, range(6), "k.", label="truth")
    panel.set(title=name, yticks=range(6), yticklabels=names)
panels[2].legend(fontsize=7, loc="upper right")
figure.savefig("counts_costs_and_levels.png", dpi=110)
print("picture: counts_costs_and_levels.png")
