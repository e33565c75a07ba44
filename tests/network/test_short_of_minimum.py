"""A network that is short of its minimum: what it leaves of its data counts as noise around its own outputs."""

import pytest
import torch

import lapwing as lw
from tests.network.networks import normal

N = 200
INPUTS = normal(N, 3, seed=1)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double().eval()


def targets(shift: float) -> torch.Tensor:
    """What the network says, with noise of two sizes; its biases are wrong by `shift`, which a linear model mends."""
    with torch.no_grad():
        return network()(INPUTS) + shift * torch.tensor([1.0, -2.0]) + torch.tensor([0.1, 0.2]) * normal(N, 2, seed=2)


def fit(shift: float, **given):
    return lw.fit(network(), (INPUTS, targets(shift)), lw.Gaussian(per_output=True), draws=2, progress=False, **given)


def left(shift: float) -> torch.Tensor:
    with torch.no_grad():
        return (network()(INPUTS) - targets(shift)).square().mean(0)


def test_around_the_network_its_own_residuals_are_the_least_noise():
    posterior = fit(1.0)
    predicted, linear = posterior.predict(INPUTS[:5]), posterior.predict(INPUTS[:5], mean="linear")
    torch.testing.assert_close(predicted.noise_variance, left(1.0))
    torch.testing.assert_close(linear.noise_variance, posterior.likelihood.noise_std.square())
    assert bool((linear.noise_variance < 0.1 * predicted.noise_variance).all())
    told = " ".join(repr(posterior).split())
    assert f"training RMSE is {float(left(1.0)[0].sqrt()):.4g}, " in told
    assert 'predict(mean="linear")' in told


def test_at_its_minimum_the_noise_is_that_of_the_evidence():
    posterior = fit(0.0)
    found = posterior.predict(INPUTS[:5]).noise_variance
    torch.testing.assert_close(found, torch.maximum(posterior.likelihood.noise_std.square(), left(0.0)))
    torch.testing.assert_close(found, left(0.0), rtol=0.2, atol=0)  # of 400 numbers, 35 are fitted
    assert "training RMSE" not in repr(posterior)


@pytest.mark.parametrize(
    "changed",
    [
        lambda posterior: posterior.at(noise_std=torch.tensor([0.1, 0.2])),
        lambda posterior: posterior.tune((INPUTS[:50], targets(1.0)[:50])),
    ],
    ids=["given", "held out"],
)
def test_a_noise_that_was_given_or_tuned_on_held_out_data_stays_what_it_is(changed):
    posterior = changed(fit(1.0))
    torch.testing.assert_close(posterior.predict(INPUTS[:5]).noise_variance, posterior.likelihood.noise_std.square())


def test_it_follows_more_data_fewer_data_and_a_file(tmp_path):
    whole, y = fit(1.0), targets(1.0)
    some = lw.fit(network(), (INPUTS[:150], y[:150]), lw.Gaussian(per_output=True), draws=2, progress=False)
    more = some.update((INPUTS[150:], y[150:]))
    expected = whole.predict(INPUTS[:5]).noise_variance
    torch.testing.assert_close(more.predict(INPUTS[:5]).noise_variance, expected)
    fewer = whole.remove(range(150, N))
    torch.testing.assert_close(fewer.predict(INPUTS[:5]).noise_variance, some.predict(INPUTS[:5]).noise_variance)
    loaded = lw.load(whole.save(tmp_path / "posterior"), network())
    torch.testing.assert_close(loaded.predict(INPUTS[:5]).noise_variance, expected)
    assert torch.equal(whole.at(precision=3.0).predict(INPUTS[:5]).noise_variance, expected)
