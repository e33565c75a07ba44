# %% [markdown]
# # Linearised or sampled
# Why is the network not simply run at sampled weights? The same posterior over the same weights, used in two ways:
# by the linear model that its covariance belongs to, and by running the network at sampled weights (thin lines are
# draws). The second goes off scale, error bars and mean alike: note the tenfold axis. Then two classes: the raw network
# is certain wherever it looks, the posterior only near its data.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.training import adam, train

generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.linspace(-2, -0.7, 40), torch.linspace(0.7, 2, 40)])[:, None]
y = torch.sin(2.5 * x) + 0.1 * torch.randn(x.shape, generator=generator)
line = torch.linspace(-3, 3, 121)[:, None]
figure = Figure(figsize=(12, 6.4), layout="constrained")
panels = figure.subplots(2, 3)


def network(activation, inputs, outputs):
    """Two hidden layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 30), activation(), nn.Linear(30, 30), activation(), nn.Linear(30, outputs))


# %%
for row, activation in zip(panels, (nn.Tanh, nn.ReLU), strict=True):
    options = {"epochs": 300, "batch_size": 80, "prior_precision": 0.2, "optimiser": adam(0.01), "progress": False}
    model = train(network(activation, 1, 1), (x, y), lw.Gaussian(0.1), **options)
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.1), prior=lw.Isotropic(0.2), draws=40)
    ways = {"linearised": posterior.predict(line), "sampled": posterior.predict_unlinearised(line)}
    for axes, (name, prediction) in zip(row, ways.items(), strict=False):
        mean, std = prediction.mean[:, 0], prediction.std[:, 0]
        axes.fill_between(line[:, 0], mean - 2 * std, mean + 2 * std, color="#56B4E9", alpha=0.3)
        axes.plot(line[:, 0], prediction.draws[:8, :, 0].mT, color="#0072B2", lw=0.5)
        axes.plot(line[:, 0], mean, color="#D55E00", label="mean")
        axes.plot(x[:, 0], y[:, 0], ".", color="black", ms=3)
        axes.set(title=f"{activation.__name__}, {name}", ylim=(-6, 6) if name == "linearised" else (-60, 60))
    row[1].legend(frameon=False)
    fits = {
        "linearised": posterior.predict(x), "sampled": posterior.predict_unlinearised(x),
    }  # fmt: skip
    errors = {name: float((fit.mean - y).square().mean().sqrt()) for name, fit in fits.items()}
    print(f"{activation.__name__}: " + ", ".join(f"error {name} {error:.3f}" for name, error in errors.items()))

# %%
points = torch.randn(60, 2, generator=generator) * 0.6 + torch.tensor([[-1.0, 0.0]])
points = torch.cat([points, torch.randn(60, 2, generator=generator) * 0.6 + torch.tensor([[1.0, 0.0]])])
labels = torch.arange(120) // 60
options = {"epochs": 150, "batch_size": 120, "prior_precision": 1.0, "optimiser": adam(0.01), "progress": False}
model = train(network(nn.ReLU, 2, 2), (points, labels), lw.Categorical(), **options)
posterior = lw.fit(model, (points, labels), lw.Categorical(), prior=lw.Isotropic(1.0), method=lw.Exact(), draws=8)
sides = torch.meshgrid(torch.linspace(-6, 6, 30), torch.linspace(-6, 6, 30), indexing="xy")
flat = torch.stack(sides, -1).reshape(-1, 2)
with torch.no_grad():
    raw = model(flat).softmax(1).amax(1)
tempered = posterior.predict(flat).probs.amax(1)
for axes, values, title in ((panels[0, 2], raw, "raw network"), (panels[1, 2], tempered, "with error bars")):
    shades = axes.contourf(
        *(side.numpy() for side in sides), values.reshape(30, 30).numpy(), levels=torch.linspace(0.5, 1, 11).tolist()
    )
    axes.plot(*points[:60].mT.numpy(), "o", color="#E69F00", ms=3)
    axes.plot(*points[60:].mT.numpy(), "^", color="white", ms=3)
    axes.set(title=f"confidence: {title}")
    figure.colorbar(shades, ax=axes)
inside = posterior.predict(points).probs.amax(1)
corners = flat.abs().amax(1) > 5
edges = [float(values[corners].mean()) for values in (raw, tempered)]
print(f"confidence at the edges: {edges[0]:.3f} by the raw network, {edges[1]:.3f} with error bars")
print(f"confidence at the data, with error bars: {float(inside.mean()):.3f}")
figure.savefig("linearised_or_sampled.png", dpi=100)
print("picture: linearised_or_sampled.png")
