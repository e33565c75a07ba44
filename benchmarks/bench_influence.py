"""Does `posterior.influence` foretell what training on other data does? The linear datamodelling score.

Protocol, written before the first score. A network is trained on 600 of scikit-learn's digits, and anew on each of 50 random halves of them. For each of 100 other digits the margin of its label (its logit less the log sum
of the exponentials of the others) is foretold for a half by the sum of the influences of its examples. The score is the rank correlation of foretold and true margins over the 50 halves, its mean over
the 100 digits with its standard error over them (Park et al. 2023). 64-32-10 with tanh, 200 steps of Adam on all data at once, prior precision 0.5 in the loss. MNIST, which was asked for,
would take longer than there was time; TRAK is not on the index of packages at hand. Nothing was tuned.

- `lapwing`: `lw.fit(network, data, lw.Categorical(), prior=lw.Isotropic(0.5), curvature="network").influence(x, mean="network")`, times the slope of the margin.
- `kronfluence`: EKFAC influence by kronfluence 1.0.1 of each example on the margin, with its defaults.
- `gradient products`: the product of the gradients of the margin and of the example's log probability.
"""

import time

import harness
import peer_environment

PRECISION, TRAIN, TEST = 0.5, 600, 100


def trained(x, y, seed: int):
    import torch
    from torch import nn

    from benchmarks.networks import mlp

    model = mlp([64, 32, 10], activation=nn.Tanh, seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        decay = 0.5 * PRECISION * sum(weight.square().sum() for weight in model.parameters())
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum") + decay
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def margins(logits, y):
    others = logits.scatter(1, y[:, None], -float("inf"))
    return logits.gather(1, y[:, None])[:, 0] - others.logsumexp(1)


def ours(model, seen, new):
    import torch

    import lapwing as lw

    posterior = lw.fit(
        model, seen, lw.Categorical(), prior=lw.Isotropic(PRECISION), curvature="network", progress=False
    )
    logits = model(new[0]).detach().requires_grad_()
    (slope,) = torch.autograd.grad(margins(logits, new[1]).sum(), logits)
    return (posterior.influence(new[0], mean="network") * slope).sum(2)


def gradient_products(model, seen, new):
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy

    weights = dict(model.named_parameters())

    def log_probability(at, x, y):
        return -cross_entropy(functional_call(model, at, (x[None],)), y[None])

    def margin(at, x, y):
        return margins(functional_call(model, at, (x[None],)), y[None])[0]

    flat = []
    for function, data in ((log_probability, seen), (margin, new)):
        found = vmap(grad(function), in_dims=(None, 0, 0))(weights, *data)
        flat.append(torch.cat([part.flatten(1) for part in found.values()], dim=1))
    return (flat[0] @ flat[1].mT).detach()


def by_kronfluence(model, seen, new):
    import copy
    import tempfile

    import torch
    from kronfluence.analyzer import Analyzer, prepare_model

    task = task_of()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_model(copy.deepcopy(model), task)
        analyzer = Analyzer("influence", prepared, task, cpu=True, output_dir=folder, disable_tqdm=True)
        data, asked = (torch.utils.data.TensorDataset(*part) for part in (seen, new))
        analyzer.fit_all_factors("factors", data, per_device_batch_size=300)
        analyzer.compute_pairwise_scores(
            "scores", "factors", asked, data, per_device_query_batch_size=100, per_device_train_batch_size=300
        )
        return analyzer.load_pairwise_scores("scores")["all_modules"].mT


def task_of():
    import torch
    from kronfluence.task import Task
    from torch.nn.functional import cross_entropy

    class Margin(Task):
        def compute_train_loss(self, batch, model, sample=False):
            logits, labels = model(batch[0]), batch[1]
            if sample:
                labels = torch.multinomial(logits.detach().softmax(1), 1)[:, 0]
            return cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch, model):
            return -margins(model(batch[0]), batch[1]).sum()

    return Margin()


def measure(halves: int, seed: int) -> dict:
    import torch
    from scipy.stats import spearmanr
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    x, y = (images[order] / 16).float(), labels[order].long()
    seen, new = (x[:TRAIN], y[:TRAIN]), (x[TRAIN : TRAIN + TEST], y[TRAIN : TRAIN + TEST])
    generator = torch.Generator().manual_seed(1000 + seed)
    chosen = torch.stack([torch.randperm(TRAIN, generator=generator)[: TRAIN // 2] for _ in range(halves)])
    with torch.no_grad():
        truth = []
        for half in chosen:
            with torch.enable_grad():
                model = trained(seen[0][half], seen[1][half], seed)
            truth.append(margins(model(new[0]), new[1]))
        truth = torch.stack(truth)  # (halves, test)
    whole, found = trained(*seen, seed), {}
    for name, method in (("lapwing", ours), ("kronfluence", by_kronfluence), ("gradient products", gradient_products)):
        started = time.process_time()
        influence = method(whole, seen, new)  # (train, test)
        seconds = time.process_time() - started
        foretold = torch.stack([influence[half].sum(0) for half in chosen])
        scores = torch.tensor([spearmanr(foretold[:, k].detach(), truth[:, k]).statistic for k in range(TEST)])
        found[name] = {"score": float(scores.mean()), "error": float(scores.std() / TEST**0.5), "seconds": seconds}
    return found


CELLS = {"digits": {"halves": 50, "seed": 0}}

if __name__ == "__main__":
    peer_environment.enter("kronfluence")
    harness.main(__file__, CELLS, measure)
