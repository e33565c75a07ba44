# %% [markdown]
# # Bands over a gap
# A small network has seen a wave with a gap in the middle. Its error bars should be narrow where there were data and
# wide in the gap, and new points should fall inside them as often as promised.

# %%
import torch
from matplotlib.figure import Figure

import lapwing as lw
from lapwing.app import recording, report

generator = torch.Generator().manual_seed(0)


def wave(x):
    """What is observed at x."""
    return torch.sin(3 * x) + 0.15 * torch.randn(x.shape, generator=generator)


x = torch.cat([torch.linspace(-2, -0.7, 60), torch.linspace(0.6, 2, 60)])[:, None]
y = wave(x)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(800):
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()
model.eval()

# %%
posterior = lw.fit(model, (x, y), lw.Gaussian(), prior=lw.Isotropic())
print(posterior)

# %%
new = torch.linspace(-2, 2, 401)[:, None]
test = recording.evaluation("new points, gap included", posterior, new, wave(new))
record = recording.record("Wave", posterior, [test], inputs=x, targets=y)
std = posterior.predict(torch.tensor([[-1.5], [0.0], [1.5]])).epistemic_variance.sqrt()[:, 0]
print(f"std of the function at −1.5, 0 (in the gap) and 1.5: {', '.join(f'{value:.3f}' for value in std.tolist())}")
print(report.verdict(record).headline)
print("page:", report.write("wave.html", [record]))

# %%
prediction = posterior.predict(new)
mean, at = prediction.mean[:, 0], new[:, 0]
figure = Figure(figsize=(6.6, 3), layout="constrained")
panel = figure.subplots()
spreads = (("a new point", prediction.std, 0.2), ("the function", prediction.epistemic_variance.sqrt(), 0.4))
for words, std, strength in spreads:
    half = 1.96 * std[:, 0]
    panel.fill_between(at, mean - half, mean + half, color="tab:blue", alpha=strength, label=f"95 % for {words}")
panel.plot(at, mean, color="tab:blue", label="network")
panel.scatter(x[:, 0], y[:, 0], s=8, color="black", label="data")
panel.set(xlabel="input", ylabel="target", ylim=(-3, 3))
panel.legend(fontsize=8, loc="lower left")
figure.savefig("bands_over_a_gap.png", dpi=110)
print("picture: bands_over_a_gap.png")
