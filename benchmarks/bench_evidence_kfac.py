"""Recommendations for the evidence through KFAC: two small ResNets on CIFAR-10, the small siblings of a published table.

A ResNet with BatchNorm and one with Fixup, about 2,500 weights each, trained here on 100 lossless CIFAR-10 images and stopped
early on 500 others. KFAC stands for the curvature in determinants and covariances; one precision or several (one for every
normalised matrix, or for every layer under Fixup) are set by the evidence at the mode of the linear model or at the network's
own weights. Scored: the negative log-likelihood of 500 test images, once. The published table (Antorán et al. 2022, Table 2,
ResNet-50) ranks the mode before the weights for both; its figures cannot be compared, since they are negative where
negative log-likelihoods of labels cannot be.
"""

import harness

TRAIN, HELD_OUT, TEST, EPOCHS, WIDTH, RATE = 100, 500, 500, 60, 4, 3e-3
CELLS = {
    "digits, batchnorm, small": {"kind": "batchnorm", "data": "digits", "seed": 0},
    **{f"CIFAR-10, {kind}, seed {seed}": {"kind": kind, "data": "cifar10", "seed": seed}
       for seed in (0, 1) for kind in ("batchnorm", "fixup")},
}  # fmt: skip
WAYS = {
    "mode-single": ("mode", 1),
    "mode-several": ("mode", 2),
    "weights-single": ("weights", 1),
    "weights-several": ("weights", 2),
}


def pictures(data: str, seed: int) -> tuple:
    """Training images, those to stop by, and test images."""
    from benchmarks import data as sets

    if data == "digits":
        (x, y), (new_x, new_y) = sets.digits(seed=seed).train, sets.digits(seed=seed).test
        return (x[:20], y[:20]), (x[20:60], y[20:60]), (new_x[:20], new_y[:20])
    task, held_out = sets.cifar10(None, TEST).held_out(HELD_OUT, seed=seed)
    return task.held_out(TRAIN, seed=seed + 1)[1], held_out, task.test


def measure(kind: str, data: str, seed: int) -> dict:
    import lapwing as lw
    from benchmarks.networks import small_resnet
    from lapwing import metrics
    from lapwing.training import adam, train

    pair, held_out, (x, y) = pictures(data, seed)
    small = data == "digits"
    model = small_resnet(kind, channels=pair[0].shape[1], width=4 if small else WIDTH, seed=seed)
    model = train(model, pair, lw.Categorical(), epochs=3 if small else EPOCHS, batch_size=20, optimiser=adam(RATE),
                  validation=held_out, seed=seed, progress=False)  # fmt: skip
    found = {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "map": {"nll": scored(model(x).detach(), y)},
    }
    for way, (where, count) in WAYS.items():
        groups = "normalised" if kind == "batchnorm" else "layer"
        prior = lw.Isotropic() if count == 1 else lw.PerGroup(groups)
        posterior = lw.fit(model, pair, lw.Categorical(), prior=prior, method=lw.KFAC(evidence_at=where), draws=0,
                           progress=False)  # fmt: skip
        probs = posterior.predict(x).probs.double()
        found[way] = {
            "nll": metrics.nll(probs, y), "ece": metrics.ece(probs, y), "log_evidence": posterior.log_evidence.value,
            "effective_dimension": posterior.effective_dimension.value,
            "precision": [one if one < 1e300 else None for one in posterior.prior.precision.tolist()],
        }  # fmt: skip
    return found


def scored(outputs, y) -> float:
    return -float(outputs.double().log_softmax(1).gather(1, y[:, None]).mean())


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
