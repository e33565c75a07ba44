"""corrupted-cifar: a ResNet-20 that someone else trained, under pictures that get worse and worse.

Every method sees a part of the network's 50,000 training images, weighted as all of them, and is tuned on 200 test
images that are not scored. Scored are the same `IMAGES` others for every method, as they are (severity 0) and under
each corruption at each severity; figures at a severity are over all corruptions together. ECE has 15 bins.
`over_temperature` is the mean difference of NLL to temperature scaling over all corrupted pictures, image by image.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.about import TASKS
from benchmarks.classifiers import METHODS as ALL
from benchmarks.classifiers import Problem
from benchmarks.corruptions import corrupt
from benchmarks.data import cifar10, fashion_mnist
from benchmarks.networks import resnet20, trained_resnet20
from benchmarks.outcomes import Cell
from benchmarks.tasks.study import Study
from lapwing import metrics
from lapwing.families.networks import Predictive

KINDS, SEVERITIES = ("gaussian_noise", "defocus_blur", "contrast"), (1, 3, 5)
TOTAL, HELD_OUT, IMAGES, BATCH = 50_000, 200, 100, 25
FEW, SOME = 100, 1000  # training images of the posterior over all weights, and of the others
METHODS = (
    "map", "temperature", "linearised", "last-layer", "subnetwork-300", "subnetwork", "subnetwork-3000", "diagonal",
    "kfac", "swag",
)  # fmt: skip
SCORES = (
    "over_temperature", "nll_0", *(f"nll_{severity}" for severity in SEVERITIES),
    "ece_0", *(f"ece_{severity}" for severity in SEVERITIES),
)  # fmt: skip


def problem(method: str, seed: int) -> tuple[Problem, tuple[Tensor, Tensor]]:
    """The trained network with what a method may see, and the test images of a seed."""
    task, few = cifar10(SOME), FEW if method == "linearised" else SOME
    x, y = task.test
    start = HELD_OUT + seed * IMAGES
    given = Problem(
        lambda at: resnet20(seed=at), trained_resnet20(), task.train, (x[:HELD_OUT], y[:HELD_OUT]), epochs=8, seed=seed,
        few=few, batch_size=100, total=TOTAL,
    )  # fmt: skip
    return given, (x[start : start + IMAGES], y[start : start + IMAGES])


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """NLL, ECE and accuracy at every severity, by kind too, and the paired difference to temperature scaling."""
    del folder
    given, (images, labels) = problem(cell.method, cell.seed)
    found, rival = ALL[cell.method](given), ALL["temperature"](given)
    scores: dict[str, float] = {}
    differences = []
    for severity in (0, *SEVERITIES):
        kinds = KINDS if severity else ("none",)
        sets = {kind: corrupt(images, kind, severity) if severity else images for kind in kinds}
        probs = {kind: probabilities(found, pictures) for kind, pictures in sets.items()}
        together, known = torch.cat(list(probs.values())), labels.repeat(len(kinds))
        scores |= {
            f"nll_{severity}": metrics.nll(together, known), f"ece_{severity}": metrics.ece(together, known),
            f"accuracy_{severity}": metrics.accuracy(together, known),
            **{f"nll_{kind}_{severity}": metrics.nll(probs[kind], labels) for kind in kinds if severity},
        }  # fmt: skip
        if severity:
            theirs = torch.cat([probabilities(rival, pictures) for pictures in sets.values()])
            differences.append(metrics.nll_each(together, known) - metrics.nll_each(theirs, known))
    # corruptions of one picture hang together: their mean counts as one observation
    each = torch.cat(differences).reshape(-1, len(images)).mean(0)
    error = float(each.std()) / len(each) ** 0.5
    return {"over_temperature": float(each.mean()), "over_temperature_error": error, **scores}


def probabilities(found: Predictive, images: Tensor) -> Tensor:  # (n, classes)
    """Probabilities in float64, a few images at a time: those of a linearised posterior are large on the way."""
    parts = torch.cat([found.predict(part).probs.double() for part in images.split(BATCH)])
    return parts / parts.sum(1, keepdim=True)


def clothes(count: int) -> Tensor:
    """Pictures of clothes as if they were photographs: 32 × 32, three equal channels."""
    grey = fashion_mnist(1, count).test[0]
    large = interpolate(grey, (32, 32), mode="bilinear", align_corners=False)
    return large.clamp(0, 1).expand(-1, 3, -1, -1).contiguous()


def there(_: str) -> int:
    """How many disjoint sets of test images there are, once the files are."""
    trained_resnet20()
    return (len(cifar10(1).test[0]) - HELD_OUT) // IMAGES


STUDY = Study(
    "corrupted-cifar", TASKS["corrupted-cifar"], METHODS,
    ("cifar10",), run, SCORES, there, default_seeds=1,
)  # fmt: skip
