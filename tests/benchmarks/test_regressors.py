"""What the regression methods of the benchmarks share: networks by weight decay, and mixtures of posteriors."""

import pytest
import torch
from torch import nn

from benchmarks import regressors
from benchmarks.networks import mlp
from tests.families.problems import normals


def make(seed):
    return mlp([3, 4, 1], activation=nn.ReLU, seed=seed).double().eval()


@pytest.fixture
def problem():
    x = normals(30, 3, seed=0)
    y = x[:, :1] - x[:, 1:2].abs()
    networks = regressors.untrained(make)
    return regressors.problem(
        networks, (x[:20], y[:20]), (x[20:], y[20:]), batch_size=8, learning_rate=0.01, seed=0
    )  # fmt: skip


def test_networks_have_the_same_starts_at_every_decay(problem):
    assert [len(members) for members in problem.stacks] == [regressors.MEMBERS] * len(regressors.DECAYS)
    for members in zip(*problem.stacks, strict=True):
        assert all(torch.equal(one[1].weight, members[0][1].weight) for one in members)
    assert len(problem.dropped) == len(regressors.RATES)


def test_the_decay_is_that_with_the_least_held_out_error(problem):
    x, y = problem.validation
    regressors.fitted(problem, steps=30)
    errors = [
        sum((model(x) - y).square().mean().item() for model in members) for members in problem.stacks
    ]  # fmt: skip
    assert len(set(errors)) == len(regressors.DECAYS)
    assert problem.members is problem.stacks[errors.index(min(errors))]
    assert problem.model is problem.members[0]


def test_every_network_drops_by_its_own_rate():
    """With one linear layer of equal weights the mean stays and the variance is rate / (1 − rate) · Σ x² w²."""
    rates, rows = torch.tensor([0.1, 0.4, 0.7]), 4000
    networks = [regressors.Dropping(mlp([50, 2]), float(rate)) for rate in rates]
    weights = {"layers.1.weight": torch.full((3, 2, 50), 0.1), "layers.1.bias": torch.zeros(3, 2), "share": 1 - rates}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = torch.func.vmap(
            lambda own: torch.func.functional_call(networks[0].train(), own, (torch.ones(rows, 50),)),
            randomness="different",
        )(weights)[:, :, 0]
    variance = rates / (1 - rates) * 50 * 0.01
    assert ((found.mean(1) - 5).abs() <= 5 * (variance / rows).sqrt()).all()
    assert ((found.var(1) - variance).abs() <= 5 * variance * (2 / rows) ** 0.5).all()
    assert torch.equal(networks[0].eval()(torch.ones(3, 50)), networks[0].layers(torch.ones(3, 50)))
