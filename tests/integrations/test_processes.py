"""Fitted models as Gaussian processes: the same means and variances, joint, and with gradients in the inputs."""

import numpy as np
import pandas
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

import lapwing as lw
from lapwing.integrations.processes import HalfCircles, NetworkProcess, TableProcess, process_of
from lapwing.tabular import BayesianMLPRegressor
from lapwing.tabular.curvature import _by_weight
from lapwing.tabular.networks import linearised

D, HIDDEN, MEMBERS = 3, 5, 2


def table(rows: int, targets: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, D))
    y = np.stack([np.sin((1 + t) * X[:, 0]) + X[:, 1] * X[:, 2] for t in range(targets)], axis=1)
    y = 10 + 4 * y + 0.3 * random.normal(size=y.shape)
    return X, y[:, 0] if targets == 1 else y


def estimator(rows: int, targets: int = 1, noise: str = "constant") -> BayesianMLPRegressor:
    X, y = table(rows, targets)
    return BayesianMLPRegressor(hidden_units=HIDDEN, members=MEMBERS, max_iter=15, noise=noise).fit(X, y)


def network_posterior(outputs: int, method: object = None) -> tuple[nn.Module, lw.Posterior]:
    X, y = table(17, max(outputs, 1))
    x, targets = torch.from_numpy(X), torch.from_numpy(y.reshape(len(X), -1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(D, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)).double().eval()
    return model, lw.fit(model, (x, targets), lw.Gaussian(0.7), method=method, progress=False)


@pytest.mark.parametrize(("rows", "targets"), [(11, 1), (60, 1), (11, 2)], ids=["rows", "weights", "two targets"])
def test_networks_of_a_table_have_their_own_means_and_variances(rows, targets):
    """To 1e-8: variances from a matrix of the rows are differences of the prior's."""
    found = estimator(rows, targets)
    process = TableProcess.of(found)
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mixture = found._networks.predict(found._inputs(x.numpy()))
    torch.testing.assert_close(process.mean(x), mixture.means, rtol=1e-10, atol=1e-10)
    variance = process.features(x).square().sum(-1) + process.noise_variance(x)
    torch.testing.assert_close(variance, mixture.stds.square(), rtol=1e-8, atol=0)


def test_noise_that_depends_on_inputs_is_that_of_the_estimator():
    found = estimator(60, noise="input")
    process = TableProcess.of(found)
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mixture = found._networks.predict(found._inputs(x.numpy()))
    variance = process.features(x).square().sum(-1) + process.noise_variance(x)
    torch.testing.assert_close(variance, mixture.stds.square(), rtol=1e-8, atol=0)
    assert float(process.noise_variance(x).std()) > 0


@pytest.mark.parametrize("rows", [11, 60])
def test_the_root_of_the_weights_is_one_of_the_dense_inverse(rows):
    """(RᵀR + 1/v)⁻¹ by a dense inverse of the Jacobian's own rows."""
    found = estimator(rows)
    known, data = found._networks.known, found._data
    R = linearised(found._networks.networks, data.inputs)[1].dense() * data.weights.sqrt()[:, None]
    shapes = tuple((layer.shape[1], layer.shape[2]) for layer in found._networks.networks.of)
    precision = R.mT @ R + torch.diag_embed(1 / _by_weight(known.variances, shapes))
    unit = torch.eye(precision.shape[1], dtype=torch.float64).expand_as(precision)
    root = known.weight_root().after(unit)
    expected = torch.linalg.inv(precision)
    torch.testing.assert_close(root @ root.mT, expected, rtol=0, atol=1e-7 * float(expected.abs().max()))


@pytest.mark.parametrize(("outputs", "method"), [(1, None), (2, None), (2, lw.KFAC())], ids=["one", "two", "KFAC"])
def test_networks_have_the_means_and_variances_of_their_posterior(outputs, method):
    model, posterior = network_posterior(outputs, method)
    process = process_of(posterior)
    assert isinstance(process, NetworkProcess)
    assert (process.members, process.outputs, process.inputs) == (1, outputs, D)
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(process.mean(x)[0], model(x), rtol=1e-12, atol=1e-12)
    features = process.features(x)[0].flatten(0, 1)
    prediction = posterior.predict(x)
    own = features.square().sum(1).reshape(4, outputs)
    torch.testing.assert_close(own, prediction.epistemic_variance.reshape(4, outputs), rtol=1e-8, atol=1e-12)
    assert float((process.noise_variance(x) - 0.49).abs().max()) < 1e-12


def test_several_networks_are_several_members():
    _, one = network_posterior(1)
    _, two = network_posterior(1)
    process = process_of(lw.Mixture((one, two)))
    assert process.members == 2
    x = torch.zeros(2, D, dtype=torch.float64)
    assert process.features(x).shape[:3] == (2, 2, 1)


def on_circles(rows=11):
    """A process over a box with sides of several lengths."""
    bounds = torch.stack([torch.full((D,), -4.0), torch.arange(4.0, 4.0 + D)]).double()
    X, y = table(rows)
    share = (X + 4) / (bounds[1] - bounds[0]).numpy()
    inputs = np.concatenate([np.cos(np.pi * share), np.sin(np.pi * share)], axis=1)
    fitted = BayesianMLPRegressor(members=2, hidden_units=5, max_iter=15, verbose=False).fit(inputs, y)
    return HalfCircles(process_of(fitted), bounds), fitted, X, inputs


def test_a_box_is_read_as_places_on_half_circles():
    """The mean and the variance of the mixture are those that the estimator predicts for cosines and sines."""
    process, fitted, X, inputs = on_circles()
    assert process.inputs == D
    means, features = process.mean(torch.from_numpy(X)), process.features(torch.from_numpy(X))
    mixture = fitted._mixture(inputs)
    torch.testing.assert_close(means.mean(0), mixture.mean)
    inside = features.square().sum(-1) + process.noise_variance(torch.from_numpy(X))
    variance = inside.mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(variance[:, 0].sqrt(), torch.from_numpy(fitted.predict(inputs, return_std=True)[1]))


MADE = {"table": lambda: estimator(11), "network": lambda: network_posterior(1)[1], "box": lambda: on_circles()[0]}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_means_and_deviations_have_gradients(make):
    """Central differences with a step of 1e-5: an error of its square, and round-off of 1e-11 over it."""
    process = process_of(make())

    def value(x: torch.Tensor) -> torch.Tensor:
        return process.mean(x).sum() + process.features(x).square().sum(-1).sqrt().sum()

    x = torch.randn(2, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(value(x), x)
    for row in range(2):
        for column in range(D):
            step = torch.zeros_like(x)
            step[row, column] = 1e-5
            with torch.no_grad():
                change = (value(x + step) - value(x - step)) / 2e-5
            assert float(gradient[row, column]) == pytest.approx(float(change), rel=1e-5, abs=1e-5)


def test_what_cannot_be_a_surrogate_is_refused():
    X, y = table(30)
    frame = pandas.DataFrame({"a": X[:, 0], "kind": ["p", "q", "r"] * 10})
    with pytest.raises(ValueError, match="categories"):
        process_of(BayesianMLPRegressor(members=1, max_iter=3).fit(frame, y))
    with pytest.raises(ValueError, match="given Ridge"):
        process_of(Ridge())
    model, _ = network_posterior(3)
    x = torch.from_numpy(X)
    labels = torch.arange(30) % 3
    with pytest.raises(ValueError, match="Categorical"):
        process_of(lw.fit(model, (x, labels), lw.Categorical(), progress=False))
    drawn = lw.fit(model, (x, model(x).detach()), lw.Gaussian(0.5), method=lw.Krylov(), progress=False)
    with pytest.raises(ValueError, match="Exact"):
        process_of(drawn)
