"""Any module as a mean field: what is random, where the noise enters, and the divergence."""

import math

import pytest
import torch
from torch import Generator, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from lapwing.bayes.likelihoods import Gaussian
from lapwing.families.variational import BayesByBackprop
from lapwing.families.variational.fitting import _VariationalPlan
from lapwing.families.variational.mean_field import LOG_STD, MeanField
from lapwing.families.variational.methods import at_layers
from lapwing.families.variational.temperature import Heat
from lapwing.network.shuffling import Source
from tests.families.variational.problems import mlp, normals, seeded


class Tied(nn.Module):
    """One linear layer used twice, one used once, and a weight used by a plain product."""

    def __init__(self):
        super().__init__()
        self.twice, self.once = nn.Linear(3, 3), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.table = nn.Embedding(6, 3)

    def forward(self, x):
        y = self.twice(torch.tanh(self.twice(x + self.table.weight.mean(0))))
        return self.once(y) * self.scale


def outputs_of(network, values, x, generator, local=True):
    at_layers = network.exact | network.approximate if local else frozenset()
    return network.outputs(values, network.variances(values), x, generator, at_layers)


def values_of(network, std=0.3):
    values = network.start(std)
    for index, name in enumerate(network.random):
        values[name + LOG_STD] = values[name + LOG_STD] + 0.2 * normals(*values[name].shape, seed=50 + index)
    return values


def test_noise_goes_to_layers_only_where_a_weight_is_used_once():
    network = MeanField.of(seeded(Tied), normals(5, 3))
    assert network.exact == {"once.weight", "once.bias"}
    assert network.approximate == frozenset()
    assert set(network.random) == {"twice.weight", "twice.bias", "once.weight", "once.bias", "scale", "table.weight"}
    assert network.size == 9 + 3 + 12 + 4 + 4 + 18


LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), (5, 3)),
    "linear without bias": (lambda: nn.Linear(3, 4, bias=False), (5, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), (3, 2, 5)),
    "strided grouped conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), stride=2, groups=2), (3, 4, 7, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 3, 4, 5)),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), (4, 2, 3, 5)),
}


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_noise_at_a_layer_has_the_mean_and_variance_of_noise_in_its_weights(make, shape):
    """The layer is linear in its weights, so the variance of an output is Σ (∂output/∂w)² σ², here by autograd."""
    layer, x = seeded(make), normals(*shape, seed=8)
    network = MeanField.of(layer, x)
    assert network.exact | network.approximate == set(network.random)
    assert network.exact == (frozenset(network.random) if isinstance(layer, nn.Linear) else frozenset())
    values, generator, draws = values_of(network), Generator().manual_seed(0), 4000
    with torch.no_grad():  # data have noise of their own, so that one large batch holds many draws
        found = outputs_of(network, values, x.repeat(draws, *[1] * (x.ndim - 1)), generator).reshape(draws, len(x), -1)
        mean = functional_call(layer, {name: values[name] for name in network.random}, (x,))
    weights = {name: values[name] for name in network.random}
    jacobians = torch.func.jacrev(lambda w: functional_call(layer, w, (x,)))(weights)
    variance = sum(
        (jacobians[name].square() * (2 * values[name + LOG_STD]).exp()).flatten(mean.ndim).sum(-1) for name in weights
    )
    mean, variance = mean.reshape(len(x), -1), variance.reshape(len(x), -1)
    assert ((found.mean(0) - mean).abs() <= 5 * (variance / draws).sqrt()).all()
    assert ((found.var(0) - variance).abs() <= 5 * variance * (2 / draws) ** 0.5).all()


def test_noise_at_a_layer_is_independent_between_data():
    layer, x = seeded(lambda: nn.Linear(3, 4)), normals(1, 3).expand(2, 3)
    network, generator = MeanField.of(layer, x), Generator().manual_seed(0)
    values, draws = values_of(network), 1000
    local = torch.stack([outputs_of(network, values, x, generator) for _ in range(draws)]).detach()
    plain = torch.stack([outputs_of(network, values, x, generator, local=False) for _ in range(draws)]).detach()
    correlation = [torch.corrcoef(found[:, :, 0].mT)[0, 1] for found in (local, plain)]
    assert abs(float(correlation[0])) < 5 / draws**0.5
    assert float(correlation[1]) == pytest.approx(1)


