"""How many labels does a stated accuracy take, if `lw.acquire` chooses what to label?

Protocol, written before the first score. A model is trained on 20 labels drawn at random, from a pool whose other labels are hidden; ten inputs are chosen, labelled, and the model is trained anew, five
times over, to 70 labels. All rules share the first 20 labels, the model and its seeds, and are judged by its accuracy on test data after each round. The stated
accuracy is the one that random choice has with all 70 labels, by the mean over the seeds; `labels_needed` is where the mean curve of a rule first reaches it, by linear interpolation. Three seeds,
fewer and smaller than would be wished, for time.

- Fashion-MNIST: pool and test of 1,000 pictures each of its training and test sets; 784-64-10 with tanh, 100 steps of Adam on all labels at once, weight decay 1e-3.
  `lapwing` is `lw.acquire` with its default score, on `lw.fit(…, select=lw.last_layer(network))`.
- Vehicle: half of the rows are the pool, half the test; `BayesianMLPClassifier(members=2)`, which `lw.acquire` takes as it is.
- `entropy`: the largest entropy of the model's own probabilities. `random`: by chance.
- `scikit-activeml, BatchBALD`: `batch_bald` of scikit-activeml 1.0.1, by the probabilities of an ensemble: five networks of the same kind from other first weights, or for
  the table five of scikit-learn's MLPClassifier with 50 hidden units.

Fashion-MNIST has not been run so far.
"""

import harness
import peer_environment

START, ROUNDS, BATCH = 20, 5, 10


def fashion(seed: int) -> dict:
    import torch
    from torch import nn

    import lapwing as lw
    from benchmarks.networks import mlp
    from lapwing.studies.datasets import fashion_mnist

    (x, y), (x_test, y_test) = (
        (part[0].flatten(1).float(), part[1].long()) for part in (fashion_mnist().train, fashion_mnist().test)
    )
    generator = torch.Generator().manual_seed(seed)
    pool, test = (torch.randperm(len(part), generator=generator)[:1000] for part in (y, y_test))
    x, y, x_test, y_test = x[pool], y[pool], x_test[test], y_test[test]

    def trained(known, first=0):
        model = mlp([784, 64, 10], activation=nn.Tanh, seed=seed + 100 * first)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
        for _ in range(100):
            loss = nn.functional.cross_entropy(model(x[known]), y[known])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return model.eval()

    def probabilities(model, inputs):
        with torch.no_grad():
            return model(inputs).softmax(1).double()

    def ours(model, known, left):
        posterior = lw.fit(model, (x[known], y[known]), lw.Categorical(), select=lw.last_layer(model), progress=False)
        return lw.acquire(posterior, x[left], BATCH, seed=seed).places

    def committee(known, left):
        return torch.stack([probabilities(trained(known, first), x[left]) for first in range(1, 6)])

    return {
        "size": 1000,
        "trained": trained,
        "probabilities": lambda model, left: probabilities(model, x[left]),
        "accuracy": lambda model: float((probabilities(model, x_test).argmax(1) == y_test).double().mean()),
        "ours": ours,
        "committee": committee,
    }


def vehicle(seed: int) -> dict:
    import numpy as np
    import torch
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import lapwing as lw
    from benchmarks.data import class_table
    from lapwing.tabular import BayesianMLPClassifier

    rows, labels = class_table("vehicle")
    order = np.random.default_rng(seed).permutation(len(rows))
    pool, test = order[: len(order) // 2], order[len(order) // 2 :]
    x, y, x_test, y_test = rows[pool], labels[pool], rows[test], labels[test]
    classes = len(np.unique(labels))

    def all_classes(model, inputs):
        found = np.zeros((len(inputs), classes))
        found[:, model.classes_] = model.predict_proba(inputs)
        return torch.from_numpy(found)

    def committee(known, left):
        each = [
            make_pipeline(StandardScaler(), MLPClassifier(50, max_iter=300, random_state=first)) for first in range(5)
        ]
        return torch.stack([all_classes(model.fit(x[known], y[known]), x[left]) for model in each])

    return {
        "size": len(x),
        "trained": lambda known: BayesianMLPClassifier(members=2, random_state=seed).fit(x[known], y[known]),
        "probabilities": lambda model, left: all_classes(model, x[left]),
        "accuracy": lambda model: float((model.predict(x_test) == y_test).mean()),
        "ours": lambda model, _, left: lw.acquire(model, x[left], BATCH, seed=seed).places,
        "committee": committee,
    }


def by_scikit_activeml(probabilities, seed):
    """Its function gives utilities (batch, n), of which each row has its own best."""
    import torch
    from skactiveml.pool._bald import batch_bald

    utilities = batch_bald(probabilities.numpy(), BATCH, random_state=seed)
    return torch.from_numpy(utilities).nan_to_num(-float("inf")).argmax(1)


def curve(problem: dict, rule: str, seed: int) -> list[float]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(problem["size"], generator=generator)
    known, found = order[:START], []
    for _ in range(ROUNDS):
        model = problem["trained"](known)
        found.append(problem["accuracy"](model))
        left = order[~torch.isin(order, known)]
        if rule == "lapwing":
            places = problem["ours"](model, known, left)
        elif rule == "entropy":
            places = torch.special.entr(problem["probabilities"](model, left)).sum(1).topk(BATCH).indices
        elif rule == "random":
            places = torch.arange(BATCH)
        else:
            places = by_scikit_activeml(problem["committee"](known, left), seed)
        known = torch.cat([known, left[places]])
    return [*found, problem["accuracy"](problem["trained"](known))]


RULES = ("random", "entropy", "lapwing", "scikit-activeml, BatchBALD")
PROBLEMS = {"fashion": fashion, "vehicle": vehicle}


def measure(data: str, seeds: int) -> dict:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    each = {rule: [curve(PROBLEMS[data](seed), rule, seed) for seed in range(seeds)] for rule in RULES}
    means = {rule: np.mean(curves, axis=0).tolist() for rule, curves in each.items()}
    stated = means["random"][-1]
    return {
        "stated_accuracy": stated,
        "labels_needed": {rule: needed(mean, stated) for rule, mean in means.items()},
        "mean_accuracy": means,
        "each_seed": each,
    }


def needed(mean: list[float], stated: float) -> float | None:
    """Where a curve first reaches an accuracy; None where it does not."""
    for number, value in enumerate(mean):
        if value >= stated:
            before = mean[number - 1] if number else value
            share = 1.0 if value == before else (stated - before) / (value - before)
            return START + BATCH * (number - 1 + share if number else 0)
    return None


CELLS = {"fashion": {"data": "fashion", "seeds": 3}, "vehicle": {"data": "vehicle", "seeds": 3}}

if __name__ == "__main__":
    peer_environment.enter("skactiveml")
    harness.main(__file__, CELLS, measure)
