# %% [markdown]
# # Regularised by the evidence
# A network with one input, six hidden units and one output, on twenty-one noisy points: without regularisation it
# follows the noise, with MacKay's loop it finds its own weight decay and noise level. Larger networks then determine no
# more weights (γ stays), which says that the smaller one was enough.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import lapwing as lw
from lapwing.families import mackay

generator = torch.Generator().manual_seed(0)
x = torch.linspace(-1, 1, 21).double()[:, None]
y = torch.sin(torch.pi * x) + 0.3 * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def network(hidden):
    """One input, one hidden layer, one output."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1)).double()


# %%
free = mackay.train(network(6), (x, y), lw.Gaussian(0.3), precision=1e-6, steps=2000, progress=False)
ours = mackay.train(network(6), (x, y), lw.Gaussian(), progress=False)
line = torch.linspace(-1, 1, 101).double()[:, None]
truth, prediction = torch.sin(torch.pi * line), ours.posterior.predict(line)
with torch.no_grad():
    errors = [float((model(line) - truth).square().mean().sqrt()) for model in (free.model, ours.model)]
noise = float(ours.posterior.likelihood.noise_std)
print(f"error without regularisation {errors[0]:.3f}, with it {errors[1]:.3f}; noise found {noise:.2f}, true 0.30")

# %%
models = {f"{hidden} units": network(hidden) for hidden in (1, 2, 4, 8)}
found = mackay.compare(models, (x, y), lw.Gaussian(), progress=False)
print(f"{'':10}{'weights':>8}{'γ':>7}{'log evidence':>14}")
for name, fit in found.fits.items():
    known = fit.posterior
    print(f"{name:10}{len(known.values):8}{known.effective_dimension:7.1f}{known.log_evidence:14.2f}")
print(f"largest evidence: {found.best}", *found.advice, sep="\n")

# %%
figure = Figure(figsize=(10, 3.8), layout="constrained")
left, right = figure.subplots(1, 2)
mean, std = prediction.mean[:, 0], prediction.std[:, 0]
left.fill_between(
    line[:, 0], mean - 2 * std, mean + 2 * std, color="#56B4E9", alpha=0.4, label="two standard deviations"
)
left.plot(line, mean, color="#0072B2", label="with regularisation")
left.plot(line, free.model(line).detach(), color="#D55E00", ls="--", label="without")
left.plot(line, truth, color="black", ls=":", label="truth")
left.plot(x, y, "k.")
left.set(ylim=(-2.5, 2.5))
left.legend(frameon=False, fontsize=8)
sizes = [len(fit.posterior.values) for fit in found.fits.values()]
right.plot(sizes, [fit.posterior.effective_dimension for fit in found.fits.values()], "o-", color="#009E73", label="γ")
right.plot(sizes, sizes, color="grey", ls=":", label="all weights")
right.set(xlabel="weights", ylabel="determined by the data")
right.legend(frameon=False)
figure.savefig("regularised_by_the_evidence.png", dpi=100)
print("picture: regularised_by_the_evidence.png")