def test_weights_with_a_layer_whose_weight_is_not_random_get_their_own_noise():
    layer, x = seeded(lambda: nn.Linear(3, 4)), normals(5, 3)
    network = MeanField.of(layer, x, select=lambda name: name == "bias")
    assert network.exact == network.approximate == frozenset()
    draws = torch.stack([outputs_of(network, values_of(network), x, Generator().manual_seed(s)) for s in range(3)])
    assert draws.detach().std(0).min() > 0


def test_an_input_of_zeros_has_finite_gradients():
    layer = seeded(lambda: nn.Linear(3, 4, bias=False))
    network = MeanField.of(layer, torch.zeros(5, 3).double())
    values = {name: value.requires_grad_() for name, value in values_of(network).items()}
    outputs_of(network, values, torch.zeros(5, 3).double(), Generator().manual_seed(0)).sum().backward()
    assert all(value.grad.isfinite().all() for value in values.values())


def test_divergence_is_that_of_torch():
    network = MeanField.of(mlp(), normals(5, 3), prior_variance=0.4)
    values, d = values_of(network), torch.distributions
    prior = d.Normal(torch.zeros((), dtype=torch.float64), math.sqrt(0.4))
    expected = sum(
        d.kl_divergence(d.Normal(values[name], values[name + LOG_STD].exp()), prior).sum() for name in network.random
    )
    assert float(network.divergence(values)) == pytest.approx(float(expected), rel=1e-12)
    assert float(network.divergence(network.prior(values))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("local", ["everywhere", "nowhere"])
def test_gradients_by_hand_are_those_of_autograd(local):
    """What Adam is given of −ELBO / p, against autograd on the same written in plain operations, with the same noise.

    Adam's running mean of gradients after one step is a tenth of the first one. No output depends on `unused`.
    """
    x, y = normals(6, 3), normals(6, 4, seed=1)
    model = seeded(Tied)
    model.unused = nn.Parameter(normals(2, 5, seed=8))
    network = MeanField.of(model, x, prior_variance=0.4)
    start = values_of(network)
    plan = _VariationalPlan(
        network, Source.of((x, y)), Gaussian(0.3), BayesByBackprop(0.01, local), 1, 6, 2, 50, None, 2, 0
    )
    learner = plan._learner(start, Heat(1.7, 50))
    loss = learner.step(x, y, Generator().manual_seed(3), 0.0)

    values = {name: value.clone().requires_grad_() for name, value in start.items()}
    generator, terms = Generator().manual_seed(3), []
    for _ in range(2):
        outputs = plain_outputs(network, values, x, generator, at_layers(local, network))
        terms.append(torch.distributions.Normal(outputs, 0.3).log_prob(y).sum() / 6)
    variances = {name: (2 * values[name + LOG_STD]).exp() for name in network.random}
    divergence = sum(
        0.5 * ((variances[n] + values[n].square()) / 0.4 - 1 - (variances[n] / 0.4).log()).sum() for n in network.random
    )
    expected = 1.7 / 50 * divergence - sum(terms) / 2
    assert loss == pytest.approx(float(expected.detach()), rel=1e-12)
    expected.backward()
    for name, value in values.items():
        ours = 10 * learner.descent.state[learner.current[name]]["exp_avg"]
        assert torch.allclose(ours, value.grad, rtol=1e-10, atol=1e-12), name


def plain_outputs(network, values, x, generator, at_layers):
    """The outputs of `Tied` with the noise that the generator gives, in the order in which it is drawn."""
    std = {name: values[name + LOG_STD].exp() for name in network.random}
    weights = dict(values)
    for name in network.random:
        if name not in at_layers:
            noise = torch.randn(values[name].shape, generator=generator, dtype=x.dtype)
            weights[name] = values[name] + std[name] * noise
    w = {name: weights[f"twice.{name}"] for name in ("weight", "bias")}
    hidden = torch.tanh((x + weights["table.weight"].mean(0)) @ w["weight"].mT + w["bias"]) @ w["weight"].mT + w["bias"]
    outputs = hidden @ weights["once.weight"].mT + weights["once.bias"]
    if "once.weight" in at_layers:
        variance = hidden.square() @ std["once.weight"].square().mT + std["once.bias"].square()
        outputs = outputs + variance.sqrt() * torch.randn(outputs.shape, generator=generator, dtype=x.dtype)
    return outputs * weights["scale"]


def test_draws_of_the_weights_have_the_right_covariance():
    """Every coordinate by z-score, and no correlation between coordinates, over 3,000 draws of a small layer."""
    network = MeanField.of(seeded(lambda: nn.Linear(2, 3)), normals(5, 2))
    values, draws = values_of(network), 3000
    drawn = torch.stack([
        torch.cat([network.draw(values, 7, column)[name].reshape(-1) for name in network.random])
        for column in range(draws)
    ])  # fmt: skip
    mean = torch.cat([values[name].reshape(-1) for name in network.random])
    variance = torch.cat([(2 * values[name + LOG_STD]).exp().reshape(-1) for name in network.random])
    error = (drawn - mean).mT @ (drawn - mean) / draws - variance.diag()
    standard_error = ((variance.diag().square() + torch.outer(variance, variance)) / draws).sqrt()
    assert (error.abs() <= 5 * standard_error).all()
    assert ((drawn.mean(0) - mean).abs() <= 5 * (variance / draws).sqrt()).all()


def test_normalisation_layers_are_not_random_unless_asked_for():
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.LayerNorm(2)))
    x = normals(5, 3)
    assert MeanField.of(model, x).random == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert "1.weight" in MeanField.of(model, x, select=lambda name: True).random
    only = MeanField.of(model, x, select=lambda name: name.endswith("weight"))
    assert only.random == ("0.weight", "1.weight", "2.weight", "3.weight")


