"""What is the posterior of a last layer worth that has seen all training data at hand?

The protocol, which was committed before any score (with LeNet on all of MNIST and Fashion-MNIST and with laplace-torch beside it, which were not run for
want of time, and are left out here):

- ResNet-20 on CIFAR-10, which somebody else trained on all 50,000 training images. Its last layer sees the 4,000 of them that are at hand as they were, each
  counted once. The first 200 test images are held out, the other 800 are judged (other scripts have scored them before). The inputs of the layer are
  found once, in one pass (`training_seconds`), and the layer alone is the network of every method.
- `network`: as it is. `temperature`: its logits over one T in [0.2, 20], the best on the held-out images. `last layer`: `lapwing.fit` with
  `select=last_layer`. `last layer, validated`: the same, tuned on the held-out images, probabilities averaged over the candidates as `fit` does it.
- NLL, accuracy, ECE; AUROC of 300 pictures of other sets, by entropy, mutual information and novelty: letters (notMNIST) and clothes (Fashion-MNIST), enlarged
  to 32 × 32 with three equal channels. `minus_temperature` is the paired difference of NLL to temperature scaling with its standard error over images.
- Seconds of fitting, tuning and predicting the judged images, the steps of the search, and the peak memory of the process after each method. One
  thread, on a machine that had much other work: seconds are no timings.
"""

from __future__ import annotations

from typing import Any

import bench_few_digits as few_digits
import harness

HELD_OUT, FEWER = 200, 300
CELLS: dict[str, dict[str, Any]] = {"cifar, lossless": {"name": "lossless", "validated": True}}


def photographs() -> tuple[Any, dict[str, Any]]:
    """The last layer of ResNet-20, and training, held-out, test and other pictures as inputs of that layer."""
    import torch
    from torch import nn
    from torch.nn.functional import interpolate

    from benchmarks.data import cifar10, fashion_mnist, notmnist
    from benchmarks.networks import trained_resnet20

    network = trained_resnet20()
    head = network.get_submodule("linear")
    seen: list[Any] = []
    head.register_forward_hook(lambda _module, given, _out: seen.append(given[0].detach()))

    def inputs(images: Any) -> Any:
        seen.clear()
        with torch.no_grad():
            for part in images.split(100):
                network(part)
        return torch.cat(seen)

    def enlarged(grey: Any) -> Any:
        large = interpolate(grey, (32, 32), mode="bilinear", align_corners=False)
        return inputs(large.clamp(0, 1).expand(-1, 3, -1, -1).contiguous())

    task = cifar10()
    (train, labels), (x, y) = task.train, (inputs(task.test[0]), task.test[1])
    data = {
        "train": (inputs(train), labels), "held_out": (x[:HELD_OUT], y[:HELD_OUT]), "test": (x[HELD_OUT:], y[HELD_OUT:]),
        "letters": enlarged(notmnist(FEWER)[0]), "other": enlarged(fashion_mnist(test=FEWER).test[0]),
    }  # fmt: skip
    plain = nn.Linear(head.in_features, head.out_features)
    plain.load_state_dict(head.state_dict())
    return nn.Sequential(plain).eval(), data


def measure(name: str, validated: bool) -> dict[str, Any]:
    import torch

    from lapwing import metrics

    del name
    torch.set_num_threads(1)
    training, (model, data) = harness.timed(photographs)
    result: dict[str, Any] = {"training_seconds": training, "rows": len(data["train"][1])}
    result["peak_before"] = harness.peak_memory()
    losses: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for method, make in methods(model, data, found, validated).items():
        seconds, found[method] = harness.timed(make)
        scores, losses[method] = scored(found[method], data)
        result[method] = {**scores, "seconds": seconds, "peak_memory": harness.peak_memory()}
        gap = metrics.paired(losses[method], losses.get("temperature", losses[method]))
        result[method]["minus_temperature"] = [gap.mean, gap.standard_error]
    result["bound_steps"] = found["last layer"].diagnostics.bound_steps
    result["candidates"] = dict(found["last layer, validated"].diagnostics.candidates)
    return result


def methods(model: Any, data: dict[str, Any], found: dict[str, Any], validated: bool) -> dict[str, Any]:
    """How each is made, in this order; later ones use what was found."""
    import lapwing as lw
    from lapwing.families import point

    of, train, held_out = lw.Categorical(), data["train"], data["held_out"]
    alone = point.fit(model, train, of)
    made = {
        "network": lambda: alone,
        "temperature": lambda: few_digits.scaled(alone, held_out),
        "last layer": lambda: lw.fit(model, train, of, select=lw.last_layer(model), seed=0, progress=False),
    }
    return made | ({"last layer, validated": lambda: found["last layer"].tune(held_out)} if validated else {})


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
        outside = found.predict(data[other])
        for name in ("entropy", "mutual_information", "novelty"):
            score = few_digits.SCORES[name]
            try:
                known, unknown = score(test).double(), score(outside).double()
            except (AttributeError, ValueError):  # no prior, so no novelty
                continue
            if float(known.std()) > 0:
                result[f"auroc_{other}_{name}"] = metrics.auroc(known, unknown)
    return result, loss


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
