# %% [markdown]
# # Is this input out of distribution, and has the stream drifted?
# A network reads digits. Held-out digits tell how novel a familiar picture may look; then come pictures rotated by
# 90°, and a stream in which more and more of them appear. Alarms on familiar pictures have the rate asked for.

# %%
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import lapwing as lw
from lapwing.families import monitor

images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
images = images[torch.randperm(1797, generator=torch.Generator().manual_seed(0))] / 16
labels = labels[torch.randperm(1797, generator=torch.Generator().manual_seed(0))].long()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10)).double()
optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
for _ in range(150):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images[:100]), labels[:100]).backward()
    optimiser.step()
model.eval()

# %%
posterior = lw.fit(model, (images[:100], labels[:100]), lw.Categorical(), prior=lw.GPrior(1.0))
watching = monitor.fit(posterior, images[500:1000])
new = images[1000:]
rotated = new.reshape(-1, 8, 8).rot90(1, (1, 2)).reshape(-1, 64)
for name, pictures in (("new digits", new), ("digits rotated by 90°", rotated)):
    share = watching.flags(pictures, alarm_rate=0.05).double().mean()
    print(f"{name}: {float(share):.1%} flagged at an alarm rate of 5 %")

# %% [markdown]
# The same by the scores of the last layer, without a posterior: of twelve hidden units they say little.

# %%
detector = lw.ood(model, (images[:100], labels[:100]), familiar=images[500:1000])
share = detector.flags(rotated, alarm_rate=0.05).double().mean()
print(f"by the last layer, {float(share):.1%} of the rotated digits are flagged")

# %% [markdown]
# A stream of a hundred pictures at a time, of which more and more are rotated.

# %%
for share in (0, 10, 30, 100):
    batch = torch.cat([new[: 100 - share], rotated[100 - share : 100]])
    print(f"{share} of 100 rotated: p-value {watching.drift(batch).p_value:.3f}")

# %% [markdown]
# A reader withdraws their ten pictures: the posterior goes on without them, and without fitting the network again.

# %%
rest = posterior.remove(range(10))
moved = (rest.predict(new).epistemic_variance / posterior.predict(new).epistemic_variance).max().sqrt() - 1
print(f"without ten of 100 pictures, error bars widen by up to {float(moved):.1%}")

# %%
shares = range(0, 101, 10)
mixed = [torch.cat([new[: 100 - share], rotated[100 - share : 100]]) for share in shares]
figure = Figure(figsize=(6.6, 2.8), layout="constrained")
panel = figure.subplots()
flagged = [100 * float(watching.flags(batch, alarm_rate=0.05).double().mean()) for batch in mixed]
panel.plot(shares, flagged, "o-", markersize=4, label="flagged, %")
panel.plot(shares, [100 * watching.drift(batch).p_value for batch in mixed], "s--", markersize=4, label="p-value, %")
panel.axhline(5, color="black", linewidth=0.8, linestyle=":", label="alarm rate")
panel.set(xlabel="rotated digits among a hundred")
panel.legend(fontsize=8)
figure.savefig("is_this_input_unfamiliar.png", dpi=110)
print("picture: is_this_input_unfamiliar.png")
