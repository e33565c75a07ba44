# %% [markdown]
# # Class probabilities for a table
# Two classes in half-moons, one column without use, and some wrong labels: how sure may one be, and where?

# %%
import numpy as np
from matplotlib.figure import Figure

from lapwing.tabular import BayesianMLPClassifier

random = np.random.default_rng(0)
side = random.integers(2, size=150)
angle = random.uniform(0, np.pi, 150) + np.pi * side
table = np.stack([np.cos(angle) + side, np.sin(angle) + side / 2, random.normal(size=150)], axis=1)
table[:, :2] += 0.15 * random.normal(size=(150, 2))
wrong = random.choice(150, 5, replace=False)
labels = np.array(["left", "right"])[side]
labels[wrong] = np.array(["right", "left"])[side[wrong]]

# %%
model = BayesianMLPClassifier(hidden_units=15, members=3, max_iter=40, verbose=False).fit(table, labels)
shares = ", ".join(f"{share:.0%}" for share in model.relevance_)
print(f"shares of the columns {shares}; {model.score(table, labels):.0%} of the labels are those that it would give")

# %% [markdown]
# Every row predicted by the others, without refitting: labels that they believe least are worth a second look.

# %%
doubtful = np.argsort(model.leave_one_out_.log_probability)[:10]
found = len(set(doubtful) & set(wrong))
print(f"{found} of the 5 wrong labels are among the 10 that the other rows believe least")

# %% [markdown]
# Along the boundary probabilities are near one half, most of all where no row is near.

# %%
line = np.linspace(-2.5, 3.5, 80)
grid = np.stack([*(part.ravel() for part in np.meshgrid(line, line)), np.zeros(6400)], axis=1)
probabilities = model.predict_proba(grid)[:, 1].reshape(80, 80)
figure = Figure(figsize=(5.2, 4.2), layout="constrained")
panel = figure.subplots()
shown = panel.contourf(line, line, probabilities, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.8)
for name, mark in (("left", "bo"), ("right", "rs")):
    panel.plot(*table[labels == name, :2].T, mark, markersize=3, label=name)
panel.plot(*table[wrong, :2].T, "kx", markersize=7, label="wrong label")
panel.legend(fontsize=8, loc="upper right")
figure.colorbar(shown, label="probability of right")
figure.savefig("probabilities_for_a_table.png", dpi=110)
print("picture: probabilities_for_a_table.png")
