# %% [markdown]
# # A Gaussian at the mode
# Laplace's approximation, plain: find the mode of any density, take its curvature there, and read off a Gaussian and
# an integral. Here the posterior of a rate after twelve events in five hours, whose integral is known.

# %%
import math

import torch
from matplotlib.figure import Figure

import lapwing as lw

events, hours = 12, 5.0


def log_density(x):
    """Log of likelihood times prior of the logarithm of the rate, under a flat prior of it."""
    return (events * x - hours * x.exp()).sum()


found = lw.laplace_approximation(log_density, [0.0])
exact = math.lgamma(events) - events * math.log(hours)
low, high = (math.exp(float(found.mode) + sign * 1.96 * float(found.covariance) ** 0.5) for sign in (-1, 1))
print(f"rate {math.exp(float(found.mode)):.2f} an hour, 95 % between {low:.2f} and {high:.2f}")
print(f"log of the integral: {found.log_normaliser:.4f} by Laplace, {exact:.4f} exactly")

# %%
rate = torch.linspace(0.5, 5.5, 200).double()
std = float(found.covariance) ** 0.5
figure = Figure(figsize=(6.2, 2.8), layout="constrained")
panel = figure.subplots()
panel.plot(rate, (events * rate.log() - hours * rate - exact).exp(), color="black", label="posterior")
laplace = torch.distributions.Normal(float(found.mode), std).log_prob(rate.log()).exp()
panel.plot(rate, laplace, "--", color="tab:blue", label="Gaussian at the mode")
panel.axvspan(low, high, color="tab:blue", alpha=0.15, label="its 95 %")
panel.set(xlabel="events an hour", ylabel="density of the log rate", yticks=[])
panel.legend(fontsize=8)
figure.savefig("a_gaussian_at_the_mode.png", dpi=110)
print("picture: a_gaussian_at_the_mode.png")
