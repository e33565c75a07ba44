"""What is the posterior of a last layer worth that has seen all training data?

The protocol, which was committed before any score:

- LeNet on MNIST and on Fashion-MNIST, three seeds each: weights that training starts from and the order of the batches. 59,000 of the
  60,000 training images are trained on (Adam at 0.001, 6 epochs, batches of 128), the last 1,000 are held out. The first 5,000 test images are
  judged once. `mnist, a part` only shows that the script runs.
- `network`: as it is. `temperature`: its logits over one T in [0.2, 20], the best on the held-out images. `last layer`: `lapwing.fit` with
  `select=last_layer` and all 59,000 images. `last layer, validated`: the same, tuned on the held-out images. `last layer, n = 2,000`: as
  `last layer` from the first 2,000 images only.
- NLL, accuracy, ECE; AUROC of 2,000 letters (notMNIST) and of 2,000 test images of the other set, by entropy, mutual information and novelty.
  `minus_temperature` is the paired difference of NLL to temperature scaling with its standard error over images.
- Seconds of training, fitting, tuning and predicting 5,000 images, and the steps of the search. One thread.
"""

from __future__ import annotations

from typing import Any

import bench_few_digits as few_digits
import harness

HELD_OUT, JUDGED, FOREIGN, EPOCHS, BATCH = 1_000, 5_000, 2_000, 6, 128
CELLS: dict[str, dict[str, Any]] = {
    "mnist, a part": {"name": "mnist", "seed": 0, "rows": 900, "epochs": 1},
    **{f"{name}, {seed}": {"name": name, "seed": seed} for seed in range(3) for name in ("mnist", "fashion")},
}


def parts(name: str, rows: int | None) -> dict[str, Any]:
    """Training, held-out and test rows, and two sets that are foreign."""
    from benchmarks.data import fashion_mnist, mnist, notmnist

    own, other = (mnist, fashion_mnist) if name == "mnist" else (fashion_mnist, mnist)
    task = own(test=JUDGED)
    x, y = task.train
    kept = len(x) - HELD_OUT if rows is None else rows
    return {
        "train": (x[:kept], y[:kept]), "held_out": (x[-HELD_OUT:], y[-HELD_OUT:]), "test": task.test,
        "letters": notmnist(FOREIGN)[0], "other": other(test=FOREIGN).test[0],
    }  # fmt: skip


def measure(name: str, seed: int, rows: int | None = None, epochs: int = EPOCHS) -> dict[str, Any]:
    import torch

    import lapwing as lw
    from benchmarks.networks import lenet
    from lapwing import metrics
    from lapwing.families import point
    from lapwing.training import adam, train

    torch.set_num_threads(1)
    data, of = parts(name, rows), lw.Categorical()
    training, model = harness.timed(
        lambda: train(
            lenet(seed=seed), data["train"], of, epochs=epochs, batch_size=BATCH, optimiser=adam(1e-3), seed=seed,
            progress=False,
        )
    )  # fmt: skip
    alone = point.fit(model, data["train"], of)

    def last_layer(count: int | None = None) -> Any:
        seen = tuple(part[:count] for part in data["train"])
        return lw.fit(model, seen, of, select=lw.last_layer(model), seed=seed, progress=False)

    found: dict[str, Any] = {}
    methods = {
        "network": lambda: alone,
        "temperature": lambda: few_digits.cooled(alone, data["held_out"]),
        "last layer": last_layer,
        "last layer, validated": lambda: found["last layer"].tune(data["held_out"]),
        "last layer, n = 2,000": lambda: last_layer(2_000),
    }
    result: dict[str, Any] = {"training_seconds": training, "rows": len(data["train"][1])}
    losses: dict[str, Any] = {}
    for method, make in methods.items():
        seconds, found[method] = harness.timed(make)
        scores, losses[method] = scored(found[method], data)
        result[method] = {**scores, "seconds": seconds}
        gap = metrics.paired(losses[method], losses.get("temperature", losses[method]))
        result[method]["minus_temperature"] = [gap.mean, gap.standard_error]
    steps = found["last layer"].diagnostics.bound_steps
    return result | {"bound_steps": steps, "candidates": dict(found["last layer, validated"].diagnostics.candidates)}


def scored(found: Any, data: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Scores of what a method says, and the loss of every test image."""
    from lapwing import metrics

    seconds, test = harness.timed(lambda: found.predict(data["test"][0]))
    labels = data["test"][1]
    loss = -test.log_prob(labels).double()
    result = {
        "nll": float(loss.mean()), "accuracy": metrics.accuracy(test.probs, labels), "ece": metrics.ece(test.probs, labels),
        "predict_seconds": seconds,
    }  # fmt: skip
    for other in ("letters", "other"):
        foreign = found.predict(data[other])
        for name in ("entropy", "mutual_information", "novelty"):
            score = few_digits.SCORES[name]
            try:
                inside, outside = score(test).double(), score(foreign).double()
            except ValueError:  # no prior, so no novelty
                continue
            if float(inside.std()) > 0:
                result[f"auroc_{other}_{name}"] = metrics.auroc(inside, outside)
    return result, loss


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
