"""Does training by the evidence do as well as choosing the weight decay on held-out data, with one run for each schedule?

MNIST and Fashion-MNIST, 10,000 training images: a multilayer perceptron (784–100–100–10) and LeNet, trained with a precision
for every layer that the KFAC evidence sets, or with one precision λ of a grid of three (weight decay λ / n). Adam, batches of
128, a cosine schedule over a number of epochs that is chosen from the same two for both sides, by the negative log-likelihood
of 2,000 other training images; so is λ. The evidence is also let choose the number of epochs itself, by its largest value:
then it has seen no held-out data. What is chosen is scored on all 10,000 test images, once, by the network's own outputs. The
protocol, the grids and the seed were fixed before any test score of it was seen. Published, with all 60,000 images and other
networks (Immer et al. 2021): test log-likelihood by cross-validation and by evidence, in PUBLISHED.
"""

import math

import harness

TRAIN, HELD_OUT, FIRST, BATCH_SIZE, SEED = 10_000, 2000, 30_000, 128, 1
BURN_IN, FREQUENCY = 5, 5
GRID = (1.0, 10.0, 100.0)
EPOCHS = {"mlp": (30, 100), "cnn": (10, 30)}
RATES = {"mlp": 1e-3, "cnn": 2e-3}
PUBLISHED = {
    ("MNIST", "mlp"): (-0.061, -0.053), ("Fashion-MNIST", "mlp"): (-0.347, -0.305), ("MNIST", "cnn"): (-0.017, -0.016),
    ("Fashion-MNIST", "cnn"): (-0.258, -0.233),
}  # fmt: skip


def pictures(data: str) -> tuple:
    """Training, validation and test images with labels."""
    from benchmarks import data as sets

    if data == "digits":
        (x, y), (new_x, new_y) = sets.digits().train, sets.digits().test
        x, new_x = x.float(), new_x.float()
        return (x[:500], y[:500]), (x[500:700], y[500:700]), (new_x[:200], new_y[:200])
    task = {"MNIST": sets.mnist, "Fashion-MNIST": sets.fashion_mnist}[data](FIRST + TRAIN + HELD_OUT)
    x, y = (part[FIRST:] for part in task.train)  # others than those of earlier trials
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:]), task.test


def network(name: str, inputs: int):
    from torch import nn

    from benchmarks import networks

    if name == "cnn":
        return networks.lenet(seed=SEED)
    return networks.mlp([inputs, 100, 100, 10], activation=nn.ReLU, seed=SEED)


def scores(model, pair: tuple) -> tuple[float, float]:
    """Mean negative log-likelihood and accuracy."""
    import torch

    x, y = pair
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in x.split(1000)])
    nll = -outputs.log_softmax(1).gather(1, y[:, None]).mean()
    return float(nll), float((outputs.argmax(1) == y).float().mean())


def by_evidence(model, pair: tuple, options: dict) -> tuple:
    """The trained network and what the evidence says of it."""
    from lapwing import KFAC
    from lapwing.bayes.likelihoods import Categorical
    from lapwing.families.evidence_training import train_with_evidence

    trained = train_with_evidence(
        model, pair, Categorical(), method=KFAC(probes=1), burn_in=min(BURN_IN, options["epochs"] - 1),
        frequency=FREQUENCY, draws=0, **options,
    )  # fmt: skip
    at, again = trained.assessment, trained.posterior.log_evidence.value
    return trained.model, {
        "log_evidence_per_datum": at.log_evidence / len(pair[0]), "precision": at.precision, "best_epoch": at.epoch,
        "effective_dimension": at.effective_dimension, "still_moving": list(at.at_largest_step),
        "evidence_again": abs(again / at.log_evidence - 1),
    }  # fmt: skip


def candidates(net: str, way: str, epochs: list[int], pair: tuple, validation: tuple) -> list[tuple]:
    """Every setting that is to be chosen from: its network, and all that may be known of it before the test."""
    from lapwing.bayes.likelihoods import Categorical
    from lapwing.training import adam, train

    found = []
    for number in epochs:
        options = {
            "epochs": number, "batch_size": BATCH_SIZE, "optimiser": adam(RATES[net]), "seed": SEED, "progress": False,
            "schedule": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
        }  # fmt: skip
        for precision in GRID if way == "grid" else (None,):
            model, told = network(net, pair[0][0].numel()), {"epochs": number}
            if precision is None:
                model, more = by_evidence(model, pair, options)
                told |= more
            else:
                model = train(model, pair, Categorical(), prior_precision=precision, **options)
                told |= {"precision": precision}
            told |= {"train_nll": scores(model, pair)[0], "validation_nll": scores(model, validation)[0]}
            found.append((model, told))
    return found


def measure(data: str, net: str, way: str, epochs: list[int]) -> dict:
    pair, validation, test = pictures(data)
    found = candidates(net, way, epochs, pair, validation)
    by_validation = min(found, key=lambda one: one[1]["validation_nll"])
    result = {"candidates": [told for _, told in found], "chosen": chosen(by_validation, test)}
    if way == "evidence":
        largest = max(found, key=lambda one: one[1]["log_evidence_per_datum"])
        result["by_evidence_alone"] = chosen(largest, test) if largest is not by_validation else result["chosen"]
        result["posterior_evidence_difference"] = max(told["evidence_again"] for _, told in found)
    return result


def chosen(one: tuple, test: tuple) -> dict:
    """The test scores of what was chosen."""
    model, told = one
    nll, accuracy = scores(model, test)
    return {"epochs": told["epochs"], "precision": told["precision"], "validation_nll": told["validation_nll"],
            "test_nll": nll, "test_accuracy": accuracy}  # fmt: skip


CELLS = {
    "digits, mlp, evidence": {"data": "digits", "net": "mlp", "way": "evidence", "epochs": [3]},
    **{f"{data}, {net}, {way}": {"data": data, "net": net, "way": way, "epochs": list(EPOCHS[net])}
       for data, net in PUBLISHED for way in ("evidence", "grid")},
}  # fmt: skip

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
