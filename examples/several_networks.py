# %% [markdown]
# # Several networks as one posterior
# Networks from different starts agree where the data are and differ where they are not. The mixture of their linearised
# posteriors has both: what each of them leaves open, and what lies between them.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
import lapwing.families.map as alone
from lapwing.families import ensemble
from lapwing.training import adam, members

generator = torch.Generator().manual_seed(0)


def wave(x):
    """What is observed at x."""
    return torch.sin(2.5 * x) + 0.15 * torch.randn(x.shape, generator=generator)


def make(seed):
    """An untrained network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))


x = torch.cat([torch.linspace(-2, -0.7, 20), torch.linspace(0.7, 2, 20)])[:, None]
data, gap = (x, wave(x)), torch.linspace(-0.5, 0.5, 21)[:, None]
in_gap, noise = wave(gap), lw.Gaussian(0.15)

# %% [markdown]
# Five networks are trained side by side, in little more time than two of them would take one after the other.

# %%
networks = members(make, data, noise, 5, epochs=300, optimiser=adam(0.01), progress=False)
fitted = {
    "one network": alone.fit(networks[0], data, noise),
    "one posterior": lw.fit(networks[0], data, noise),
    "five averaged": ensemble.of(networks, data, noise),
    "mixture of five posteriors": lw.fit(networks, data, noise),
}
for name, family in fitted.items():
    print(f"{name:28} mean log density in the gap {family.predict(gap).log_prob(in_gap).mean():8.2f}")

# %%
mixture = fitted["mixture of five posteriors"]
assert isinstance(mixture, lw.Mixture)
print(mixture)
found = mixture.predict(torch.tensor([[1.5], [0.0], [3.0]]))
places = ("at the data", "in the gap", "outside")
for place, between, within in zip(places, found.between_variance.sqrt(), found.within_variance.sqrt(), strict=True):
    print(f"{place:12} standard deviation between networks {between.item():.3f}, within {within.item():.3f}")

# %%
grid = torch.linspace(-3, 3, 121)[:, None]
figure = Figure(figsize=(9.6, 4.8), layout="constrained")
for panel, (name, family) in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, fitted.items(), strict=True):
    prediction = family.predict(grid)
    low, high = prediction.interval(0.95)
    panel.fill_between(grid[:, 0], low.detach()[:, 0], high.detach()[:, 0], alpha=0.25)
    panel.plot(grid[:, 0], prediction.mean.detach()[:, 0])
    panel.plot(data[0][:, 0], data[1][:, 0], "k.", markersize=3)
    panel.set(title=name, ylim=(-4, 4))
figure.suptitle("line: mean; band: 95 % of new points; dots: data", fontsize=10)
figure.savefig("several_networks.png", dpi=110)
print("picture: several_networks.png")
