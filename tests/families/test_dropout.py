"""Dropout left on: masks are functions, joint over inputs; moments against the closed form."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from lapwing.bayes.likelihoods import Categorical, Gaussian
from lapwing.families import dropout
from tests.families.problems import classes, mlp, normals, regression, seeded


def with_dropout(rate=0.3, outputs=2):
    return seeded(lambda: nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Dropout(rate), nn.Linear(7, outputs))).eval()


def test_draws_are_functions(monkeypatch):
    found = dropout.fit(with_dropout(), regression(), Gaussian(0.3), draws=6)
    x = normals(11, 3, seed=7)
    functions = found.functions(x)
    assert functions.shape == (6, 11, 2)
    assert torch.equal(functions, found.functions(x))
    assert torch.allclose(functions[:, 4:6], found.functions(x[4:6]), rtol=1e-12)
    monkeypatch.setattr(dropout, "BATCH", 4)
    assert torch.allclose(functions, found.functions(x), rtol=1e-12)
    assert not torch.allclose(functions[0], functions[1])


def test_moments_are_those_in_closed_form():
    """A mask m / (1 − p) before a linear layer: mean W h + b, covariance W diag(h²) Wᵀ p / (1 − p)."""
    model, rate, draws = with_dropout(0.3), 0.3, 4000
    found = dropout.fit(model, regression(), Gaussian(0.3), draws=draws, seed=3)
    x = normals(5, 3, seed=8)
    functions = found.functions(x).reshape(draws, -1)
    hidden, head = model[1](model[0](x)).detach(), model[3]
    mean = model(x).detach().reshape(-1)
    moved = (head.weight.detach()[None] * hidden[:, None]).reshape(-1, 7)  # of each output, by hidden unit
    covariance = moved @ moved.T * rate / (1 - rate)
    variance = covariance.diagonal()
    assert ((functions.mean(0) - mean).abs() < 5 * (variance / draws).sqrt()).all()
    deviations = functions - mean
    products = deviations[:, :, None] * deviations[:, None]
    error = products.std(0) / draws**0.5
    assert ((products.mean(0) - covariance).abs() < 5 * error).all()


def test_functional_dropout_and_channels_count_too():
    class Pictures(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 6, 3), nn.Linear(6 * 4, 3)

        def forward(self, x):
            x = functional.dropout2d(self.conv(x).tanh(), 0.5, self.training)
            self.seen = x
            return self.head(functional.dropout(x.flatten(1), 0.2, training=self.training))

    model = seeded(Pictures).eval()
    x, y = normals(9, 2, 4, 4), torch.arange(9) % 3
    found = dropout.fit(model, (x, y), Categorical(), draws=4)
    found.functions(x)
    channels = found.model.seen.flatten(2)  # (9, 6, 4)
    dropped = (channels == 0).all(2)
    assert torch.equal(dropped, dropped[:1].expand(9, 6))  # whole channels, the same for every picture
    assert torch.equal(dropped, (channels == 0).any(2))
    assert 0 < int(dropped[0].sum()) < 6


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.Dropout])
def test_masks_keep_mean_and_scale_as_torchs_own_do(kind):
    """Mean and variance over draws of dropout on one value, against torch's own in training mode, by z-score."""
    layer, draws, value = kind(0.3), 20_000, torch.full((1, 1), 0.7).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own = layer.train()(value.expand(draws, 1)).flatten()
    found = dropout.Dropout(layer.eval(), Gaussian(1.0), draws=2000, seed=1)
    ours = found.functions(value).flatten()
    assert torch.allclose(ours.unique(), own.unique(), rtol=1e-6)  # torch scales in single precision
    share = float((ours == ours.min()).double().mean())
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 2000) ** 0.5


def test_batch_norm_stays_as_it_is():
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2))).eval()
    before = model[1].running_mean.clone()
    found = dropout.fit(model, regression(), Gaussian(0.3), draws=3)
    x = normals(11, 3, seed=7)
    assert torch.allclose(found.functions(x)[:, :1], found.functions(x[:1]), rtol=1e-12)
    assert torch.equal(found.model[1].running_mean, before)
    assert not model.training


def test_the_noise_is_tuned_for_the_draws():
    x, y = regression()
    found = dropout.fit(with_dropout(), (x, y), Gaussian(), draws=40)
    prediction = found.predict(x)
    log_std = found.likelihood.noise_std.log().requires_grad_()
    of_draws = (
        torch.distributions.Normal(prediction.draws, log_std.exp()).log_prob(y).sum(2)
    )  # a datum's outputs together
    value = of_draws.logsumexp(0).sum()
    (slope,) = torch.autograd.grad(value, log_std)
    assert abs(float(slope)) < 1e-3


def test_insert_puts_it_before_layers():
    model = mlp()
    plain, both = dropout.insert(model, 0.2), dropout.insert(model, 0.2, inputs=True)
    kinds = [type(module).__name__ for module in plain.modules() if not isinstance(module, nn.Sequential)]
    assert kinds == ["Linear", "Tanh", "Dropout", "Linear"]
    assert sum(isinstance(module, nn.Dropout) for module in both.modules()) == 2
    x = normals(6, 3)
    assert torch.equal(plain(x), model(x))  # in eval mode nothing changed
    assert torch.equal(both(x), model(x))
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        dropout.insert(model, 1.0)
    with pytest.raises(ValueError, match="nowhere to put dropout"):
        dropout.insert(mlp()[:1], 0.1)


def test_a_network_without_dropout_is_refused():
    with pytest.raises(ValueError, match="no dropout was met"):
        dropout.fit(mlp(), regression(), Gaussian())
    with pytest.raises(ValueError, match="at least 2"):
        dropout.fit(with_dropout(), regression(), Gaussian(), draws=1)


def test_probabilities_are_averages():
    x, y = classes()
    found = dropout.fit(with_dropout(outputs=4), (x, y), Categorical(), draws=5)
    assert torch.allclose(found.predict(x).probs, found.functions(x).softmax(2).mean(0))
