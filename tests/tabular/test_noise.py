"""Noise that depends on the inputs: found where there is a pattern, constant where there is none."""

import numpy as np
import pytest
import torch

from lapwing.tabular import BayesianMLPRegressor
from lapwing.tabular.networks import initial
from lapwing.tabular.noise import LARGEST_LOG_VARIANCE, InputNoise
from tests.tabular import reference

RANDOM = np.random.default_rng(8)
X = np.stack([np.linspace(-2, 2, 300), RANDOM.normal(size=300)], axis=1)
STD = 0.1 * np.exp(0.8 * X[:, 0])  # from 0.02 to 0.5
Y = np.sin(2 * X[:, 0]) + STD * RANDOM.normal(size=300)
CALM = np.sin(2 * X[:, 0]) + 0.1 * RANDOM.normal(size=300)
SMALL = {"hidden_units": 8, "members": 3, "max_iter": 40}


@pytest.fixture(scope="module")
def fitted():
    return BayesianMLPRegressor(**SMALL, noise="input").fit(X, np.stack([Y, CALM], axis=1))


def test_a_pattern_is_found_and_calm_noise_is_left_alone(fitted):
    """300 squares of normals, spread over a straight line of log variances, tell its ends to about a third."""
    _, std = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(np.log(std[20:-20, 0] / STD[20:-20]), 0, atol=0.5)
    np.testing.assert_allclose(np.log(std[20:-20, 1] / 0.1), 0, atol=0.5)
    assert std[:, 1].max() / std[:, 1].min() < 2
    assert 0.1 < fitted.noise_std_[0] < 0.35
    assert fitted.noise_std_[1] == pytest.approx(0.1, rel=0.2)


def test_new_rows_are_likelier_than_under_one_noise_for_all():
    new = np.random.default_rng(9)
    x = np.stack([new.uniform(-2, 2, 500), new.normal(size=500)], axis=1)
    y = np.sin(2 * x[:, 0]) + 0.1 * np.exp(0.8 * x[:, 0]) * new.normal(size=500)
    by_input, constant = (
        BayesianMLPRegressor(**SMALL, noise=noise).fit(X, Y).log_predictive_density(x, y).mean()
        for noise in ("input", "constant")
    )
    assert by_input > constant + 0.2


def test_predictions_are_those_of_the_dense_posterior_with_this_noise(fitted):
    found, encoding = fitted._networks, fitted._encoding
    x = torch.from_numpy((X - encoding.mean) / encoding.scale)
    new = x[::60] + 0.1
    shapes = [tuple(layer.shape[1:]) for layer in found.networks.of]
    at_rows, at_new = found.noise.variance(x), found.noise.variance(new)
    mixture = found.predict(new)
    for network, weights in enumerate(found.networks.flat()):
        target, member = divmod(network, 3)
        alpha = found.precision[network]
        prior = torch.cat([alpha[:3].repeat(8), alpha[3].repeat(8), alpha[4:]])
        beta = found.noise_precision[network]
        H = reference.precision(weights, shapes, x, torch.ones(300).double(), prior, beta, at_rows[target])
        J = reference.jacobian(weights, shapes, new)
        variance = (J @ torch.linalg.inv(H) @ J.T).diagonal() + at_new[target] / beta
        std = mixture.stds[member, :, target] / found.units.scale[target]
        torch.testing.assert_close(std, variance.sqrt(), rtol=1e-7, atol=0)


def test_draws_have_the_standard_deviation_of_the_prediction(fitted):
    draws = fitted.sample_y(X[::50], 20_000, random_state=3)
    mean, std = fitted.predict(X[::50], return_std=True)
    squares = (draws - mean[:, :, None]) ** 2
    assert (np.abs(squares.mean(2) - std**2) <= 5 * squares.std(2) / 20_000**0.5).all()


def test_it_is_kept_in_files(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = BayesianMLPRegressor.load(tmp_path / "model")
    assert again.noise == "input"
    for ours, theirs in zip(again.predict(X, return_std=True), fitted.predict(X, return_std=True), strict=True):
        assert (ours == theirs).all()


def test_log_variances_are_bounded():
    huge = InputNoise(
        initial((2, 3, 1), [torch.Generator().manual_seed(k) for k in range(6)]),
        torch.tensor([1e6, -1e6], dtype=torch.float64),
    )
    logs = huge.variance(torch.ones(4, 2, dtype=torch.float64)).log()
    torch.testing.assert_close(logs.abs(), torch.full_like(logs, LARGEST_LOG_VARIANCE))


class TestKnown:
    @pytest.mark.parametrize("noise", [0.3, 0.1])
    def test_noise_that_is_given_is_kept(self, noise):
        """In the targets' units, whatever the rows would say; for each of two targets."""
        model = BayesianMLPRegressor(**SMALL, noise=noise).fit(X, np.stack([Y, CALM], axis=1))
        np.testing.assert_allclose(model.noise_std_, noise, rtol=1e-12)
        _, std = model.predict(X, return_std=True)
        assert (std > noise).all()

    def test_simulations_are_interpolated(self):
        """Without noise the networks pass through their rows as nearly as a thousandth of their spread allows."""
        x = np.random.default_rng(1).uniform(-2, 2, size=(20, 2))
        y = np.sin(2 * x[:, 0]) + x[:, 1] ** 2
        model = BayesianMLPRegressor(hidden_units=12, members=2, noise=0.0).fit(x, y)
        assert model.noise_std_ == pytest.approx(1e-3 * y.std(), rel=1e-9)
        mean, std = model.predict(x, return_std=True)
        assert np.abs(mean - y).max() < 0.02 * y.std()
        _, away = model.predict(x + 1.5, return_std=True)
        assert np.median(away) > 10 * np.median(std)

    def test_further_rows_keep_it(self):
        model = BayesianMLPRegressor(**SMALL, noise=0.2).fit(X[::2], Y[::2]).partial_fit(X[1::2], Y[1::2])
        assert model.noise_std_ == pytest.approx(0.2, rel=1e-9)

    def test_negative_noise_is_refused(self):
        with pytest.raises(ValueError, match="noise"):
            BayesianMLPRegressor(noise=-0.1).fit(X, Y)
