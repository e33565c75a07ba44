# %% [markdown]
# # What to label next?
# A network has seen forty digits. Which of 500 others should be labelled? Ten at a time are chosen by what their labels
# would say together, and beside it at random; after each round the network is trained on all of them anew.

# %%
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import lapwing as lw
from lapwing.training import adam, train

images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
images, labels = images[order].float() / 16, labels[order].long()
pool, test = slice(0, 540), slice(1000, 1797)


def trained(places):
    """A network of these pictures, always from the same first weights."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    data = (images[places], labels[places])
    return train(network, data, lw.Categorical(), optimiser=adam(1e-2), epochs=60, progress=False), data


def accuracy(network):
    """The share of right answers on pictures outside the pool."""
    return float((network(images[test]).argmax(1) == labels[test]).double().mean())


# %%
curves = {}
for name in ("information", "random"):
    known = torch.arange(40)
    curves[name] = []
    for number in range(4):
        network, data = trained(known)
        curves[name].append((len(known), accuracy(network)))
        left = torch.tensor([place for place in range(540) if place not in set(known.tolist())])
        if name == "random":
            chosen = left[torch.randperm(len(left), generator=torch.Generator().manual_seed(number))[:10]]
        else:
            posterior = lw.fit(network, data, lw.Categorical(), select=lw.last_layer(network))
            found: lw.Acquisition = lw.acquire(posterior, images[left], 10)
            chosen = left[found.places]
        known = torch.cat([known, chosen])
    print(f"{name}: " + ", ".join(f"{count} labels {share:.1%}" for count, share in curves[name]))

# %%
figure = Figure(figsize=(5, 3.2), layout="constrained")
panel = figure.subplots()
for name, curve in curves.items():
    panel.plot(*zip(*curve, strict=True), marker="o", label=name)
panel.set_xlabel("labels")
panel.set_ylabel("accuracy on other digits")
panel.legend()
figure.savefig("what_to_label.png", dpi=110)
print("picture: what_to_label.png")
