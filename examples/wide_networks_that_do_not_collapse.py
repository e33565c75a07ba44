"""Wide networks with a Gaussian on every weight: why they forget their data, and the temperature that keeps them awake.

The evidence lower bound adds one divergence per neuron, but the data see only an average over neurons. At a fixed
temperature the prior therefore wins as the network grows; at η = τ p / N the two keep their balance.
"""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

from lapwing.bayes.likelihoods import Categorical
from lapwing.families import variational
from lapwing.families.variational import theory

# the theory, exactly: 20 points of a curve and N neurons
x = torch.linspace(-2, 2, 20, dtype=torch.float64)
inputs, targets = torch.stack([x, torch.ones_like(x)], 1), torch.sin(1.5 * x) + 0.5
print("    N   divergence at η = 1   per neuron at η = 0.01 p / N   loss at η = 1, balanced")
figure = Figure(figsize=(7.2, 2.8), layout="constrained")
panels = figure.subplots(1, 2)
for count, style in ((8, "-"), (32, "--"), (128, ":")):
    start = theory.Neurons.random(count, 2, torch.Generator().manual_seed(0))
    plain = theory.optimise(start, inputs, targets, 1.0)
    balanced = theory.optimise(start, inputs, targets, 0.01 * len(x) / count)
    losses = [float(found.expected_loss(inputs, targets)) for found in (plain, balanced)]
    divergences = float(plain.divergence().sum()), float(balanced.divergence().mean())
    print(f"{count:5}   {divergences[0]:19.4f}   {divergences[1]:28.3f}   {losses[0]:13.2f}, {losses[1]:.2f}")
    for panel, found in zip(panels, (plain, balanced), strict=True):
        panel.plot(x, found.moments(inputs)[0].mean(1), style, label=f"{count} neurons")
titles = ("η = 1: the data are forgotten", "η = 0.01 p / N: any width fits them alike")
for panel, title in zip(panels, titles, strict=True):
    panel.plot(x, targets, "k.", markersize=5, label="data")
    panel.set_title(title, fontsize=10)
panels[0].legend(fontsize=8)
figure.savefig("wide_networks_that_do_not_collapse.png", dpi=110)
print("picture: wide_networks_that_do_not_collapse.png")

# the practice: digits, any module, no special layers
digits = load_digits()
pictures, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train, held_out = (pictures[:1200], labels[:1200]), (pictures[1200:], labels[1200:])


class Wide(nn.Module):
    """An average over hidden units, as in the theory."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(self.hidden(x).relu()) / self.hidden.out_features


torch.manual_seed(0)
model = Wide(256)
for temperature in (1.0, variational.Balanced(tau=1e-4)):
    posterior = variational.fit(
        model, train, Categorical(), temperature=temperature, epochs=15, batch_size=32, draws=20,
        method=variational.BayesByBackprop(0.05), schedule=lambda done: 1 - done,
    )  # fmt: skip
    scores = variational.held_out(posterior, held_out)
    print(f"{posterior.heat}: accuracy {scores['accuracy']:.1%}, NLL {scores['nll']:.3f}, ECE {scores['ece']:.3f}")

prediction = posterior.predict(held_out[0][:3])
print("probabilities of the first three labels:", prediction.probs.gather(1, held_out[1][:3, None])[:, 0])
