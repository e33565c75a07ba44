# %% [markdown]
# # Structures side by side
# What does an approximation of the posterior cost in quality? Every structure is a method of `fit`, so each can be put
# beside the exact answer: the error bars where there were data and in a gap, and the log evidence at the mode of the
# linear model and, as is often done, at the network's own weights.

# %%
import torch
from matplotlib.figure import Figure

import lapwing as lw

generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.linspace(-2, -0.7, 60), torch.linspace(0.6, 2, 60)])[:, None]
y = torch.sin(3 * x) + 0.15 * torch.randn(x.shape, generator=generator)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(800):
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()
model.eval()

# %%
some = lw.subnetwork(model, (x, y), lw.Gaussian(0.15), 30, score="predictive")
ways = {
    "exact": {"method": lw.Exact()},
    "30 eigenpairs": {"method": lw.LowRank(30)},
    "KFAC, eigenvalues corrected": {"method": lw.EKFAC()},
    "KFAC": {"method": lw.KFAC()},
    "diagonal": {"method": lw.Diagonal()},
    "exact over the last layer": {"method": lw.Exact(), "select": lw.last_layer(model)},
    "exact over 30 weights": {"method": lw.Exact(), "select": some},
    "KFAC, evidence at the weights": {"method": lw.KFAC(evidence_at="weights")},
}
places = torch.tensor([[-1.5], [0.0]])
grid = torch.linspace(-2.5, 2.5, 121)[:, None]
figure = Figure(figsize=(7.6, 3.4), layout="constrained")
panel = figure.subplots()
print(f"{'':32}{'precision':>10}{'noise':>8}{'std at −1.5':>13}{'in the gap':>12}{'log evidence':>14}")
for name, options in ways.items():
    posterior = lw.fit(model, (x, y), lw.Gaussian(), prior=lw.Isotropic(), **options)
    data, gap = posterior.predict(places).epistemic_variance.sqrt()[:, 0].tolist()
    print(
        f"{name:32}{float(posterior.prior.precision):10.3g}{float(posterior.likelihood.noise_std):8.3f}"
        f"{data:13.3f}{gap:12.3f}{posterior.log_evidence.value:14.2f}"
    )
    look = {"linewidth": 5, "alpha": 0.3} if name == "exact" else {"linestyle": "--" if "," in name else "-"}
    panel.plot(grid[:, 0], posterior.predict(grid).epistemic_variance.sqrt()[:, 0], label=name, **look)
panel.plot(x[:, 0], torch.full((len(x),), 0.004), "k|", markersize=5)
panel.set(yscale="log", xlabel="input (marks: data)", ylabel="error bar of the function")
panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
figure.savefig("structures_side_by_side.png", dpi=110)
print("picture: structures_side_by_side.png")

# %% [markdown]
# Three matrices are often called "the Hessian". The Gauss–Newton matrix is that of the linear model and never negative.
# The true Hessian adds the curvature of the network: its negative eigenvalues need a prior that makes up for them, and
# a softer one is refused. The empirical Fisher knows the residuals, not the noise.

# %%
print(f"\n{'at precision 100, noise 0.15':50}{'std at −1.5':>13}{'in the gap':>12}{'log evidence':>14}")
for method in (lw.Exact(), lw.Hessian(), lw.EmpiricalFisher()):
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.15), prior=lw.Isotropic(100.0), method=method)
    data, gap = posterior.predict(places).epistemic_variance.sqrt()[:, 0].tolist()
    print(f"{type(method).__name__:50}{data:13.3f}{gap:12.3f}{posterior.log_evidence.value:14.2f}")
try:
    lw.fit(model, (x, y), lw.Gaussian(0.15), prior=lw.Isotropic(1.0), method=lw.Hessian())
except ValueError as refused:
    print(refused)
