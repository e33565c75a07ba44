"""Are wrong labels found as well without training again as with it, and how much faster?

Protocol, written before the first score. Some labels are replaced: drawn among the other classes ("symmetric"), or by the next class
("class-dependent"); a network is trained on all of them. Every method ranks the labels; AUROC and precision at k (k = the number of wrong labels) say how
well, processor seconds how fast, with everything that is done after the network was trained: for the folds, training five networks. Five seeds for digits
and spam, two for MNIST and ResNet-20, one for letter, for time; they draw data, wrong labels and first weights. Seeds 0 and 1 served to choose the method: 512
coordinates, one combination of outputs, the surest nine tenths for the count; and, after cells with seeds 10 to 12 at a rate of 10 % had been
scored, sketches by layers, which are five times faster, and for tables the form of the columns (standardised or ranks), chosen on spam, vehicle and
satellite. So all cells are run with seeds from 20 on, which nothing was chosen by.

- `lapwing`: `lw.label_issues(network, data, lw.Categorical())`, or `lw.label_issues(X, y)`; `last layer`: the same with `select=lw.last_layer(network)`.
- `cleanlab, five folds`: cleanlab 2.9 on probabilities of networks trained on the other folds, as it advises; its default score.
- `cleanlab, own probabilities`: cleanlab on the network's own probabilities of its training data.
- `cleanlab, five folds, boosting`, `…, logistic`: for tables, scikit-learn's classifiers.
- `kronfluence, self-influence`: EKFAC influence of each example on its own loss by kronfluence 1.0.1, the largest first; it gives no count.

Digits: all 1,797 of scikit-learn, 64-64-64-10 with ReLU, Adam, 60 epochs. MNIST: 5,000 images, 784-100-100-10, 30 epochs. ResNet-20: training all of it on
4,000 images takes about ten minutes on a core, six times for each cell; so the layers of the checkpoint up to the last block are kept, and the last block and the
head (74,570 weights) are trained on from the checkpoint with wrong labels, 4 epochs. Spam and letter: 2,000 rows. TRAK is not on the index of packages at hand. With
two classes both kinds of wrong labels are the same. Of the cells below only those with a line in the results have been run so far, for time.
"""

import time

import harness
import peer_environment

FIRST_SEED = 20
FOLDS = 5


def measure(data: str, kind: str, rate: float, seeds: int) -> dict:
    import torch

    torch.set_num_threads(1)
    every = [one_seed(data, kind, rate, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
    names = every[0]["methods"]
    return {
        "wrong": every[0]["wrong"],
        "methods": {name: mean([one["methods"][name] for one in every]) for name in names},
        "each_seed": every,
    }


def mean(parts: list[dict]) -> dict:
    return {key: sum(part[key] for part in parts) / len(parts) for key in parts[0]}


def one_seed(data: str, kind: str, rate: float, seed: int) -> dict:
    x, truth, learner = PROBLEMS[data](seed)
    labels, wrong = planted(truth, kind, rate, seed)
    methods = {name: scored(rank, wrong) for name, rank in learner(x, labels, seed).items()}
    return {"seed": seed, "wrong": int(wrong.sum()), "methods": methods}


def planted(truth, kind: str, rate: float, seed: int):
    """Labels, some of them wrong, and which."""
    import torch

    n, classes = len(truth), int(truth.max()) + 1
    generator = torch.Generator().manual_seed(1000 + seed)
    chosen = torch.randperm(n, generator=generator)[: round(rate * n)]
    steps = torch.randint(1, classes, (len(chosen),), generator=generator) if kind == "symmetric" else 1
    labels = truth.clone()
    labels[chosen] = (truth[chosen] + steps) % classes
    return labels, labels != truth


def scored(rank, wrong) -> dict:
    """AUROC, precision at k, the estimated number and processor seconds of a function that scores labels."""
    from lapwing import metrics

    started = time.process_time()
    quality, count = rank()  # low is suspicious
    seconds = time.process_time() - started
    worst = quality.argsort()[: int(wrong.sum())]
    found = {
        "auroc": metrics.auroc(-quality[~wrong], -quality[wrong]),
        "precision_at_k": float(wrong[worst].double().mean()),
        "seconds": seconds,
    }
    return found if count is None else {**found, "estimated": float(count)}


# networks


def network_methods(x, labels, seed, train) -> dict:
    import torch

    import lapwing as lw

    model = train(x, labels, seed)

    def ours(**options):
        found = lw.label_issues(model, (x, labels), lw.Categorical(), **options)
        return found.given_probability, found.wrong_labels.value

    def folds():
        found = torch.zeros(len(labels), int(labels.max()) + 1)
        part = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) % FOLDS
        for number in range(FOLDS):
            inside = part != number
            found[~inside] = probabilities(train(x[inside], labels[inside], seed), x[~inside])
        return cleanlab(found, labels)

    return {
        "lapwing": ours,
        "lapwing, last layer": lambda: ours(select=lw.last_layer(model)),
        "cleanlab, five folds": folds,
        "cleanlab, own probabilities": lambda: cleanlab(probabilities(model, x), labels),
        "kronfluence, self-influence": lambda: self_influence(model, x, labels),
    }


def probabilities(model, x):
    import torch

    with torch.no_grad():
        return torch.cat([model(part).softmax(1) for part in x.split(500)])


def cleanlab(probs, labels):
    """cleanlab's default score and its estimate of how many are wrong."""
    import torch
    from cleanlab.count import num_label_issues
    from cleanlab.rank import get_label_quality_scores

    given, found = labels.numpy(), probs.double().numpy()
    found = found / found.sum(1, keepdims=True)
    return torch.from_numpy(get_label_quality_scores(given, found)), num_label_issues(given, found)


def self_influence(model, x, labels):
    """Minus kronfluence's influence of each example on its own loss."""
    import copy
    import tempfile

    import torch
    from kronfluence.analyzer import Analyzer, prepare_model

    data, task = torch.utils.data.TensorDataset(x, labels), classification_task()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_model(copy.deepcopy(model), task)
        analyzer = Analyzer("labels", prepared, task, cpu=True, output_dir=folder, disable_tqdm=True)
        analyzer.fit_all_factors("factors", data, per_device_batch_size=500)
        analyzer.compute_self_scores("scores", "factors", data, per_device_train_batch_size=500)
        return -analyzer.load_self_scores("scores")["all_modules"].double(), None


def classification_task():
    """Kronfluence's word for a loss, here of class labels."""
    import torch
    from kronfluence.task import Task
    from torch.nn import functional as F

    class Classification(Task):
        def compute_train_loss(self, batch, model, sample=False):
            logits, labels = model(batch[0]), batch[1]
            if sample:
                labels = torch.multinomial(logits.detach().softmax(1), 1)[:, 0]
            return F.cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch, model):
            return self.compute_train_loss(batch, model)

    return Classification()


