# %% [markdown]
# # Several networks as one posterior
# Networks from different starts agree where the data are and differ where they are not. The mixture of their linearised
# posteriors has both: what each of them leaves open, and what lies between them.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
import lapwing.families.point as raw
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
data, gap, outside = (x, wave(x)), torch.linspace(-0.5, 0.5, 21)[:, None], torch.linspace(2.3, 3, 21)[:, None]
new, noise = {"in the gap": (gap, wave(gap)), "outside": (outside, wave(outside))}, lw.Gaussian(0.15)

# %% [markdown]
# Five networks are trained side by side, in little more time than two of them would take one after the other.

# %%
networks = members(make, data, noise, 5, epochs=300, optimiser=adam(0.01), progress=False)
fitted = {
    "one network": raw.fit(networks[0], data, noise),
    "one posterior": lw.fit(networks[0], data, noise),
    "five averaged": ensemble.of(networks, data, noise),
    "mixture of five posteriors": lw.fit(networks, data, noise),
}
for name, family in fitted.items():
    scores = (f"{family.predict(x).log_prob(y).mean():8.2f} {place}" for place, (x, y) in new.items())
    print(f"{name:28} mean log density: {', '.join(scores)}")

# %%
mixture = fitted["mixture of five posteriors"]
assert isinstance(mixture, lw.Mixture)
print(mixture)
places = {"at the data": 1.5, "in the gap": 0.0, "outside": 3.0}
found = mixture.predict(torch.tensor(list(places.values()))[:, None])
for number, place in enumerate(places):
    between, within = (part[number].sqrt().item() for part in (found.between_variance, found.within_variance))
    print(f"{place:12} standard deviation between networks {between:.3f}, within {within:.3f}")

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
