# %% [markdown]
# # Counts, labels, changing noise
# What if the targets are not numbers with the same noise everywhere? The likelihood says what they are, and the rest
# stays: counts, yes and no, and a network whose second output is the size of its noise.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.training import adam, train

generator = torch.Generator().manual_seed(0)
x = torch.linspace(-2, 2, 120)[:, None]
rate = torch.exp(1 + torch.sin(2 * x))


def answer(likelihood, targets, outputs) -> tuple[lw.Posterior, lw.Prediction]:
    """Train, fit, and predict at three inputs: among the data, at their end, and far beyond."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 15), nn.Tanh(), nn.Linear(15, outputs))
    model = train(model, (x, targets), likelihood, optimiser=adam(0.01), epochs=150, progress=False)
    posterior = lw.fit(model, (x, targets), likelihood, prior=lw.GPrior(hyperprior=lw.GammaHyperprior(1.0, 0.01)))
    return posterior, posterior.predict(torch.tensor([[0.0], [2.0], [5.0]]))


figure = Figure(figsize=(9.6, 2.8), layout="constrained")
panels = figure.subplots(1, 3)
far = torch.linspace(-3, 3, 121)[:, None]

# %%
counts = torch.poisson(rate, generator=generator)
posterior, prediction = answer(lw.Poisson(), counts, 1)
print("counts: mean rate", prediction.expectation[:, 0], "and the true one at the first two", rate[[60, 119], 0])
low, high = prediction.interval(0.9)
print("  90 % of new counts between", low[:, 0], "and", high[:, 0])
low, high = (bound[:, 0] for bound in posterior.predict(far).interval(0.9))
panels[0].fill_between(far[:, 0], low, high, alpha=0.25, label="90 % of new counts")
panels[0].plot(x[:, 0], counts[:, 0], "k.", markersize=4)
panels[0].set(title="counts", ylim=(-1, 20))
panels[0].legend(fontsize=8)

# %%
yes = (torch.rand(x.shape, generator=generator) < torch.sigmoid(3 * x)).float()
posterior, prediction = answer(lw.Bernoulli(), yes, 1)
print("yes or no: probability", prediction.probs[:, 0], "entropy", prediction.entropy.reshape(-1))
panels[1].plot(far[:, 0], posterior.predict(far).probs[:, 0])
panels[1].plot(x[:, 0], yes[:, 0], "k|", markersize=6)
panels[1].set(title="yes or no: probability of yes")

# %%
spread = 0.05 + 0.3 * (x > 0)
values = torch.sin(2 * x) + spread * torch.randn(x.shape, generator=generator)
posterior, prediction = answer(lw.HeteroscedasticGaussian(), values[:, 0], 2)
left, right = posterior.predict(torch.tensor([[-1.0], [1.0]])).aleatoric_variance.sqrt().reshape(-1).tolist()
print(f"noise found at −1 and 1: {left:.2f}, {right:.2f}; made with 0.05, 0.35")

# %%
prediction = posterior.predict(far)
mean, half = (part.reshape(-1) for part in (prediction.mean, 1.645 * prediction.std))
panels[2].fill_between(far[:, 0], mean - half, mean + half, alpha=0.25, label="90 % of new values")
panels[2].plot(x[:, 0], values[:, 0], "k.", markersize=4)
panels[2].set(title="noise that changes", ylim=(-3, 3))
panels[2].legend(fontsize=8, loc="lower left")
figure.savefig("counts_labels_and_changing_noise.png", dpi=110)
print("picture: counts_labels_and_changing_noise.png")
