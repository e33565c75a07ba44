"""Where should the evidence of a linearised network be taken, and how many precisions should it set?

The task `python -m benchmarks evidence-table`, every network and seed a cell: test negative log-likelihood of the linearised
posterior whose precisions the evidence set at the mode of the linear model (`mode`; with the curvature there too: `full`) or
at the network's own weights (`weights`), one or several. 60 MNIST images of 14 × 14 pixels to train on, 300 to stop early
by, 300 to test, scored once; seeds that no setting was chosen on. Published, with all 60,000 images: Antorán et al. 2022,
Table 1. The smallest cell has the bundled digits, and also asks `infer` for the evidence at the precisions found.
"""

import math
import tempfile
from pathlib import Path

import harness

SEEDS = (10, 11)
NETWORKS = ("transformer", "cnn", "resnet", "pre-resnet", "fixup-resnet")
CELLS = {
    "small cnn": {"network": None, "seed": 0},
    **{f"{name}, seed {seed}": {"network": name, "seed": seed} for seed in SEEDS for name in NETWORKS},
}


def measure(network: str | None, seed: int) -> dict:
    from benchmarks.tasks import evidence_table as study

    if network is None:
        return small(seed)
    with tempfile.TemporaryDirectory() as folder:
        found = study.problem(network, seed, Path(folder))
    labels, outputs = found.train.targets, found.train.centre
    return {
        "weights": len(found.train.prior.scale), "groups": len(found.train.grams),
        "train_confidence": float(study.LABELS.confidence(outputs, labels).mean()),
        **{way: written(found.scores(way)) for way in ("map", *study.WAYS)},
    }  # fmt: skip


def written(scores: dict) -> dict:
    """As JSON has it: the infinite precision of a pruned group is null."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def small(seed: int) -> dict:
    import lapwing as lw
    import lapwing.training
    from benchmarks import data, networks
    from benchmarks.tasks import evidence_table as study

    task = data.digits(seed=seed)
    (x, y), (new_x, new_y) = task.train, task.test
    pair, test = (x[:20], y[:20]), (new_x[:20], new_y[:20])
    model = networks.batchnorm_cnn(width=4, seed=seed).to(x.dtype)
    model = lapwing.training.train(model, pair, lw.Categorical(), epochs=10, batch_size=10, seed=seed, progress=False)
    found = study.linearised(model, pair, test)
    at = study.tuned(found.train, "mode-several")
    linear = lw.linearise(model.double(), (pair[0].double(), pair[1]), lw.Categorical())
    kept = at.precision.clamp_max(1e6)  # a precision that is given is finite
    given = dict(zip(found.train.prior.names, kept.tolist(), strict=True))
    prior = lw.PerGroup(linear.groups("normalised"), precision=given)
    posterior = lw.infer(linear, prior=prior, method=lw.Exact(), draws=0, progress=False, curvature="network")
    return {
        **{way: written(found.scores(way)) for way in ("map", "mode-several", "weights-single")},
        "log_evidence_difference": abs(posterior.log_evidence.value / at.log_evidence - 1),
    }


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