def trained(model, x, labels, epochs: int, seed: int, rate: float = 1e-3):
    import torch
    from torch.nn.functional import cross_entropy

    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(100):
            loss = cross_entropy(model(x[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def mlp_methods(sizes, epochs):
    def methods(x, labels, seed):
        from torch import nn

        from benchmarks.networks import mlp

        return network_methods(
            x, labels, seed, lambda a, b, s: trained(mlp(sizes, activation=nn.ReLU, seed=s), a, b, epochs, s)
        )

    return methods


def digits(seed):  # noqa: ARG001
    import torch
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    return torch.from_numpy(images / 16).float(), torch.from_numpy(truth).long(), mlp_methods([64, 64, 64, 10], 60)


def mnist(seed):
    import torch

    from lapwing.studies.datasets import mnist as read

    images, truth = read().train
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:5000]
    return images[chosen].flatten(1).float(), truth[chosen].long(), mlp_methods([784, 100, 100, 10], 30)


def cifar(seed):  # noqa: ARG001
    """What the last block of the checkpoint is given, and that block with the head as the network."""
    import copy

    import torch
    from torch import nn

    from benchmarks.networks import trained_resnet20
    from lapwing.studies.datasets import cifar10

    images, truth = cifar10(4000, 1).train
    whole = trained_resnet20().eval()
    last = whole.layer3[-1]
    seen = []
    hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        for part in images.float().split(200):
            whole(part)
    hook.remove()
    head = nn.Sequential(copy.deepcopy(last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), copy.deepcopy(whole.linear))

    def methods(x, labels, seed):
        return network_methods(x, labels, seed, lambda a, b, s: trained(copy.deepcopy(head), a, b, 4, s))

    return torch.cat(seen), truth.long(), methods


# tables


def table_methods(x, labels, seed) -> dict:
    import torch
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import lapwing as lw

    def ours():
        found = lw.label_issues(x.numpy(), labels.numpy())
        return found.given_probability, found.wrong_labels.value

    def folds(model):
        found = cross_val_predict(model, x.numpy(), labels.numpy(), cv=FOLDS, method="predict_proba")
        return cleanlab(torch.from_numpy(found), labels)

    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return {
        "lapwing": ours,
        "cleanlab, five folds, boosting": lambda: folds(HistGradientBoostingClassifier(random_state=seed)),
        "cleanlab, five folds, logistic": lambda: folds(logistic),
    }


def table(name):
    def read(seed):
        import numpy as np
        import torch

        from benchmarks.data import class_table

        x, y = class_table(name)
        chosen = np.random.default_rng(seed).permutation(len(x))[:2000]
        return torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen]), table_methods

    return read


PROBLEMS = {"digits": digits, "mnist": mnist, "resnet-20": cifar, "spam": table("spam"), "letter": table("letter")}
SEEDS = {"digits": 5, "mnist": 2, "resnet-20": 2, "spam": 5, "letter": 1}
KINDS = ("symmetric", "class-dependent")
ASKED = [
    *((data, kind, rate) for rate in (10, 20, 5) for data in ("digits", "mnist", "resnet-20") for kind in KINDS),
    *(("spam", "symmetric", rate) for rate in (10, 20, 5)),
    *(("letter", kind, 10) for kind in KINDS),
]
CELLS = {
    f"{data}, {kind}, {rate}%": {"data": data, "kind": kind, "rate": rate / 100, "seeds": SEEDS[data]}
    for data, kind, rate in ASKED
}

if __name__ == "__main__":
    peer_environment.enter("kronfluence")
    harness.main(__file__, CELLS, measure)
