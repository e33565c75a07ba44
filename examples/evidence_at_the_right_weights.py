# %% [markdown]
# # Evidence at the right weights
# At which weights does the evidence of a linearised network belong? At the mode of the linear model. Taken at the
# network's own weights instead, as is often done, it judges by their size, which says little where a normalisation
# removes the scale of a layer: here the precision is too small and the error bars are too wide. The two come nearer as
# training goes on. And one precision for everything depends on that meaningless scale, one for each normalised group
# does not (Antorán et al. 2022).

# %%
import copy

import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw

generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.linspace(-2, -0.7, 30), torch.linspace(0.6, 2, 30)]).double()[:, None]
y = torch.sin(3 * x) + 0.15 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
new = torch.linspace(-2, 2, 81).double()[:, None]
new_y = torch.sin(3 * new) + 0.15 * torch.randn(new.shape, generator=generator, dtype=torch.float64)
figure = Figure(figsize=(13, 3.6), layout="constrained")
sweep, progress, scale, draws = figure.subplots(1, 4)
# as many pairs as weights: exact
weights_of = {"method": lw.LowRank(61, rtol=1e-8, evidence_at="weights")}


def trained(model, steps, notes=()):
    """Descend, and keep copies after some numbers of steps."""
    kept, optimiser = {}, torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(1, steps + 1):
        optimiser.zero_grad()
        (nn.functional.mse_loss(model(x), y) + 1e-4 * sum(w.square().sum() for w in model.parameters())).backward()
        optimiser.step()
        if step in notes:
            kept[step] = copy.deepcopy(model).eval()
    return model.eval(), kept


# %%
torch.manual_seed(0)
normed = nn.Sequential(
    nn.Linear(1, 20), nn.LayerNorm(20, elementwise_affine=False, eps=1e-12), nn.Tanh(), nn.Linear(20, 1)
)
normed, _ = trained(normed.double(), 1500)
groups = {"prior": lw.PerGroup("normalised")}
right = lw.fit(normed, (x, y), lw.Gaussian(0.15), **groups)
naive = lw.fit(normed, (x, y), lw.Gaussian(0.15), **groups, **weights_of)
layer, rest = right.prior.names  # the normalised layer, and everything else
grid, kept = torch.logspace(-2, 4, 25), float(right.prior.precision[1])
swept = [right.at(precision={layer: float(value), rest: kept}) for value in grid]
scores = [float(posterior.predict(new).log_prob(new_y).mean()) for posterior in swept]
sweep.semilogx(grid, scores, color="black")
for posterior, name, colour in ((right, "at the mode", "#0072B2"), (naive, "at the weights", "#D55E00")):
    prediction = posterior.predict(new)
    score, bar = float(prediction.log_prob(new_y).mean()), float(prediction.epistemic_variance.mean().sqrt())
    precision = float(posterior.prior.precision[0])
    sweep.axvline(precision, color=colour, ls="--", label=f"evidence {name}")
    print(f"evidence {name}: precision {precision:.3g}, mean error bar {bar:.3f}, log density of new data {score:.3f}")
sweep.set(xlabel="precision of the normalised layer", ylabel="log density of new data")
sweep.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))

# %% [markdown]
# The distance between the two error bars (Wasserstein's, between predictions with the same mean), and between the two
# precisions, as an ordinary network is trained.

# %%
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
_, copies = trained(plain, 1600, (50, 100, 400, 1600))
gaps, distances = [], []
for step, model in copies.items():
    at = [lw.fit(model, (x, y), lw.Gaussian(0.15), prior=lw.Isotropic(), **way) for way in ({}, weights_of)]
    logs = [float(posterior.prior.precision.log()) for posterior in at]
    gaps.append(abs(logs[0] - logs[1]))
    both = [posterior.predict(new).std for posterior in at]
    distances.append(float((both[0] - both[1]).square().mean().sqrt()))
    print(
        f"after {step} steps: log precisions {logs[0]:.2f} at the mode, {logs[1]:.2f} at the weights, "
        f"error bars {distances[-1]:.3f} apart"
    )
progress.loglog(list(copies), distances, "s-", color="#D55E00", label="of the error bars")
progress.loglog(list(copies), gaps, "o--", color="#0072B2", label="of the log precisions")
progress.set(xlabel="steps of training", ylabel="distance of mode and weights")
progress.legend(frameon=False, fontsize=8)

# %% [markdown]
# The first layer of the normalised network times k: the same function, and the same error bars only with a precision
# of its own.

# %%
factors = (0.1, 0.3, 1.0, 3.0, 10.0)
bars = {"one precision": [], "one per normalised group": []}
for k in factors:
    stretched = copy.deepcopy(normed)
    with torch.no_grad():
        for tensor in stretched[0].parameters():
            tensor.mul_(k)
    for name, prior in zip(bars, (lw.Isotropic(), lw.PerGroup("normalised")), strict=True):
        posterior = lw.fit(stretched, (x, y), lw.Gaussian(0.15), prior=prior)
        bars[name].append(float(posterior.predict(new).epistemic_variance.mean().sqrt()))
for (name, values), style in zip(bars.items(), ("o--", "s-"), strict=True):
    scale.semilogx(factors, values, style, label=name)
    print(f"{name}: mean error bar from {min(values):.4f} to {max(values):.4f} over k")
scale.set(xlabel="scale k of the normalised layer", ylabel="mean error bar", ylim=(0, None))
scale.legend(frameon=False, fontsize=8)

# %% [markdown]
# Before any data, the linearised network is a Gaussian process with kernel J Λ⁻¹ Jᵀ: draws from it.

# %%
several = lw.fit(normed, (x, y), lw.Gaussian(0.15), prior=lw.PerGroup("normalised"))
normals = torch.randn(len(several.prior.std), 8, generator=generator, dtype=torch.float64)
functions = several.map.features(new) @ (several.prior.std[:, None] * normals)
draws.plot(new[:, 0], functions, lw=1)
draws.set(title="draws from the prior", xlabel="x")
figure.savefig("evidence_at_the_right_weights.png", dpi=100)
print("picture: evidence_at_the_right_weights.png")
