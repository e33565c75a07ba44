# %% [markdown]
# # Which labels are wrong?
# Twenty of 400 digits get another label. The posterior without a picture says how likely its label is, for every one
# at once: nothing is fitted again. The least likely labels are the ones to look at.

# %%
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import lapwing as lw

images, truth = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
images, truth = images[:600] / 16, truth[:600].long()
generator = torch.Generator().manual_seed(0)
flipped = torch.randperm(400, generator=generator)[:20]
labels = truth.clone()
labels[flipped] = (labels[flipped] + torch.randint(1, 10, (20,), generator=generator)) % 10

torch.manual_seed(0)
model = nn.Linear(64, 10).double()
optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(300):
    optimiser.zero_grad()
    decay = 0.5 * sum(weight.square().sum() for weight in model.parameters())
    (nn.functional.cross_entropy(model(images[:400]), labels[:400], reduction="sum") + decay).backward()
    optimiser.step()
model.eval()

# %%
posterior = lw.fit(model, (images[:400], labels[:400]), lw.Categorical(), prior=lw.Isotropic(1.0))
left_out = posterior.leave_one_out()
suspects = left_out.label_errors(20)
print(f"{int(torch.isin(suspects, flipped).sum())} of the 20 least likely labels were flipped, 1 would be by chance")
print("the first five, as labelled, as the others see them, and in truth:")
for number in suspects[:5].tolist():
    print(number, int(labels[number]), int(left_out.mean[number].argmax()), int(truth[number]))

# %% [markdown]
# The same without a posterior, from the gradients of the network in few coordinates: quick for large networks too.

# %%
issues: lw.LabelIssues = lw.label_issues(model, (images[:400], labels[:400]), lw.Categorical())
print(f"{issues}; {int(torch.isin(issues.ranked(20), flipped).sum())} of the 20 least likely were flipped")

# %% [markdown]
# What a training picture does to one prediction: the outputs with it, less those without.

# %%
change = posterior.influence(images[400:401])[:, 0]
strongest = int(change.norm(dim=1).argmax())
print(f"picture 400, a {int(truth[400])}, depends most on picture {strongest}, labelled {int(labels[strongest])}")

# %% [markdown]
# More pictures come in, and the posterior goes on from where it is.

# %%
more = posterior.update((images[400:500], labels[400:500]))
for name, found in (("400", posterior), ("500", more)):
    prediction = found.predict(images[500:], mean="linear")
    density, wrong = prediction.log_prob(truth[500:]).mean(), prediction.probs.argmax(1) != truth[500:]
    print(f"{name} pictures: log density {float(density):.3f} and {int(wrong.sum())} errors on 100 new ones")

# %%
figure = Figure(figsize=(9.6, 1.7), layout="constrained")
for panel, number in zip(figure.subplots(1, 10), suspects[:10].tolist(), strict=True):
    panel.imshow(images[number].reshape(8, 8).numpy(), cmap="gray_r")
    seen = int(left_out.mean[number].argmax())
    panel.set_title(f"labelled {int(labels[number])}\nseen as {seen}", fontsize=8)
    panel.axis("off")
figure.savefig("which_labels_are_wrong.png", dpi=110)
print("picture: which_labels_are_wrong.png")
