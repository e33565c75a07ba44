# %% [markdown]
# # A page for a classifier
# A network for handwritten digits gets error bars, is checked on clean and rotated digits and on pictures that are no
# digits at all, and leaves a page that says in words how far its confidence can be believed.

# %%
import time

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

import lapwing as lw
from lapwing.app import recording, records, report

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 1, 8, 8).astype(np.float32) / 16
order = np.random.default_rng(0).permutation(len(images))
train, held_out, test = order[:200], order[200:400], order[400:1000]


def pair(rows):
    """Inputs and class numbers of some rows."""
    return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])


# %% [markdown]
# The network that someone already trained: it knows its few training pictures by heart and is too sure of itself.

# %%
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 6, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(96, 10),
)
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
x, y = pair(train)
for _ in range(250):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
model.eval()

# %% [markdown]
# One call puts error bars on it; the held-out pictures say how wide they should be.

# %%
started = time.perf_counter()
posterior = lw.fit(model, (x, y), lw.Categorical(), validation=pair(held_out))
seconds = {"fit": time.perf_counter() - started}
print(posterior)

# %% [markdown]
# Three questions: is it right on digits like those it knows, on rotated digits, and does it notice noise?

# %%
some = test[:200]
rotated = np.stack([rotate(image, 40, axes=(1, 2), reshape=False, order=1) for image in images[some]])
noise = torch.rand(150, 1, 8, 8, generator=torch.Generator().manual_seed(1))
evaluations = [
    recording.evaluation("test", posterior, *pair(test)),
    recording.evaluation("rotated by 40°", posterior, torch.from_numpy(rotated), torch.from_numpy(labels[some])),
    recording.evaluation("noise", posterior, noise),
]
data = records.Data(
    "digits of scikit-learn", sizes={"train": 200, "validation": 200, "test": 600}, classes=tuple("0123456789")
)
record = recording.record("Digits", posterior, evaluations, inputs=x, targets=y, data=data, seconds=seconds)

# %%
verdict = report.verdict(record)
print(verdict.headline)
for reason in verdict.reasons:
    print("-", reason)
print("page:", report.write("digits.html", [record]))

# %%
figure = Figure(figsize=(8.4, 2.6), layout="constrained")
panels = figure.subplots(1, 3, sharey=True)
named = {"lapwing": "lapwing", "raw network": "raw network"}
for panel, evaluation in zip(panels, evaluations, strict=True):
    for method, words in named.items():
        sure = evaluation.method(method).probs.max(1)
        panel.hist(sure, np.linspace(0, 1, 21), weights=np.full(len(sure), 1 / len(sure)), alpha=0.55, label=words)
    panel.set(title=evaluation.name, xlabel="confidence")
panels[0].set(ylabel="share of pictures")
panels[0].legend(fontsize=8)
figure.savefig("a_page_for_a_classifier.png", dpi=110)
print("picture: a_page_for_a_classifier.png")
