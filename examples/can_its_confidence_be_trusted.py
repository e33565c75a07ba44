# %% [markdown]
# # Can its confidence be trusted?
# A small network on handwritten digits, and the numbers that say how far its probabilities can be believed: on pictures
# like those it was trained on, on rotated ones, and on noisy ones.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

from lapwing import metrics
from lapwing.studies.datasets import digits, rotate

task, (held_x, held_y) = digits(seed=0).held_out(200)
x, y = task.train
torch.manual_seed(0)
network = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
optimiser = torch.optim.Adam(network.parameters(), 3e-3)
order = torch.Generator().manual_seed(0)
for _ in range(15):
    for rows in torch.randperm(len(x), generator=order).split(64):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
        optimiser.step()
network.eval()


def logits_of(pictures: torch.Tensor) -> torch.Tensor:
    """What the network says, without gradients."""
    with torch.no_grad():
        return network(pictures)


# %% [markdown]
# The calibration error of a perfect classifier is not zero on 539 pictures: `ece_floor` says what chance alone gives.

# %%
test_x, test_y = task.test
noise = 0.1 * torch.randn(test_x.shape, generator=torch.Generator().manual_seed(0))
shifted = {"clean": test_x, "rotated by 30°": rotate(test_x, 30), "noisy": (test_x + noise).clamp(0, 1)}
for name, pictures in shifted.items():
    probs = logits_of(pictures).softmax(-1)
    floor = metrics.ece_floor(probs, generator=torch.Generator().manual_seed(0))
    print(
        f"{name:14} accuracy {metrics.accuracy(probs, test_y):.3f}  confidence {metrics.confidence(probs):.3f}  "
        f"NLL {metrics.nll(probs, test_y):.3f}  ECE {metrics.ece(probs, test_y):.3f} (chance gives {floor:.3f})"
    )

# %% [markdown]
# One number, chosen on held-out upright digits, divides all logits. Is that better on rotated ones? The same pictures
# are scored by both, so the difference has a much smaller error than either score.

# %%
held_logits, rotated = logits_of(held_x), logits_of(shifted["rotated by 30°"])
best = min((0.5 + 0.1 * step for step in range(40)), key=lambda t: metrics.nll(held_logits / t, held_y, logits=True))
scores = [metrics.nll_each(rotated / t, test_y, logits=True) for t in (best, 1.0)]
print(f"temperature {best:.1f}: NLL of rotated digits changes by {metrics.paired(*scores)}")

# %% [markdown]
# Where may it answer? Refusing the least certain rotated digits lowers the share of errors; and entropy tells rotated
# digits from upright ones.

# %%
probs = rotated.softmax(-1)
curve = metrics.risk_coverage(metrics.entropy(probs), probs.argmax(-1) != test_y)
print(f"errors among all: {curve.at(1.0):.1%}, among the surer half: {curve.at(0.5):.1%}")
upright = metrics.entropy(logits_of(test_x).softmax(-1))
found, error = metrics.auroc(upright, metrics.entropy(probs)), metrics.auroc_error(upright, metrics.entropy(probs))
print(f"rotated or upright, by entropy: AUROC {found:.3f} ± {error:.3f}")

# %%
figure = Figure(figsize=(7.6, 2.8), layout="constrained")
bars, risk = figure.subplots(1, 2)
for place, measure in enumerate((metrics.accuracy, metrics.confidence)):
    heights = [
        measure(found, test_y) if measure is metrics.accuracy else measure(found)
        for found in (logits_of(pictures).softmax(-1) for pictures in shifted.values())
    ]
    bars.bar([number + 0.4 * place for number in range(3)], heights, 0.38, label=measure.__name__)
bars.set_xticks([number + 0.2 for number in range(3)], list(shifted))
bars.legend(fontsize=8, loc="upper center")
kept = torch.linspace(0.05, 1, 60).tolist()
risk.plot([100 * share for share in kept], [100 * curve.at(share) for share in kept])
risk.set(xlabel="rotated digits answered, %", ylabel="wrong among them, %")
figure.savefig("can_its_confidence_be_trusted.png", dpi=110)
print("picture: can_its_confidence_be_trusted.png")
