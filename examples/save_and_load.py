# %% [markdown]
# # Save a posterior and load it
# A posterior is one file: tensors and JSON, nothing that could run. The training data stay out of it, and still the
# loaded posterior can be moved to another precision or tuned on new held-out data.

# %%
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes

import lapwing as lw
from lapwing.network.files import load

x, y = (torch.from_numpy(part).float() for part in load_diabetes(return_X_y=True))
x, y = 20 * x, ((y - y.mean()) / y.std())[:, None]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
for _ in range(300):
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(model(x[:250]), y[:250]).backward()
    optimiser.step()
model.eval()

# %%
posterior = lw.fit(model, (x[:250], y[:250]), lw.Gaussian())
path = posterior.save("diabetes.safetensors")
print(f"{path}: {Path(path).stat().st_size / 1024:.0f} KiB")

# %%
again = load(path, model)
print("the same predictions:", torch.equal(again.predict(x[250:]).std, posterior.predict(x[250:]).std))
tuned = again.tune((x[250:350], y[250:350]))
print(f"log density of 92 new patients: {float(again.predict(x[350:]).log_prob(y[350:]).mean()):.3f} by evidence, "
      f"{float(tuned.predict(x[350:]).log_prob(y[350:]).mean()):.3f} tuned on held-out patients")  # fmt: skip

# %%
curve = tuned.curve
figure = Figure(figsize=(6.2, 2.8), layout="constrained")
panel = figure.subplots()
panel.semilogx(curve.precision, curve.held_out, color="black", label="density of held-out patients")
for name, found, style in (("by the evidence", again, "--"), ("on held-out patients", tuned, "-")):
    panel.axvline(float(found.prior.precision[0]), linestyle=style, color="tab:blue", label=f"chosen {name}")
panel.set(xlabel="prior precision", ylabel="log density of a patient")
panel.legend(fontsize=8)
figure.savefig("save_and_load.png", dpi=110)
print("picture: save_and_load.png")

# %% [markdown]
# A posterior belongs to the weights it was fitted at; other weights are refused.

# %%
with torch.no_grad():
    model[0].weight += 0.1
try:
    load(path, model)
except ValueError as error:
    print(error)
