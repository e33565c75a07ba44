# %% [markdown]
# # Part of the weights, or all of them roughly
# Two ways to save: a full covariance over some weights, or a rough one over all. In this gap between data a quarter of
# the weights say more than a diagonal over all of them. Choosing them by predictive variance helps while they are few;
# among many, chance does better.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.training import adam, train

generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.linspace(-2, -0.7, 50), torch.linspace(0.7, 2, 50)])[:, None]
y = torch.sin(2.5 * x) + 0.1 * torch.randn(x.shape, generator=generator)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
options = {"epochs": 300, "batch_size": 100, "prior_precision": 0.1, "optimiser": adam(0.01), "progress": False}
model = train(model, (x, y), lw.Gaussian(0.1), **options)
fixed, line = {"prior": lw.Isotropic(0.1)}, torch.linspace(-3, 3, 101)[:, None]
gap = torch.tensor([[0.0]])

# %%
figure = Figure(figsize=(12, 3.4), layout="constrained")
panels = figure.subplots(1, 4)
ways = {"full": lw.Exact(), "KFAC": lw.KFAC(), "diagonal": lw.Diagonal()}
found = {}
for axes, (name, method) in zip(panels, ways.items(), strict=False):
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.1), method=method, **fixed)
    prediction = posterior.predict(line)
    mean, std = prediction.mean[:, 0], prediction.epistemic_variance[:, 0].sqrt()
    axes.fill_between(line[:, 0], mean - 2 * std, mean + 2 * std, color="#56B4E9", alpha=0.4)
    axes.plot(line[:, 0], mean, color="#0072B2")
    axes.plot(x[:, 0], y[:, 0], ".", color="black", ms=2)
    axes.set(title=name, ylim=(-4, 4))
    found[name] = float(posterior.predict(gap).epistemic_variance.sqrt())
print("std in the gap: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))

# %%
sizes = (5, 15, 45, 130, 350)
total = sum(weight.numel() for weight in model.parameters())
curves = {"chosen by predictive variance": [], "at random": []}
for size in sizes:
    chosen = lw.subnetwork(model, (x, y), lw.Gaussian(0.1), size, score="predictive")
    chance = torch.zeros(total, dtype=torch.bool)
    chance[torch.randperm(total, generator=generator)[:size]] = True
    for name, mask in zip(curves, (chosen, chance), strict=True):
        posterior = lw.fit(model, (x, y), lw.Gaussian(0.1), select=mask, method=lw.Exact(), **fixed)
        curves[name].append(float(posterior.predict(gap).epistemic_variance.sqrt()))
for (name, values), style in zip(curves.items(), ("o-", "s--"), strict=True):
    panels[3].semilogx([size / total for size in sizes], values, style, label=name)
    print(f"{name}: " + ", ".join(f"{size} weights {value:.3f}" for size, value in zip(sizes, values, strict=True)))
for name, colour in (("full", "black"), ("diagonal", "grey")):
    panels[3].axhline(found[name], color=colour, ls=":", label=f"{name}, all weights")
panels[3].set(xlabel="share of the weights", ylabel="std in the gap")
panels[3].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(0, 0.9))
figure.savefig("part_of_the_weights.png", dpi=100)
print("picture: part_of_the_weights.png")
