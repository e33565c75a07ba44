"""Networks trained side by side are those that would have been trained alone."""

import pytest
import torch
from torch import nn

from lapwing.bayes.likelihoods import Gaussian
from lapwing.bench import side_by_side
from lapwing.bench.networks import mlp
from lapwing.bench.regressors import falling
from lapwing.training import adam, train
from tests.families.problems import normals


def data(n, seed):
    x = normals(n, 3, seed=seed)
    return x, torch.sin(2 * x[:, :2]) + 0.3 * normals(n, 2, seed=seed + 1)


def make(seed):
    return mlp([3, 7, 5, 2], activation=nn.ReLU, seed=seed).double()


def test_each_goes_where_it_would_have_gone_alone_and_keeps_its_own_best_epoch():
    """Against the training loop for one network: same order of the data, and squared error is unit noise."""
    pairs, held_out = data(40, 0), data(11, 10)
    found = side_by_side.train(
        [make(seed) for seed in range(4)], pairs, held_out, epochs=8, batch_size=9, learning_rate=0.03,
        schedule=falling, seed=5,
    )  # fmt: skip
    x, best = normals(6, 3, seed=20), []
    for seed, model in enumerate(found):
        alone = train(
            make(seed), pairs, Gaussian(), epochs=8, batch_size=9, optimiser=adam(0.03), schedule=falling,
            validation=held_out, seed=5, progress=False,
        )  # fmt: skip
        assert not model.training
        assert torch.allclose(model(x), alone(x), rtol=1e-9)
        best.append((model(held_out[0]) - held_out[1]).square().mean().item())
    assert len(set(best)) == 4


def test_outputs_are_those_of_each_network():
    models, x = [make(seed) for seed in range(3)], normals(6, 3, seed=20)
    weights = {
        name: torch.stack([model.state_dict()[name] for model in models]) for name in models[0].state_dict()
    }  # fmt: skip
    found = side_by_side.outputs(models[0], weights, x)
    assert torch.allclose(found, torch.stack([model(x) for model in models]))


def test_every_network_drops_by_its_own_rate():
    """With one linear layer of equal weights the mean stays and the variance is rate / (1 − rate) · Σ x²."""
    model, x = mlp([50, 2]), torch.ones(4000, 50)
    weights = {"1.weight": torch.full((3, 2, 50), 0.1), "1.bias": torch.zeros(3, 2)}
    rates = torch.tensor([0.0, 0.1, 0.4])
    found = side_by_side.outputs(model, weights, x, 1 - rates, torch.Generator().manual_seed(0))[:, :, 0]
    variance = rates / (1 - rates) * 50 * 0.01
    assert ((found.mean(1) - 5).abs() <= 5 * (variance / 4000).sqrt() + 1e-5).all()
    assert ((found.var(1) - variance).abs() <= 5 * variance * (2 / 4000) ** 0.5 + 1e-8).all()


@pytest.mark.parametrize("rates", [None, [0.0, 0.0, 0.0]])
def test_a_rate_of_zero_is_no_dropout(rates):
    pairs = data(20, 0)
    found = side_by_side.train(
        [make(seed) for seed in range(3)], pairs, pairs, epochs=3, batch_size=20, learning_rate=0.01, rates=rates
    )
    expected = side_by_side.train(
        [make(seed) for seed in range(3)], pairs, pairs, epochs=3, batch_size=20, learning_rate=0.01
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one[1].weight, other[1].weight)
