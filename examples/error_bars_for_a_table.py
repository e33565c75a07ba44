# %% [markdown]
# # Error bars for a table
# One column with a wave, one that only shifts it, one without use: networks trained by the evidence find out which.

# %%
import numpy as np
from matplotlib.figure import Figure

from lapwing.tabular import BayesianMLPRegressor

random = np.random.default_rng(0)
time = np.concatenate([random.uniform(-3, 0.1, 60), random.uniform(1.4, 3, 40)])
table = np.stack([time, random.normal(size=100), random.normal(size=100)], axis=1)
target = np.sin(2 * time) + 0.3 * table[:, 1] + 0.1 * random.normal(size=100)

# %%
model = BayesianMLPRegressor(hidden_units=20, members=3, max_iter=60, verbose=False).fit(table, target)
shares = ", ".join(f"{share:.0%}" for share in model.relevance_)
print(f"noise {model.noise_std_:.2f} (0.10 was added), shares of the columns {shares}")

# %% [markdown]
# Every row predicted by the others, without refitting: the share inside its 90 % interval.

# %%
left_out = model.leave_one_out_
inside = np.mean(np.abs(left_out.residual) < 1.645 * left_out.std)
print(f"{inside:.0%} of the rows are within the 90 % interval that the others give them")

# %% [markdown]
# Over the gap between the two clusters of rows, and beyond them, the interval widens.

# %%
line = np.stack([np.linspace(-3.5, 3.5, 200), np.zeros(200), np.zeros(200)], axis=1)
low, high = model.interval(line, 0.9)
figure = Figure(figsize=(7.2, 2.8), layout="constrained")
panel = figure.subplots()
panel.fill_between(line[:, 0], low, high, color="tab:blue", alpha=0.25, label="90 %")
panel.plot(line[:, 0], model.predict(line), color="tab:blue", label="mean")
panel.plot(line[:, 0], np.sin(2 * line[:, 0]), "k:", linewidth=1, label="truth")
panel.plot(time, target - 0.3 * table[:, 1], "k.", markersize=4, label="rows, less the shift")
panel.set(xlabel="first column", ylabel="target", ylim=(-3, 3))
panel.legend(fontsize=8, loc="lower left")
figure.savefig("error_bars_for_a_table.png", dpi=110)
print("picture: error_bars_for_a_table.png")
