"""What is the posterior of a last layer worth that has seen all training data?

The protocol, which was committed before any score:

- LeNet on MNIST and on Fashion-MNIST, two seeds each: weights that training starts from and the order of the batches. 59,000 of the
  60,000 training images are trained on (Adam at 0.001, 6 epochs, batches of 128), the last 1,000 are held out. The first 5,000 test images are
  judged once. `mnist, a part` only shows that the script runs.
- ResNet-20 on CIFAR-10, which somebody else trained on all 50,000 training images. `cifar, lossless`: its last layer sees the 4,000 of them that
  are at hand as they were, each counted once; `cifar, jpeg`: all 50,000 as they are after JPEG compression, which the network never saw.
  The first 200 lossless test images are held out, the other 800 are judged (other scripts have scored them before). The inputs of the layer are
  found once, in one pass (`training_seconds`), and the layer alone is the network of every method.
- `network`: as it is. `temperature`: its logits over one T in [0.2, 20], the best on the held-out images. `last layer`: `lapwing.fit` with
  `select=last_layer` and all training images. `last layer, validated` (in the cells that say so): the same, tuned on the held-out images,
  probabilities averaged over the candidates as `fit` does it. `last layer, n = 2,000`: as `last layer` from the first 2,000 images only. `laplace-torch`: its last layer with the
  full matrix, all training images, the precision by its marginal likelihood. `laplace-torch, validated`: the precision of 21 between 0.1 and
  100,000 with the best held-out NLL. Both predict by its probit approximation.
- NLL, accuracy, ECE; AUROC of 2,000 pictures of other sets, by entropy, mutual information and novelty: of letters (notMNIST) and of the other of
  the two sets; for CIFAR-10 300 of both sets enlarged to 32 × 32 with three equal channels. `minus_temperature` is the paired difference of NLL to
  temperature scaling with its standard error over images.
- Seconds of training, fitting, tuning and predicting the judged images, the steps of the search, and the peak memory of the process after each method in
  the order given here (training and data included, so that a later method shows only what it takes beyond all before it). One thread.
  laplace-torch has a process of its own. Trained weights are kept beside the data for it, and are then not trained again.
"""

from __future__ import annotations

import sys
from typing import Any

import bench_few_digits as few_digits
import harness
import peer_environment

HELD_OUT, JUDGED, OUTSIDE, FEWER, EPOCHS, BATCH = 1_000, 5_000, 2_000, 300, 6, 128
OURS: dict[str, dict[str, Any]] = {
    "mnist, a part": {"name": "mnist", "seed": 0, "rows": 900, "epochs": 1},
    **{f"{name}, {seed}": {"name": name, "seed": seed} for seed in range(2) for name in ("mnist", "fashion")},
    "cifar, lossless": {"name": "lossless", "validated": True},
    "mnist, 0, validated": {"name": "mnist", "seed": 0, "validated": True},
    "fashion, 0, validated": {"name": "fashion", "seed": 0, "validated": True},
    "cifar, jpeg": {"name": "jpeg", "validated": True},
}
PEERS = ", laplace-torch"
CELLS = OURS | {name + PEERS: {**OURS[name], "peers": True} for name in OURS if not name.endswith("validated")}
GRID = 21


def digits_or_clothes(name: str, rows: int | None) -> dict[str, Any]:
    """Training, held-out and test rows, and two sets of other pictures."""
    from benchmarks.data import fashion_mnist, mnist, notmnist

    own, other = (mnist, fashion_mnist) if name == "mnist" else (fashion_mnist, mnist)
    task = own(test=JUDGED)
    x, y = task.train
    kept = len(x) - HELD_OUT if rows is None else rows
    return {
        "train": (x[:kept], y[:kept]), "held_out": (x[-HELD_OUT:], y[-HELD_OUT:]), "test": task.test,
        "letters": notmnist(OUTSIDE)[0], "other": other(test=OUTSIDE).test[0],
    }  # fmt: skip


def photographs(name: str) -> tuple[Any, dict[str, Any]]:
    """The last layer of ResNet-20, and the same of CIFAR-10 as inputs of that layer: training images as they were or after compression."""
    import torch
    from torch import nn
    from torch.nn.functional import interpolate

    from benchmarks.data import cifar10, cifar10_jpeg, fashion_mnist, notmnist
    from benchmarks.networks import trained_resnet20

    network, held_out = trained_resnet20(), 200
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
    (train, labels), (x, y) = (
        (task if name == "lossless" else cifar10_jpeg()).train,
        (inputs(task.test[0]), task.test[1]),
    )
    data = {
        "train": (inputs(train), labels), "held_out": (x[:held_out], y[:held_out]), "test": (x[held_out:], y[held_out:]),
        "letters": enlarged(notmnist(FEWER)[0]), "other": enlarged(fashion_mnist(test=FEWER).test[0]),
    }  # fmt: skip
    plain = nn.Linear(head.in_features, head.out_features)
    plain.load_state_dict(head.state_dict())
    return nn.Sequential(plain).eval(), data


