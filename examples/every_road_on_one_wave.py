# %% [markdown]
# # Every road on one wave
# Which way to error bars suits a small regression with a gap in its data? Each is fitted to the same forty points and
# judged on held-out points like them, and in the gap. All of them have `predict`, so one line scores them all.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
import lapwing.families.point as raw
from lapwing.families import conformal, dropout, ensemble, mcmc, swag, temperature
from lapwing.training import adam, train

generator = torch.Generator().manual_seed(0)


def wave(x):
    """What is observed at x."""
    return torch.sin(2.5 * x) + 0.15 * torch.randn(x.shape, generator=generator)


def make(seed):
    """An untrained network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))


x = torch.cat([torch.linspace(-2, -0.7, 20), torch.linspace(0.7, 2, 20)])[:, None]
between = torch.cat([torch.linspace(-1.9, -0.8, 30), torch.linspace(0.8, 1.9, 30)])[:, None]
data, held_out, gap = (x, wave(x)), (between, wave(between)), torch.linspace(-0.5, 0.5, 21)[:, None]
in_gap, noise = wave(gap), lw.Gaussian(0.15)

# %%
model = train(make(0), data, noise, optimiser=adam(0.01), epochs=300, progress=False)
dropped = train(dropout.insert(make(0), 0.05), data, noise, optimiser=adam(0.01), epochs=300, progress=False)
posterior = lw.fit(model, data, noise)
fitted = {
    "raw network": raw.fit(model, data, noise),
    "the same, scaled": temperature.fit(raw.fit(model, data, noise), held_out),
    "linearised": posterior,
    "linearised, no biases": lw.fit(model, data, noise, select=lw.matrices_only(model)),
    "trained by the evidence": lw.train_with_evidence(
        make(0), data, noise, optimiser=adam(0.01), epochs=300, frequency=10, progress=False
    ).posterior,
    "ensemble of three": ensemble.fit(make, data, noise, epochs=300, learning_rate=0.01, members=3, progress=False),
    "dropout": dropout.fit(dropped, data, noise),
    "SWAG": swag.fit(model, data, noise, epochs=20, progress=False),
    "Markov chains": mcmc.fit(
        model, data, noise, method=mcmc.HMC(max_steps=20), chains=2, warmup=60, draws=30, progress=False
    ),
}
for name, family in fitted.items():
    near, far = (family.predict(a).log_prob(b).mean() for a, b in (held_out, (gap, in_gap)))
    print(f"{name:24} mean log density: {near:8.2f} like the data, {far:8.2f} in the gap")

# %% [markdown]
# A datum may count more than once: `DataSpec` says which part of the data are weights.

# %%
twice = lw.DataSpec((*data, torch.full((len(x),), 2.0)), weights=2)
before, after = (float(lw.fit(model, seen, noise).effective_dimension) for seen in (data, twice))
print(f"effective dimension {before:.1f}, with every datum counted twice {after:.1f}")

# %% [markdown]
# Conformal intervals hold as often as they promise on inputs like the held-out ones. In the gap nobody promised.

# %%
promised = conformal.fit(posterior, held_out)
low, high = promised.interval(gap, 0.9)
print(f"conformal 90 % intervals hold {((in_gap >= low) & (in_gap <= high)).double().mean():.0%} of the gap")

# %%
grid = torch.linspace(-3, 3, 121)[:, None]
figure = Figure(figsize=(9.6, 6), layout="constrained")
for panel, (name, family) in zip(figure.subplots(3, 3, sharex=True, sharey=True).flat, fitted.items(), strict=True):
    prediction = family.predict(grid)
    mean, half = (part.detach()[:, 0] for part in (prediction.mean, 1.96 * prediction.std))
    panel.fill_between(grid[:, 0], mean - half, mean + half, alpha=0.25)
    panel.plot(grid[:, 0], mean)
    panel.plot(data[0][:, 0], data[1][:, 0], "k.", markersize=3)
    panel.set(title=name, ylim=(-4, 4))
figure.suptitle("line: mean; band: 95 % of new points; dots: data", fontsize=10)
figure.savefig("every_road_on_one_wave.png", dpi=110)
print("picture: every_road_on_one_wave.png")
