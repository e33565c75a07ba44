# %% [markdown]
# # Laplace's approximation in pictures
# Where is a Gaussian at the mode, with the curvature there, good, and where blind? Good for one bump (first), blind to
# a bend, where many of its draws fall on places that the density all but rules out (second). The posterior of a
# logistic regression is a bump with a tail (third), and its Gaussian is enough to temper the classifier: the mode only
# is as sure of itself far away from the data as near to them, the Gaussian is not, and comes close to the exact answer.

# %%
import torch
from matplotlib.figure import Figure

import lapwing as lw

figure = Figure(figsize=(15, 3.6), layout="constrained")
left, middle, posterior, right = figure.subplots(1, 4)


def contours(axes, sides, heights, gaussian):
    """A density in grey and its Gaussian as lines of equal height, both relative to their largest value."""
    x, y = (side.numpy() for side in sides)
    axes.contourf(x, y, (heights / heights.max()).numpy(), cmap="Greys", levels=8)
    flat = gaussian.log_prob(torch.stack(sides, -1)) - gaussian.log_prob(gaussian.mean)
    axes.contour(x, y, flat.exp().numpy(), levels=[0.011, 0.135, 0.607], colors="#0072B2", linewidths=1)  # 3, 2, 1 std


# %%
def skewed(x):
    """Log density of the logarithm of a rate."""
    return (3 * x - 2 * x.exp()).sum()


line = torch.linspace(-3, 2, 400).double()
bump, step = lw.laplace_approximation(skewed, [0.0]), float(line[1] - line[0])
exact = torch.stack([skewed(x[None]) for x in line]).exp()
left.plot(line, exact / (exact.sum() * step), color="black", label="density")
left.plot(line, bump.distribution.log_prob(line[:, None]).exp(), color="#0072B2", ls="--", label="Laplace")
left.set(title="one bump", xlabel="x")
left.legend(frameon=False)
print(f"log of the integral: {bump.log_normaliser:.3f} by Laplace, {float((exact.sum() * step).log()):.3f} by a sum")


# %%
def bent(x):
    """A ridge along a parabola."""
    return -0.5 * (x[..., 0] / 1.5) ** 2 - 0.5 * ((x[..., 1] - x[..., 0] ** 2) / 0.3) ** 2


peak = lw.laplace_approximation(bent, [0.1, 0.1])
torch.manual_seed(0)
draws = peak.distribution.sample((300,))
sides = torch.meshgrid(torch.linspace(-4, 4, 120).double(), torch.linspace(-2, 8, 120).double(), indexing="xy")
contours(middle, sides, bent(torch.stack(sides, -1)).exp(), peak.distribution)
middle.plot(*draws.mT.numpy(), ".", color="#D55E00", ms=3)
lost = float((bent(draws) < bent(peak.mode) - 4.6).double().mean())  # below a hundredth of the peak
middle.set(title=f"draws where there is no mass: {lost:.0%}", xlim=(-4, 4), ylim=(-2, 8))
print(f"{lost:.0%} of the draws have less than a hundredth of the density of the mode")

# %% [markdown]
# Logistic regression with two weights, where sums over a grid are exact.

# %%
x = torch.cat([torch.randn(8, 2).double() - 1, torch.randn(8, 2).double() + 1])
y = torch.cat([torch.zeros(8), torch.ones(8)]).double()


def log_posterior(w):
    """Likelihood of the labels times a Gaussian prior."""
    logits = x @ w
    return (y * logits - torch.nn.functional.softplus(logits)).sum() - 0.5 * 0.02 * w.square().sum()


found = lw.laplace_approximation(log_posterior, [0.0, 0.0])
grid = torch.cartesian_prod(*[torch.linspace(-4, 12, 161).double()] * 2)
logits = x @ grid.mT
fits = (y[:, None] * logits - torch.nn.functional.softplus(logits)).sum(0)
weights = (fits - 0.5 * 0.02 * grid.square().sum(1)).softmax(0)
contours(posterior, grid.reshape(161, 161, 2).unbind(-1), weights.reshape(161, 161), found.distribution)
posterior.plot(*found.mode, "x", color="#D55E00")
posterior.set(
    title="two weights, given their data", xlabel="first weight", ylabel="second", xlim=(-2.5, 5), ylim=(-2, 8)
)
away = torch.linspace(0, 12, 60).double()[:, None] * torch.tensor([[-0.9, 0.43]]).double()  # nearly along the boundary
mean, variance = away @ found.mode, ((away @ found.covariance) * away).sum(1)
curves = {
    "the mode only": mean.sigmoid(),
    "Laplace, probit": (mean / (1 + torch.pi / 8 * variance).sqrt()).sigmoid(),
    "exact": (away @ grid.mT).sigmoid() @ weights,
}
for (name, values), colour, style in zip(
    curves.items(), ("#D55E00", "#0072B2", "black"), ("-", "--", ":"), strict=True
):
    right.plot(away.norm(dim=1), values, style, color=colour, label=name)
right.set(title="confidence away from the data", xlabel="distance", ylabel="probability of class 1", ylim=(0.4, 1.02))
right.legend(frameon=False)
print("far away: " + ", ".join(f"{name} {float(values[-1]):.3f}" for name, values in curves.items()))
figure.savefig("laplace_in_pictures.png", dpi=100)
print("picture: laplace_in_pictures.png")