def test_reparametrised_and_attention_weights_get_noise_of_their_own():
    model = seeded(lambda: parametrizations.weight_norm(nn.Linear(3, 4)))
    network = MeanField.of(model, normals(5, 3))
    assert network.exact == network.approximate == frozenset()
    attention = seeded(lambda: nn.TransformerEncoderLayer(6, 2, 7, dropout=0.0, batch_first=True))
    network = MeanField.of(attention, normals(3, 5, 6))
    assert network.exact == frozenset()  # positions of a sequence share their weights
    assert network.approximate == {"linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"}
    values = values_of(network)
    found = [
        outputs_of(network, values, normals(3, 5, 6), Generator().manual_seed(0), local=local)
        for local in (True, False)
    ]
    assert all(bool(outputs.isfinite().all()) for outputs in found)


def test_recurrent_weights_get_noise_that_matters():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return self.inner(x)[0][:, -1]

    network = MeanField.of(seeded(Last), normals(5, 6, 3))
    values = {name: value.requires_grad_() for name, value in values_of(network).items()}
    one, other = (outputs_of(network, values, normals(5, 6, 3), Generator().manual_seed(s)) for s in (0, 1))
    assert not torch.allclose(one, other)
    one.sum().backward()
    assert all(values[name + LOG_STD].grad.abs().max() > 0 for name in network.random)


BAD = {
    "not a module": (lambda: (3, {}), "expected a torch.nn.Module, got int"),
    "prior variance": (lambda: (mlp(), {"prior_variance": 0.0}), "prior_variance is 0.0, expected a positive number"),
    "negative": (lambda: (mlp(), {"prior_variance": -1.0}), "prior_variance is -1.0, expected a positive number"),
    "nothing trainable": (lambda: (mlp().requires_grad_(False), {}), "no weight is random: .* requires_grad=True"),
    "nothing selected": (lambda: (mlp(), {"select": lambda name: False}), "no weight is random"),
    "mask": (lambda: (mlp(), {"select": torch.ones(32, dtype=torch.bool)}), "choose them by a function of the name"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(make, message):
    model, options = make()
    with pytest.raises(ValueError, match=message):
        MeanField.of(model, normals(5, 3), **options)
