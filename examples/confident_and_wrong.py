# %% [markdown]
# # Confident and wrong
# What does a trained network say where it has seen no data, and what does the same network say once its weights have
# error bars? A wave was shown without its middle and its ends. The raw network takes its training error for its error
# everywhere, and most new points fall outside. Its posterior has the same mean, and a band that widens where data end.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.training import adam, train

generator = torch.Generator().manual_seed(0)


def wave(x):
    """What is observed at x."""
    return torch.sin(4 * x) + 0.15 * torch.randn(x.shape, generator=generator)


x = torch.cat([torch.linspace(-2, -0.8, 60), torch.linspace(0.5, 1.6, 60)])[:, None]
new = torch.linspace(-2.3, 2.0, 200)[:, None]
y, observed = wave(x), wave(new)
unseen = (new < -2.05) | ((new > -0.75) & (new < 0.45)) | (new > 1.65)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
model = train(model, (x, y), lw.Gaussian(), optimiser=adam(0.005), epochs=300, progress=False)

# %%
posterior = lw.fit(model, (x, y), lw.Gaussian())
print(posterior)
prediction = posterior.predict(new)
noise_std = (model(x) - y).square().mean().sqrt().detach()
said = {
    "Raw network, error bars from its training error": (model(new).detach(), noise_std.expand_as(new)),
    "The same network with lapwing": (prediction.mean, prediction.std),
}

# %%
figure = Figure(figsize=(10.4, 4.2), layout="constrained")
panels = figure.subplots(1, 2, sharey=True)
for panel, (name, (mean, std)) in zip(panels, said.items(), strict=True):
    low, high = mean - 1.96 * std, mean + 1.96 * std
    outside = (observed < low) | (observed > high)
    panel.fill_between(new[:, 0], low[:, 0], high[:, 0], color="tab:blue", alpha=0.25, label="95 % band")
    panel.plot(new[:, 0], mean[:, 0], color="tab:blue", label="network")
    panel.scatter(x[:, 0], y[:, 0], s=10, color="black", label="seen")
    panel.scatter(new[unseen & ~outside], observed[unseen & ~outside], s=16, color="tab:green", label="new, inside")
    missed = unseen & outside
    panel.scatter(new[missed], observed[missed], s=22, marker="x", color="tab:red", label="new, outside")
    shares = [float(outside[where].double().mean()) for where in (unseen, ~unseen)]
    panel.set_title(f"{name}\n{shares[0]:.0%} of new points outside the data are missed", fontsize=11)
    panel.set(xlim=(-2.3, 2.0), ylim=(-3, 3), xticks=[], yticks=[])
    print(f"{name}: {shares[0]:.0%} of new points beyond the data are outside, {shares[1]:.0%} among the data")
panels[0].legend(loc="lower left", fontsize=8, framealpha=0.9, ncols=2)
figure.savefig("confident_and_wrong.png", dpi=110)
print("picture: confident_and_wrong.png")
