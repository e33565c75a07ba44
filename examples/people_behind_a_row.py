# %% [markdown]
# # What if a row of data stands for many people?
# Surveys often come with weights. A row of weight w counts as w rows of its kind, so error bars shrink where many
# people stand behind the data, and not merely where there are many rows.

# %%
import torch
from matplotlib.figure import Figure

import lapwing as lw

x = torch.linspace(-1, 1, 30).double()[:, None]
survey = {"age": x, "income": torch.sin(3 * x), "people": torch.where(x[:, 0] > 0, 25.0, 1.0).double()}
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double().eval()

# %%
data = lw.DataSpec([survey], inputs="age", targets="income", weights="people")
counted = lw.fit(network, data, lw.Gaussian(0.5), prior=lw.Isotropic(1.0))
plain = lw.fit(network, (x, survey["income"]), lw.Gaussian(0.5), prior=lw.Isotropic(1.0))
figure = Figure(figsize=(6.2, 2.6), layout="constrained")
panel = figure.subplots()
for name, posterior in (("rows", plain), ("people", counted)):
    std = posterior.predict(x).epistemic_variance.sqrt()[:, 0]
    print(f"counting {name}: error bars {std[:15].mean():.3f} on the left, {std[15:].mean():.3f} on the right")
    panel.plot(x[:, 0], std, label=f"counting {name}")
panel.axvspan(0, 1, color="black", alpha=0.06, label="25 people a row")
panel.set(xlabel="age, scaled", ylabel="error bar of the function", ylim=(0, None))
panel.legend(fontsize=8)
figure.savefig("people_behind_a_row.png", dpi=110)
print("picture: people_behind_a_row.png")
