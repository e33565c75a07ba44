# %% [markdown]
# # Error bars for a linear model
# Polynomial features of the diabetes data, a prior per degree, and intervals that hold on patients not seen before.

# %%
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures

import lapwing as lw

x, y = load_diabetes(return_X_y=True)
features = PolynomialFeatures(2, include_bias=False).fit_transform(x * 20)
features, y = features - features[:300].mean(0), y - y[:300].mean()
groups = {"linear": slice(0, 10), "quadratic": slice(10, features.shape[1])}

# %% [markdown]
# Evidence tunes the noise and one precision per group at once; the table shows how little the quadratic terms matter.

# %%
model = lw.LinearModel(features[:300], y[:300], lw.Gaussian())
posterior = lw.infer(model, prior=lw.PerGroup(groups))
print(posterior)

# %%
prediction = posterior.predict(features[300:])
low, high = prediction.interval(0.9)
truth = torch.as_tensor(y[300:])
inside = float(((low < truth) & (truth < high)).double().mean())
print(f"{inside:.0%} of {len(truth)} new patients are inside their 90 % interval")

# %% [markdown]
# How accurate are these error bars? An independent solve on the data themselves says.

# %%
print(posterior.verify(features[300:]))

# %% [markdown]
# The patients that the rest of the data predict worst, without refitting anything.

# %%
left_out = posterior.leave_one_out()
surprising = left_out.log_density.argsort()[:3]
print(f"most surprising patients: {surprising.tolist()}, log densities {left_out.log_density[surprising].tolist()}")

# %%
order = prediction.mean.argsort()
figure = Figure(figsize=(7.2, 2.8), layout="constrained")
panel = figure.subplots()
middle, half = (low + high)[order] / 2, (high - low)[order] / 2
panel.errorbar(range(len(order)), middle, half, fmt="none", color="tab:blue", alpha=0.5, label="90 %")
panel.plot(range(len(order)), truth[order], "k.", markersize=4, label="observed")
panel.set(xlabel="new patients, by their prediction", ylabel="progression", xticks=[])
panel.legend(fontsize=8, loc="upper left")
figure.savefig("error_bars_for_a_linear_model.png", dpi=110)
print("picture: error_bars_for_a_linear_model.png")
