"""Training, families and the choice of a subnetwork read data as `fit` does: dictionaries, weights and masks."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from lapwing import Bernoulli, Categorical, DataSpec, Gaussian, Poisson, subnetwork
from lapwing.families import dropout, ensemble, mcmc, point, swag
from lapwing.families.evidence_training import train_with_evidence
from lapwing.families.variational import BayesByBackprop, NaturalGradient
from lapwing.families.variational import fit as variational
from lapwing.network.shuffling import Source
from lapwing.training import log_prob, members, train

COUNTS = torch.tensor([2, 0, 1, 3, 1, 1, 0, 2, 1, 4, 1])


def made(outputs: int = 2, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


class Two(nn.Module):
    """A network of two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = made()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.cat([left, right], dim=1))


def problem():
    noise = torch.Generator().manual_seed(1)
    return (torch.randn(11, width, generator=noise).double() for width in (3, 2))


def repeated(x, y):
    """Every datum as often as it counts."""
    return x.repeat_interleave(COUNTS, 0), y.repeat_interleave(COUNTS, 0)


def weights_of(model):
    return torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])


LIKELIHOODS = {
    "gaussian": (Gaussian(0.7), lambda y: y),
    "bernoulli": (Bernoulli(), lambda y: (y > 0).double()),
    "poisson": (Poisson(), lambda y: y.exp().floor()),
    "categorical": (Categorical(), lambda y: (y[:, 0] > 0).long()),
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_weight_counts_a_datum_as_often_in_a_batch(kind):
    """Against the same batch with every datum repeated."""
    of, targets = LIKELIHOODS[kind]
    x, y = problem()
    y = targets(y)
    batch = next(Source.of(DataSpec((x, y, COUNTS), weights=2)).in_order(11))
    again, labels = repeated(x, y)
    model = made()
    torch.testing.assert_close(log_prob(of, model(batch[0]), batch[1]), log_prob(of, model(again), labels))


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "poisson"])
def test_a_mask_leaves_single_targets_out_of_a_batch(kind):
    of, targets = LIKELIHOODS[kind]
    x, y = problem()
    y, mask = targets(y), torch.arange(22).reshape(11, 2) % 3 > 0
    batch = next(Source.of(DataSpec({"x": x, "y": y, "m": mask}, inputs="x", mask="m")).in_order(11))
    outputs = made()(batch[0])
    each = [log_prob(of, outputs[row, [column]], y[row, [column]]) for row, column in mask.nonzero().tolist()]
    torch.testing.assert_close(log_prob(of, outputs, batch[1]), torch.stack(each).sum())


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_training_with_weights_ends_where_that_with_repetitions_does(kind):
    """Whole batches, so that both see one gradient; its scale is that of the number of data, as is the prior's."""
    of, targets = LIKELIHOODS[kind]
    x, y = problem()
    y = targets(y)
    options = {"epochs": 5, "progress": False, "optimiser": lambda weights: torch.optim.SGD(weights, lr=0.05)}
    weighted = train(made(), DataSpec((x, y, COUNTS), weights=2), of, batch_size=11, **options)
    often = int(COUNTS.sum())
    options["optimiser"] = lambda weights: torch.optim.SGD(weights, lr=0.05 * often / 11)
    plain = train(made(), repeated(x, y), of, batch_size=often, **options)
    torch.testing.assert_close(weights_of(weighted), weights_of(plain))
    assert not torch.allclose(weights_of(weighted), weights_of(made()))


def test_members_side_by_side_count_as_one_by_one():
    x, y = problem()
    data = DataSpec({"x": x, "y": y, "often": COUNTS}, inputs="x", weights="often")
    found = members(lambda seed: made(seed=seed), data, Gaussian(0.7), 2, epochs=3, batch_size=4, progress=False)
    for seed, member in enumerate(found):
        alone = train(made(seed=seed), data, Gaussian(0.7), epochs=3, batch_size=4, seed=seed, progress=False)
        torch.testing.assert_close(weights_of(member), weights_of(alone), rtol=1e-9, atol=1e-12)


class Rows(Dataset):
    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts["y"])

    def __getitem__(self, row):
        return {name: part[row] for name, part in self.parts.items()}


