# %% [markdown]
# # What if a row of data stands for many people?
# Surveys often come with weights. A row of weight w counts as w rows of its kind, so error bars shrink where many
# people stand behind the data, and not merely where there are many rows.

# %%
import torch

import lapwing as lw

x = torch.linspace(-1, 1, 30).double()[:, None]
survey = {"age": x, "income": torch.sin(3 * x), "people": torch.where(x[:, 0] > 0, 25.0, 1.0).double()}
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double().eval()

# %%
data = lw.Keyed([survey], inputs="age", targets="income", weights="people")
counted = lw.fit(network, data, lw.Gaussian(0.5), prior=lw.Isotropic(1.0))
plain = lw.fit(network, (x, survey["income"]), lw.Gaussian(0.5), prior=lw.Isotropic(1.0))
for name, posterior in (("rows", plain), ("people", counted)):
    std = posterior.predict(x).epistemic_variance.sqrt()[:, 0]
    print(f"counting {name}: error bars {std[:15].mean():.3f} on the left, {std[15:].mean():.3f} on the right")