def lenet_trained(name: str, data: dict[str, Any], seed: int, epochs: int) -> Any:
    import torch

    import lapwing as lw
    from benchmarks.data import folders
    from benchmarks.networks import lenet
    from lapwing.training import adam, train

    kept = folders()[0] / "trained" / f"lenet-{name}-{len(data['train'][1])}-{epochs}-{seed}.pt"
    model = lenet(seed=seed).eval()
    if kept.exists():
        model.load_state_dict(torch.load(kept, weights_only=True))
        return model
    model = train(
        model, data["train"], lw.Categorical(), epochs=epochs, batch_size=BATCH, optimiser=adam(1e-3), seed=seed,
        progress=False,
    )  # fmt: skip
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), kept)
    return model


def measure(
    name: str,
    seed: int = 0,
    rows: int | None = None,
    epochs: int = EPOCHS,
    peers: bool = False,
    validated: bool = False,
) -> dict[str, Any]:
    import torch

    from lapwing import metrics

    torch.set_num_threads(1)
    if name in ("lossless", "jpeg"):
        training, (model, data) = harness.timed(lambda: photographs(name))
    else:
        data = digits_or_clothes(name, rows)
        training, model = harness.timed(lambda: lenet_trained(name, data, seed, epochs))
    result: dict[str, Any] = {"training_seconds": training, "rows": len(data["train"][1])}
    result["peak_before"] = harness.peak_memory()
    losses: dict[str, Any] = {}
    found: dict[str, Any] = {}
    of_posteriors = laplace_torch if peers else with_held_out if validated else ours
    for method, make in {**rivals(model, data), **of_posteriors(model, data, seed, found)}.items():
        seconds, found[method] = harness.timed(make)
        scores, losses[method] = scored(found[method], data)
        result[method] = {**scores, "seconds": seconds, "peak_memory": harness.peak_memory()}
        gap = metrics.paired(losses[method], losses.get("temperature", losses[method]))
        result[method]["minus_temperature"] = [gap.mean, gap.standard_error]
    if peers:
        return result
    result["bound_steps"] = found["last layer"].diagnostics.bound_steps
    if validated:
        result["candidates"] = dict(found["last layer, validated"].diagnostics.candidates)
    return result


def rivals(model: Any, data: dict[str, Any]) -> dict[str, Any]:
    """How the raw network and temperature scaling are made."""
    import lapwing as lw
    from lapwing.families import point

    alone = point.fit(model, data["train"], lw.Categorical())
    return {"network": lambda: alone, "temperature": lambda: few_digits.scaled(alone, data["held_out"])}


def ours(model: Any, data: dict[str, Any], seed: int, found: dict[str, Any]) -> dict[str, Any]:
    """How each posterior is made, in this order; later ones use what was found."""
    import lapwing as lw

    of = lw.Categorical()

    def last_layer(count: int | None = None) -> Any:
        seen = tuple(part[:count] for part in data["train"])
        return lw.fit(model, seen, of, select=lw.last_layer(model), seed=seed, progress=False)

    del found
    return {"last layer": last_layer, "last layer, n = 2,000": lambda: last_layer(2_000)}


def with_held_out(model: Any, data: dict[str, Any], seed: int, found: dict[str, Any]) -> dict[str, Any]:
    """The same, tuned on held-out images."""
    made = {"last layer": ours(model, data, seed, found)["last layer"]}
    return {**made, "last layer, validated": lambda: found["last layer"].tune(data["held_out"])}


def laplace_torch(model: Any, data: dict[str, Any], seed: int, found: dict[str, Any]) -> dict[str, Any]:
    """The same of laplace-torch, which draws nothing here."""
    del seed
    return {
        "laplace-torch": lambda: Peer.of(model, data["train"]),
        "laplace-torch, validated": lambda: found["laplace-torch"].tuned(data["held_out"]),
    }


class Peer:
    """laplace-torch's last layer with the full matrix, with the `predict` of the others."""

    def __init__(self, la: Any) -> None:
        self.la = la

    @staticmethod
    def of(model: Any, train: tuple) -> Peer:
        """The precision by its marginal likelihood."""
        from laplace import Laplace

        la = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="full")
        la.fit(_loader(train))
        la.optimize_prior_precision(method="marglik", pred_type="glm")
        return Peer(la)

    def tuned(self, held_out: tuple) -> Peer:
        """The precision by held-out NLL."""
        from copy import deepcopy

        la = deepcopy(self.la)
        la.optimize_prior_precision(
            method="gridsearch", pred_type="glm", link_approx="probit", val_loader=_loader(held_out), grid_size=GRID,
            log_prior_prec_min=-1, log_prior_prec_max=5,
        )  # fmt: skip
        return Peer(la)

    def predict(self, x: Any) -> Any:
        import torch
        from torch.distributions import Categorical

        probs = torch.cat([self.la(part, pred_type="glm", link_approx="probit").detach() for part in x.split(200)])
        return Answers(Categorical(probs.double()))


class Answers:
    """Probabilities of a peer with the attributes that scores ask for."""

    def __init__(self, distribution: Any) -> None:
        self.probs, self.entropy, self.log_prob = distribution.probs, distribution.entropy(), distribution.log_prob


def _loader(data: tuple) -> Any:
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*data), batch_size=200)


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
    if any(part.endswith(PEERS) for part in sys.argv):
        peer_environment.enter("laplace")
    harness.main(__file__, CELLS, measure)