@pytest.mark.parametrize("form", ["dictionary", "list", "dataset"])
def test_networks_of_several_inputs_train_as_of_one(form):
    x, y = problem()
    parts = {"left": x[:, :1], "right": x[:, 1:], "y": y}
    data = {
        "dictionary": parts,
        "list": [{name: part[:6] for name, part in parts.items()}, {name: part[6:] for name, part in parts.items()}],
        "dataset": Rows(parts),
    }[form]
    options = {"epochs": 3, "batch_size": 4, "progress": False}
    plain = train(made(), (x, y), Gaussian(0.7), **options)
    torch.testing.assert_close(weights_of(train(Two(), data, Gaussian(0.7), **options)), weights_of(plain))
    pair = members(lambda _: Two(), data, Gaussian(0.7), 2, **options)
    torch.testing.assert_close(weights_of(pair[0]), weights_of(plain))


def both():
    """The same data as one tensor, and as a dictionary, for networks that compute the same."""
    x, y = problem()
    return (made().eval(), (x, y), x), (
        Two().eval(),
        {"left": x[:, :1], "right": x[:, 1:], "y": y},
        (x[:, :1], x[:, 1:]),
    )


FAMILIES = {
    "point": lambda model, data: point.fit(model, data, Gaussian()),
    "ensemble": lambda model, data: ensemble.fit(
        lambda _: model, data, Gaussian(), members=2, epochs=2, progress=False
    ),
    "swag": lambda model, data: swag.fit(model, data, Gaussian(0.7), epochs=3, draws=3, progress=False),
    "mcmc": lambda model, data: mcmc.fit(model, data, Gaussian(0.7), chains=2, draws=4, warmup=2, progress=False),
    "backprop": lambda model, data: variational(
        model, data, Gaussian(0.7), temperature=1.0, epochs=2, draws=3, method=BayesByBackprop(), progress=False
    ),
    "ivon": lambda model, data: variational(
        model, data, Gaussian(0.7), temperature=1.0, epochs=2, draws=3, method=NaturalGradient("ivon"), progress=False
    ),
    "dropout": lambda model, data: dropout.fit(dropout.insert(model, 0.3), data, Gaussian(0.7)),
    "evidence": lambda model, data: train_with_evidence(model, data, Gaussian(), epochs=2, progress=False).posterior,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_take_several_inputs(family):
    (model, data, x), (other, parts, several) = both()
    one, two = FAMILIES[family](model, data), FAMILIES[family](other, parts)
    inputs = dict(zip(("left", "right"), several, strict=True))
    torch.testing.assert_close(one.predict(x).mean, two.predict(inputs).mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("score", ["swag", "diagonal", "predictive"])
def test_a_subnetwork_counts_data_as_often_as_they_are_there(score):
    """Weights of one kind for all: those of the curvature are the same up to a number, and so is their order."""
    x, y = problem()
    inputs, targets = repeated(x, y)
    options = {"learning_rate": 1e-3, "momentum": 0.0, "weight_decay": 0.0} if score == "swag" else {}
    weighted = subnetwork(made().eval(), DataSpec((x, y, COUNTS), weights=2), Gaussian(0.7), 9, score=score, **options)
    if options:
        options["learning_rate"] *= int(COUNTS.sum()) / 11
    plain = subnetwork(made().eval(), (inputs, targets), Gaussian(0.7), 9, score=score, **options)
    other = subnetwork(made().eval(), (x, y), Gaussian(0.7), 9, score=score, **options)
    assert torch.equal(weighted, plain)
    assert not torch.equal(weighted, other)
    (model, data, _), (two, parts, _) = both()
    alike = [subnetwork(*given, Gaussian(0.7), 9, score=score, **options) for given in ((model, data), (two, parts))]
    assert torch.equal(*alike)


def test_what_makes_nothing_of_weights_says_so():
    x, y = problem()
    data = DataSpec((x, y, COUNTS), weights=2)
    with pytest.raises(ValueError, match="weights or a mask, which are not used here"):
        point.fit(made().eval(), data, Gaussian())
    with pytest.raises(ValueError, match="weights or a mask, which are not used here"):
        mcmc.fit(made().eval(), data, Gaussian(0.7), chains=2, draws=4, warmup=1, progress=False)
