# %% [markdown]
# # A hundred thousand weights, from matrix products alone
# Sparse counts, as from text: neither side fits a dense decomposition, so one Krylov space serves draws and tuning.

# %%
import numpy as np
import scipy.sparse
from matplotlib.figure import Figure

import lapwing as lw
from lapwing.linear import BayesianRidge

rng = np.random.default_rng(0)
rows, columns, per_row = 4_000, 100_000, 50
popularity = 1 / np.arange(1, columns + 1) ** 0.8
chosen = rng.choice(columns, size=rows * per_row, p=popularity / popularity.sum())
counts = scipy.sparse.csr_array(
    (np.ones(rows * per_row), chosen, np.arange(0, rows * per_row + 1, per_row)), shape=(rows, columns)
)
counts.sum_duplicates()
y = counts @ (0.3 * rng.normal(size=columns)) + 0.5 * rng.normal(size=rows)

# %% [markdown]
# As a scikit-learn estimator: X is neither copied nor made dense, and centring is an operator.

# %%
model = BayesianRidge().fit(counts[:3_500], y[:3_500])
mean, std = model.predict(counts[3_500:], return_std=True)
print(f"noise {model.alpha_**-0.5:.3f}, prior {model.lambda_**-0.5:.3f} (true: 0.5 and 0.3)")
print(f"{np.mean(np.abs(y[3_500:] - mean) < 1.645 * std):.0%} of new rows are inside their 90 % interval")

# %% [markdown]
# From its parts: the posterior says what it did, how far it is from exact, and what was estimated with which error.

# %%
posterior = lw.infer(lw.LinearModel(counts[:3_500], y[:3_500], lw.Gaussian()), prior=lw.Isotropic(), draws=16)
print(posterior)
found = posterior.diagnostics
print(
    f"passes {found.data_passes}, block steps {found.block_steps}, error bound {found.error_bound:.2g}, "
    f"converged {found.converged}"
)

# %%
some = np.argsort(mean)[::8]
figure = Figure(figsize=(7.2, 2.8), layout="constrained")
panel = figure.subplots()
panel.errorbar(range(len(some)), mean[some], 1.645 * std[some], fmt="none", color="tab:blue", alpha=0.6, label="90 %")
panel.plot(range(len(some)), y[3_500:][some], "k.", markersize=5, label="observed")
panel.set(xlabel="new rows, by their prediction", ylabel="target", xticks=[])
panel.legend(fontsize=8, loc="upper left")
figure.savefig("a_hundred_thousand_weights.png", dpi=110)
print("picture: a_hundred_thousand_weights.png")
