"""Which part of the training data should stand for all, and how many of them?

The protocol, which was committed before any score:

- ResNet-20 on CIFAR-10, which somebody else trained; its last layer (650 weights), the inputs of which are found once for all images. All data are
  the 4,000 training images at hand. A part of 100 or 300 (1,000 were meant as well, and had no time) is given to `lapwing.fit`, the others as `rest=`; no held-out data.
- The part is taken at random (seeds 0 and 1), by loss (those of the largest loss under the network), or by leverage (those of the largest
  wᵢ xᵢᵀ(Σ w x xᵀ + λ)⁻¹ xᵢ, with w = 1 − Σ p² of the network's probabilities, and λ a thousandth of the mean eigenvalue).
- `rest`: as said. `alone`: the part with `dataset_size=4000` and `curvature="expected"`, without the gradient of the rest. `network`: the same with
  `curvature="network"`, Laplace's approximation around the network's outputs, which is what `fit` does without `rest=`; these two of the
  first random part alone. `all`: all 4,000. `raw` and
  `temperature`: the network's logits, as they are and over one T in [0.2, 20], the best on the first 200 test images.
- NLL, accuracy and ECE of the other 800 test images (other scripts have scored them before), the paired difference of NLL to `temperature` with its
  standard error over images, the precision found and the effective dimension.
"""

from __future__ import annotations

from typing import Any

import bench_few_digits as few_digits
import harness

TOTAL, HELD_OUT, RIDGE = 4_000, 200, 1e-3
TAKEN = {"random 0": 0, "random 1": 1, "loss": "loss", "leverage": "leverage"}
CELLS: dict[str, dict[str, Any]] = {
    f"last layer, {size}": {"sizes": [size], "taken": list(TAKEN)} for size in (300, 100)
}
Data = tuple[Any, Any]


def measure(sizes: list[int], taken: list[str], total: int = TOTAL, whole: bool = False) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    model, train, held_out, test = last_layer(total)
    result: dict[str, Any] = {}
    scaled = few_digits.scaled(alone(model, train), held_out)
    reference = loss_of(scaled, test)
    for name, found in (("raw", alone(model, train)), ("temperature", scaled)):
        result[name] = scores(found, test, loss_of(found, test), reference)
    makers = {"all": lambda: fitted(model, train)} if whole else {}
    for size in sizes:
        for way in taken:
            order = chosen(model, train, way)
            found = of_part(model, train, order[:size], order[size:], plain=way == taken[0])
            makers |= {f"{size}, {way}, {name}": make for name, make in found.items()}
    for name, make in makers.items():
        seconds, posterior = harness.timed(make)
        one = scores(posterior, test, loss_of(posterior, test), reference)
        result[name] = {**one, **described(posterior), "seconds": seconds}
    return result


def last_layer(total: int) -> tuple[Any, Data, Data, Data]:
    """The last layer of ResNet-20 as a network of its inputs."""
    import torch
    from torch import nn

    from benchmarks.data import cifar10
    from benchmarks.networks import trained_resnet20

    task, network = cifar10(total), trained_resnet20()
    head = network.get_submodule("linear")
    assert isinstance(head, nn.Linear)
    inputs: list[Any] = []
    hook = head.register_forward_hook(lambda _module, given, _out: inputs.append(given[0].detach()))

    def features(images: Any) -> Any:
        inputs.clear()
        with torch.no_grad():
            for part in images.split(100):
                network(part)
        return torch.cat(inputs)

    train, x = features(task.train[0]), features(task.test[0])
    hook.remove()
    y = task.test[1]
    model = nn.Sequential(head).eval()
    return model, (train, task.train[1]), (x[:HELD_OUT], y[:HELD_OUT]), (x[HELD_OUT:], y[HELD_OUT:])


def alone(model: Any, train: Data) -> Any:
    import lapwing as lw
    from lapwing.families import point

    return point.fit(model, train, lw.Categorical())


def fitted(model: Any, part: Data, **options: Any) -> Any:
    import lapwing as lw

    return lw.fit(model, part, lw.Categorical(), progress=False, **options)


def of_part(model: Any, train: Data, part: Any, rest: Any, plain: bool) -> dict[str, Any]:
    """How each posterior of a part is made; those without the rest where that is wanted."""
    (x, y), total = train, len(train[1])
    given = x[part], y[part]
    found = {"rest": lambda: fitted(model, given, rest=(x[rest], y[rest]))}
    if not plain:
        return found
    return found | {
        "alone": lambda: fitted(model, given, dataset_size=total, curvature="expected"),
        "network": lambda: fitted(model, given, dataset_size=total, curvature="network"),
    }


def chosen(model: Any, train: Data, way: str) -> Any:
    """All data in the order in which they are taken."""
    import torch
    from torch.nn.functional import cross_entropy

    x, y = train
    if way.startswith("random"):
        return torch.randperm(len(y), generator=torch.Generator().manual_seed(TAKEN[way]))
    with torch.no_grad():
        logits = model(x)
    if way == "loss":
        return cross_entropy(logits, y, reduction="none").argsort(descending=True)
    w = 1 - logits.double().softmax(1).square().sum(1)
    inputs = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    matrix = inputs.mT @ (w[:, None] * inputs)
    ridge = RIDGE * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=torch.float64)
    leverages = w * (torch.linalg.solve(matrix + ridge, inputs.mT) * inputs.mT).sum(0)
    return leverages.argsort(descending=True)


def loss_of(found: Any, test: Data) -> Any:
    return -found.predict(test[0]).log_prob(test[1]).double()


def scores(found: Any, test: Data, loss: Any, reference: Any) -> dict[str, Any]:
    from lapwing import metrics

    probs, gap = found.predict(test[0]).probs, metrics.paired(loss, reference)
    return {
        "nll": float(loss.mean()), "accuracy": metrics.accuracy(probs, test[1]), "ece": metrics.ece(probs, test[1]),
        "minus_temperature": [gap.mean, gap.standard_error],
    }  # fmt: skip


def described(posterior: Any) -> dict[str, Any]:
    return {
        "precision": float(posterior.prior.precision[0]),
        "effective_dimension": float(posterior.effective_dimension.value),
    }


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
