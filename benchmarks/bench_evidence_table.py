"""Where should the evidence of a linearised network be taken, and how many precisions should it set?

The task `lapwing bench evidence-table` with the bundled digits (8 × 8 pixels) in place of MNIST, every network and seed a
cell: test negative log-likelihood of the linearised posterior whose precisions the evidence set at the mode of the linear
model (`mode`; with the curvature there too: `full`) or at the network's own weights (`weights`), one or several. 30 images to
train on, 100 to stop early by, 200 to test, scored once. Published, with all 60,000 images of MNIST: Antorán et al. 2022,
Table 1. The smallest cell also asks `infer` for the evidence at the precisions found.
"""

import math

import harness

SEEDS = 0  # of the networks of the table, about a minute each: none has been run yet
TRAIN, HELD_OUT, TEST = 30, 100, 200
NETWORKS = ("transformer", "cnn", "resnet", "pre-resnet", "fixup-resnet")
CELLS = {
    "small cnn": {"network": None, "seed": 0},
    **{f"{name}, seed {seed}": {"network": name, "seed": seed} for seed in range(SEEDS) for name in NETWORKS},
}


def measure(network: str | None, seed: int) -> dict:
    from lapwing.bench import data
    from lapwing.bench.studies import evidence_table as study

    if network is None:
        return small(seed)
    task, held_out = data.digits(seed=seed).held_out(HELD_OUT, seed=seed)
    pair = task.held_out(TRAIN, seed=seed + 1)[1]
    test = tuple(part[:TEST] for part in task.test)
    model = study.NETWORKS[network](8, seed).to(pair[0].dtype)
    found = study.linearised(study.trained(model, pair, held_out, seed), pair, test)
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
    from lapwing.bench import data, networks
    from lapwing.bench.studies import evidence_table as study

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
    posterior = lw.infer(linear, prior=prior, method=lw.Exact(), draws=0, progress=False)
    return {
        **{way: written(found.scores(way)) for way in ("map", "mode-several", "weights-single")},
        "log_evidence_difference": abs(posterior.log_evidence.value / at.log_evidence - 1),
    }


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
