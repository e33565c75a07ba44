"""evidence-table: where the evidence is taken, and how many precisions it sets, for five kinds of network.

Each network has about 46,000 weights, is trained on a few MNIST images (of half the resolution, 14 × 14), stopped early
on others, and linearised. One precision or several are set by the evidence: at the mode of the linear model (`mode`),
with the curvature of the labels there too (`full`), or at the network's own weights (`weights`). The columns are those
of Antorán et al. (2022, Table 1) but for their U-Net, which reconstructs pictures; they had all 60,000 images. The
predictive mean is always the network's own output. `several` is one precision for every normalised matrix and one for
the rest; where no matrix is normalised, as in the Transformer and under Fixup, it is one for every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from benchmarks import networks
from benchmarks.about import TASKS
from benchmarks.data import Task, mnist
from benchmarks.outcomes import Cell
from benchmarks.regressors import falling
from benchmarks.tasks.study import Study, shared_weights
from lapwing import metrics
from lapwing.bayes.fits.by_group import ByGroup, cross_grams, maximised, own_grams
from lapwing.bayes.likelihoods import Categorical
from lapwing.bayes.likelihoods.spread import Spread
from lapwing.bayes.priors import PerGroup
from lapwing.network.linearisation import linearise
from lapwing.studies.datasets.task import Pair
from lapwing.training import adam, train

LABELS = Categorical()
TRAIN, HELD_OUT, TEST, EPOCHS, BATCH_SIZE, LEARNING_RATE = 60, 300, 300, 60, 15, 3e-3
SOURCE = 10_000  # of which seeds choose their training images
BLOCK = 50  # test images whose Jacobian is made at once
ROUNDS, SETTLED = 10, 1e-2  # of a curvature that follows the mode, and the change of log precisions that ends them

SIZE = 14  # pixels along each side
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {  # by the size of the pictures and the seed
    "transformer": lambda size, seed: networks.transformer(size=size, patch=size // 2, width=50, heads=5, seed=seed),
    "cnn": lambda _, seed: networks.batchnorm_cnn(width=29, seed=seed),
    "resnet": lambda _, seed: networks.small_resnet("batchnorm", seed=seed),
    "pre-resnet": lambda _, seed: networks.small_resnet("pre-activation", seed=seed),
    "fixup-resnet": lambda _, seed: networks.small_resnet("fixup", seed=seed),
}
WAYS = ("mode-single", "mode-several", "full-single", "full-several", "weights-single", "weights-several")


@final
@dataclass(frozen=True, eq=False)
class Tuned:
    """Precisions set by the evidence, and where its curvature was taken."""

    precision: Tensor  # (groups,), equal where one was asked for
    curvature_at: Tensor  # (n, classes)
    log_evidence: float
    effective_dimension: float


@final
@dataclass(frozen=True, eq=False)
class Linearised:
    """A trained network as Gram matrices: of the training images, and of the test images with them."""

    train: ByGroup
    own: Tensor  # (groups, m, classes, classes)
    cross: Tensor  # (groups, m · classes, rows)
    outputs: Tensor  # (m, classes), the network's own
    labels: Tensor  # (m,)

    def scores(self, way: str) -> dict[str, float]:
        """The scores of one way to set the precisions, or of the raw network."""
        probs = self.outputs.softmax(1)
        found: dict[str, float] = {}
        if way != "map":
            at = tuned(self.train, way)
            covariance = self.train.covariance(at.precision, at.curvature_at, self.own, self.cross)
            spread = Spread(covariance.diagonal(dim1=1, dim2=2), covariance)
            probs = LABELS.probabilities(LABELS.checked_link("full probit"), self.outputs, spread)
            found = {
                "log_evidence": at.log_evidence, "effective_dimension": at.effective_dimension,
                "output_std": float(spread.variance.mean().sqrt()),
                **{f"precision of {name}": float(one) for name, one in zip(
                    self.train.prior.names, at.precision, strict=True)},
            }  # fmt: skip
        return {
            "nll": metrics.nll(probs, self.labels), "ece": metrics.ece(probs, self.labels),
            "accuracy": metrics.accuracy(probs, self.labels), "confidence": metrics.confidence(probs), **found,
        }  # fmt: skip


def tuned(known: ByGroup, way: str) -> Tuned:
    """The precisions that one of `WAYS` sets."""
    where, _, how = way.partition("-")
    model, at = known.tied() if how == "single" else known, known.centre
    problem = model.evidence_at_weights() if where == "weights" else model.at_mode(at)
    found = maximised(problem).at
    for _ in range(ROUNDS if where == "full" else 0):
        at, before = model.mode(model.kernel(found.prior)).outputs, found.prior
        problem = model.at_mode(at)
        found = maximised(problem, before.clamp_max(1e12)).at
        if float((found.prior.clamp_max(1e12) / before.clamp_max(1e12)).log().abs().max()) < SETTLED:
            break
    moments = problem.moments(found)
    return Tuned(
        found.prior.expand(len(known.grams)), at, problem.objective(found, moments), float(moments.determined.sum())
    )


def linearised(model: nn.Module, data: Pair, test: Pair) -> Linearised:
    """The Gram matrices of a trained network, in groups."""
    linear = linearise(model, data, LABELS)
    assert linear.groups is not None
    groups = linear.groups("normalised")
    prior = PerGroup(groups if len(groups) > 1 else linear.groups("layer")).on(linear.features, linear.row_counts)
    rows = linear.features.rows(0, linear.features.shape[0])
    inputs, labels = test
    own, cross = [], []
    for part in inputs.split(BLOCK):
        features = linear.features_at(part)
        new = features.rows(0, features.shape[0])
        own.append(own_grams(new, features.shape[0] // len(part), prior))
        cross.append(cross_grams(new, rows, prior))
    with torch.no_grad():
        outputs = model(inputs).double()
    return Linearised(ByGroup.of(linear, prior, rows), torch.cat(own, 1), torch.cat(cross, 1), outputs, labels)


def halved(task: Task) -> Task:
    """The same pictures with half the pixels along each side."""
    (x, y), (new_x, new_y) = task.train, task.test
    return replace(task, train=(avg_pool2d(x, 2), y), test=(avg_pool2d(new_x, 2), new_y))


def trained(model: nn.Module, data: Pair, held_out: Pair, seed: int) -> nn.Module:
    """By Adam with a falling rate; the weights of the epoch with the best held-out log probability are kept."""
    return train(
        model, data, LABELS, epochs=EPOCHS, batch_size=BATCH_SIZE, optimiser=adam(LEARNING_RATE), schedule=falling,
        validation=held_out, seed=seed, progress=False,
    )  # fmt: skip


def problem(name: str, seed: int, folder: Path) -> Linearised:
    """The trained network of a seed, which also chooses its training images.

    It is scored on the second few hundred test images: the first were looked at while the settings were chosen.
    """
    whole = mnist(SOURCE, 2 * TEST)
    unseen = replace(whole, test=(whole.test[0][TEST:], whole.test[1][TEST:]))
    task, held_out = halved(unseen).held_out(HELD_OUT, seed=seed)
    _, chosen = task.held_out(TRAIN, seed=seed + 1)
    path = folder / "networks" / f"evidence-table-{name}-{seed}.safetensors"
    model = shared_weights(NETWORKS[name](SIZE, seed), path, lambda network: trained(network, chosen, held_out, seed))
    return linearised(model, chosen, task.test)


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """The scores of one way to set the precisions of a network."""
    return problem(cell.data, cell.seed, folder).scores(cell.method)


def _there(_name: str) -> int:
    mnist(1, 1)
    return 1000


# test NLL of Table 1: at the mode and at the weights, one precision and several
_TABLE = {
    "transformer": (0.162, 0.162, 0.310, 0.162), "cnn": (0.025, 0.025, 0.253, 0.205),
    "resnet": (0.017, 0.016, 0.252, 0.236), "pre-resnet": (0.017, 0.016, 0.220, 0.239),
    "fixup-resnet": (0.055, 0.061, 0.153, 0.200),
}  # fmt: skip
_PUBLISHED = ("mode-single", "mode-several", "weights-single", "weights-several")

STUDY = Study(
    "evidence-table", TASKS["evidence-table"],
    ("map", *WAYS), tuple(NETWORKS), run, ("nll", "ece", "accuracy", "output_std", "log_evidence"), _there,
    frozenset({"accuracy", "log_evidence"}), default_seeds=3,
    published={name: {f"{way} nll": value for way, value in zip(_PUBLISHED, row, strict=True)}
               for name, row in _TABLE.items()},
)  # fmt: skip
