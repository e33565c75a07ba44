"""Are wrong labels found by leaving every training datum out?

50 of n digits get another label, drawn at random, and a network is trained on them. Its training data are ranked by the
log density of their label in the posterior without them (one Newton step from the linear mode, or from the network's own
weights), and for comparison by the network's own log probability of their label, which needs no posterior. How many of
the first 50 are flipped, averaged over seeds; by chance it would be 2500 / n. The prior precision is the one of three
with the best total leave-one-out density at the linear mode, so nothing is held out.
"""

import harness

FLIPPED = 50


def planted(n: int, seed: int):
    """Digits, their labels with some flipped, and which."""
    import torch
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(images), generator=generator)[:n]
    x, labels = torch.from_numpy(images[chosen] / 16.0), torch.from_numpy(truth[chosen]).long()
    flipped = torch.randperm(n, generator=generator)[:FLIPPED]
    labels[flipped] = (labels[flipped] + torch.randint(1, 10, (FLIPPED,), generator=generator)) % 10
    return x, labels, flipped


def trained(x, labels, hidden: int, decay: float, epochs: int, seed: int):
    import torch
    from torch import nn

    import lapwing as lw
    from lapwing.training import adam, train

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(64, 10)
        if hidden:
            model = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    return train(
        model.double(), (x, labels), lw.Categorical(), epochs=epochs, batch_size=100, optimiser=adam(5e-3),
        prior_precision=decay, seed=seed, progress=False,
    )  # fmt: skip


def measure(n: int, hidden: int, decay: float, epochs: int, seeds: int) -> dict:
    import torch

    import lapwing as lw

    found: dict[str, list[float]] = {"at_the_linear_mode": [], "at_the_network": [], "network_alone": []}
    accuracy, chosen = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        x, labels, flipped = planted(n, seed)
        model = trained(x, labels, hidden, decay, epochs, seed)
        first = lw.fit(
            model, (x, labels), lw.Categorical(), prior=lw.Isotropic(PRECISIONS[0]), method=lw.Exact(), draws=1,
            curvature="network", progress=False,
        )  # fmt: skip
        posteriors = [first, *(first.at(precision=precision) for precision in PRECISIONS[1:])]
        left_out = [posterior.leave_one_out() for posterior in posteriors]
        best = max(range(len(posteriors)), key=lambda i: float(left_out[i].log_density.sum()))
        own = model(x).detach().log_softmax(1).gather(1, labels[:, None])[:, 0]
        ranked = {
            "at_the_linear_mode": left_out[best].label_errors(FLIPPED),
            "at_the_network": posteriors[best].leave_one_out(mean="network").label_errors(FLIPPED),
            "network_alone": own.argsort()[:FLIPPED],
        }
        for name, suspects in ranked.items():
            found[name].append(float(torch.isin(suspects, flipped).double().mean()))
        accuracy.append(float((model(x).argmax(1) == labels).double().mean()))
        chosen.append(PRECISIONS[best])
    return {
        "weights": first.map.weights,
        "training_accuracy": sum(accuracy) / seeds,
        "by_chance": FLIPPED / n,
        **{f"precision_at_50_{name}": sum(values) / seeds for name, values in found.items()},
        "each_seed": found,
        "prior_precisions": chosen,
    }


PRECISIONS = (0.3, 3.0, 30.0)
FIRST_SEED = 10  # those below served to choose this protocol
CELLS = {
    "linear, 600 digits, decay 0.3": {"n": 600, "hidden": 0, "decay": 0.3, "epochs": 100, "seeds": 1},
    "16 hidden units, 500 digits, decay 0.3": {"n": 500, "hidden": 16, "decay": 0.3, "epochs": 200, "seeds": 3},
    "16 hidden units, 500 digits, no decay": {"n": 500, "hidden": 16, "decay": 0.0, "epochs": 400, "seeds": 3},
    "16 hidden units, 1,000 digits, decay 0.3": {"n": 1000, "hidden": 16, "decay": 0.3, "epochs": 200, "seeds": 3},
    "16 hidden units, 1,000 digits, decay 0.01": {"n": 1000, "hidden": 16, "decay": 0.01, "epochs": 200, "seeds": 3},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
