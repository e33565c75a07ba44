# %% [markdown]
# # Confident and wrong
# What does a trained network say where it has seen no data, and what does the same network say once its weights have
# error bars? Two classes lie on two arcs; the ends of both arcs were never shown. On new points from those ends the
# network alone is wrong and certain of it. Its posterior gives the same answers, and says that it does not know.

# %%
import math

import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.training import adam, train

generator = torch.Generator().manual_seed(1)


def arcs(count, start, stop):
    """Points on two interlocking arcs, from `start` to `stop` of their lengths, and the arc of each."""
    turn = math.pi * (start + (stop - start) * torch.rand(count, generator=generator))
    label = torch.arange(count) % 2
    x = torch.where(label == 0, turn.cos(), 1 - turn.cos())
    y = torch.where(label == 0, turn.sin(), 0.5 - turn.sin())
    return torch.stack([x, y], 1) + 0.08 * torch.randn(count, 2, generator=generator), label


trained_on, held_out, unseen = arcs(120, 0.25, 0.75), arcs(80, 0.25, 0.75), arcs(120, -0.3, 0.15)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))
model = train(model, trained_on, lw.Categorical(), optimiser=adam(0.01), epochs=200, progress=False)

# %%
posterior = lw.fit(model, trained_on, lw.Categorical(), validation=held_out)
print(posterior)

# %%
across, up = torch.linspace(-2, 3, 101), torch.linspace(-1.7, 2.2, 81)
grid = torch.cartesian_prod(across, up)
said = {"The network alone": lambda x: model(x).softmax(1).detach(), "The same network with error bars": None}
figure = Figure(figsize=(10.4, 4.6), layout="constrained")
panels = figure.subplots(1, 2, sharey=True)
for panel, (name, alone) in zip(panels, said.items(), strict=True):
    probability = alone or (lambda x: posterior.predict(x).probs)
    confidence = probability(grid).amax(1).reshape(len(across), len(up)).T
    drawn = panel.contourf(across, up, confidence, levels=[0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0], cmap="Greys")
    for label, colour in enumerate(("tab:blue", "tab:orange")):
        panel.scatter(*trained_on[0][trained_on[1] == label].T, s=12, color=colour, label=f"class {label}, seen")
    top, best = probability(unseen[0]).max(1)
    wrong = best != unseen[1]
    for label, colour in enumerate(("tab:blue", "tab:orange")):
        panel.scatter(
            *unseen[0][wrong & (unseen[1] == label)].T, marker="x", s=26, color=colour, label=f"class {label}, mistaken"
        )
    sure, on_seen = float(top[wrong].mean()), float(probability(held_out[0]).amax(1).mean())
    panel.set_title(f"{name}\n{int(wrong.sum())} new points wrong, at {sure:.0%} confidence", fontsize=11)
    panel.set(xlim=(-2, 3), ylim=(-1.7, 2.2), xticks=[], yticks=[])
    print(f"{name}: {int(wrong.sum())} of {len(wrong)} points at the unseen ends are wrong, mean confidence {sure:.2f}")
    print(f"  on held-out points like the training data: mean confidence {on_seen:.2f}")
figure.colorbar(drawn, ax=panels, label="confidence", shrink=0.9)
panels[0].legend(loc="lower left", fontsize=8, framealpha=0.9)
figure.savefig("confident_and_wrong.png", dpi=110)
print("picture: confident_and_wrong.png")
