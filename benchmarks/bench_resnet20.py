"""Does the posterior of a network that somebody else trained beat temperature scaling?

ResNet-20, CIFAR-10, 269,722 weights, interpolating. The posterior conditions on some of its training images, each
counted 50,000 / n times, and is tuned on the first 200 lossless test images; so is temperature scaling. The other 800 are
scored once, then JPEG-compressed, noisy and out-of-distribution pictures. Differences of NLL are paired, with standard
errors. AUROC says how well a score tells Fashion-MNIST pictures from CIFAR-10's.

Cells that say "default" judge the posterior itself. Those that say "averaged" judge what `fit` with held-out images gives as it comes:
probabilities that average over the raw network, temperature scaling and the posterior, by how well each does on those images. (They were
added later; their test images had been scored before, by the other cells.)
"""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import harness
import numpy as np
import torch
from torch import Tensor

import lapwing as lw
from benchmarks import data
from benchmarks.networks import trained_resnet20
from benchmarks.tasks.cifar import clothes
from lapwing import metrics

TOTAL, HELD_OUT = 50_000, 200
SETS = {"test": slice(200, 1000), "jpeg": slice(200, 600), "noise": slice(200, 500)}
CELLS: dict[str, dict[str, Any]] = {
    "last layer, n = 20, small": {"n": 20, "prior": "g", "select": "linear.", "pictures": 40},
    "all weights, n = 300, default": {"n": 300, "prior": "g", "select": None, "pictures": None},
    "last layer, n = 1000, default": {"n": 1000, "prior": "g", "select": "linear.", "pictures": None},
    "last layer, n = 1000, averaged": {
        "n": 1000,
        "prior": "g",
        "select": "linear.",
        "pictures": None,
        "averaged": True,
    },
    "all weights, n = 300, averaged": {"n": 300, "prior": "g", "select": None, "pictures": None, "averaged": True},
}
PRIORS = {
    "g": lambda: lw.GPrior(),
    "isotropic": lambda: lw.Isotropic(),
    "g per weight": lambda: lw.GPrior(scale_per="weight"),
}


def measure(n: int, prior: str, select: str | None, pictures: int | None, averaged: bool = False) -> dict:
    task = data.cifar10()
    (train_x, train_y), (x, y) = task.train, task.test
    model, sets = trained_resnet20(), shifted(x, y, pictures)
    spent = {}
    started = time.perf_counter()
    posterior = lw.fit(
        model, (train_x[:n], train_y[:n]), lw.Categorical(), prior=PRIORS[prior](), dataset_size=TOTAL,
        select=None if select is None else lambda name: name.startswith(select),
        validation=(x[:HELD_OUT], y[:HELD_OUT]), progress=False, curvature="network",
    )  # fmt: skip
    if not averaged:  # itself, whatever else held-out data would have in an average
        posterior = replace(posterior, alternative=None)
    spent["fit_seconds"] = time.perf_counter() - started
    temperature = posterior.diagnostics.temperature_scaling["temperature"]
    started = time.perf_counter()
    found = {name: predicted(posterior, inputs, temperature) for name, (inputs, _) in sets.items()}
    spent["predict_seconds_per_image"] = (time.perf_counter() - started) / sum(len(pair[0]) for pair in sets.values())
    scores = {name: scored(found[name], labels) for name, (_, labels) in sets.items() if labels is not None}
    return {
        "prior_precision": float(posterior.prior.precision[0]), "temperature": temperature,
        "effective_dimension": posterior.effective_dimension.value, "method": posterior.diagnostics.method,
        "held_out": posterior.diagnostics.held_out, **spent, **scores, "auroc": separation(found["test"], found["ood"]),
    }  # fmt: skip


def shifted(x: Tensor, y: Tensor, pictures: int | None) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The sets that are scored; `pictures` of each, or all of them."""
    kept = slice(None, pictures)
    parts = {name: (x[where][kept], y[where][kept]) for name, where in SETS.items()}
    ours = lambda name: parts[name]  # noqa: E731
    return {
        "test": ours("test"),
        "jpeg": (jpeg(ours("jpeg")[0]), ours("jpeg")[1]),
        "noise": (noisy(ours("noise")[0]), ours("noise")[1]),
        "ood": (clothes(300)[kept], None),
    }


def jpeg(images: Tensor, quality: int = 30) -> Tensor:
    from PIL import Image

    out = []
    for image in (255 * images).round().byte().permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality)
        out.append(np.asarray(Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")))
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2).float() / 255


def noisy(images: Tensor, std: float = 25 / 255) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    return ((images + std * noise).clamp(0, 1) * 255).round() / 255


def predicted(posterior: lw.Posterior, x: Tensor, temperature: float) -> dict[str, Tensor]:
    """Probabilities of every method and scores of novelty, a few images at a time."""
    parts: list[dict[str, Tensor]] = []
    for batch in x.split(25):
        prediction = posterior.predict(batch)
        logits = prediction.mean.double()
        parts.append({
            "lapwing": prediction.probs.double(), "MAP": logits.softmax(1),
            "temperature scaling": (logits / temperature).softmax(1),
            "novelty": prediction.novelty, "mutual information": prediction.mutual_information,
            "variance": prediction.score_variance,
        })  # fmt: skip
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def scored(found: dict[str, Tensor], labels: Tensor | None) -> dict[str, dict[str, float]]:
    """Accuracy, NLL, ECE and Brier of every method; paired differences of NLL to temperature scaling."""
    assert labels is not None
    rival = metrics.nll_each(found["temperature scaling"], labels)
    table = {}
    for name in ("lapwing", "temperature scaling", "MAP"):
        probs = found[name]
        gap = metrics.paired(metrics.nll_each(probs, labels), rival)
        table[name] = {
            "accuracy": metrics.accuracy(probs, labels), "nll": metrics.nll(probs, labels),
            "ece": metrics.ece(probs, labels), "brier": metrics.brier(probs, labels),
            "nll_over_temperature_scaling": gap.mean, "standard_error": gap.standard_error,
        }  # fmt: skip
    return table


def separation(inside: dict[str, Tensor], outside: dict[str, Tensor]) -> dict[str, float]:
    """AUROC of every score, unfamiliar pictures the higher ones."""
    entropies = {f"entropy of {name}": name for name in ("lapwing", "temperature scaling", "MAP")}
    found = {
        label: metrics.auroc(metrics.entropy(inside[name]), metrics.entropy(outside[name]))
        for label, name in entropies.items()
    }
    for name in ("novelty", "mutual information", "variance"):
        found[name] = metrics.auroc(inside[name], outside[name])
    return found


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
