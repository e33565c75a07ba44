"""The classic loop: fixed points, stationarity and evidence against plain dense formulas."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from lapwing import Exact, Isotropic, LinearModel, infer
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.families import mackay
from lapwing.training import log_prob
from tests.properties import check_covariance


def wave(n=41, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 2
    return x, torch.sin(2 * x) + 0.15 * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def network(hidden, inputs=1, outputs=1, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def flat_outputs(model, x):
    names, shapes = zip(*[(name, weight.shape) for name, weight in model.named_parameters()], strict=True)
    flat = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])

    def outputs(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return functional_call(model, weights, (x,))

    return outputs, flat


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_training_ends_at_mackays_fixed_point(curvature):
    (x, y), model = wave(), network(3)
    found = mackay.train(
        model, (x, y), Gaussian(), curvature=curvature, cycles=60, steps=400, rtol=1e-5, progress=False
    )
    assert found.converged
    outputs, w = flat_outputs(found.model, x)
    alpha, beta = found.posterior.precision, float(found.posterior.likelihood.noise_std) ** -2

    def loss(vector):
        return 0.5 * beta * (outputs(vector) - y).square().sum()

    slope = torch.autograd.functional.jacobian(loss, w) + alpha * w
    assert float(slope.abs().max()) < 1e-3
    jacobian = torch.autograd.functional.jacobian(outputs, w).reshape(len(x), -1)
    matrix = beta * jacobian.mT @ jacobian if curvature == "ggn" else torch.autograd.functional.hessian(loss, w)
    gamma = torch.linalg.solve(matrix + alpha * torch.eye(len(w)).double(), matrix).trace()
    assert found.posterior.effective_dimension == pytest.approx(float(gamma), rel=1e-8)
    assert alpha == pytest.approx(float(gamma / w.square().sum()), rel=1e-4)
    residuals = float((outputs(w) - y).square().sum())
    assert beta == pytest.approx((len(x) - float(gamma)) / residuals, rel=1e-4)
    evidence = 0.5 * (
        len(x) * math.log(beta / (2 * math.pi)) - beta * residuals - alpha * float(w.square().sum())
        + len(w) * math.log(alpha) - float(torch.linalg.slogdet(matrix + alpha * torch.eye(len(w)).double()).logabsdet)
    )  # fmt: skip
    assert found.posterior.log_evidence == pytest.approx(evidence, rel=1e-9)
    torch.testing.assert_close(
        found.posterior.covariance, torch.linalg.inv(matrix + alpha * torch.eye(len(w)).double()), rtol=1e-6, atol=1e-9
    )


def test_a_linear_model_gives_the_maximum_of_its_exact_evidence():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(31, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.0], [0.5]]).double() + torch.randn(31, 1, generator=generator).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 1, bias=False).double()
    truth = infer(LinearModel(x, y[:, 0], Gaussian()), prior=Isotropic(), method=Exact())
    for curvature in ("ggn", "hessian"):  # they are equal here
        found = mackay.train(model, (x, y), Gaussian(), curvature=curvature, rtol=1e-7, cycles=100, progress=False)
        assert found.posterior.precision == pytest.approx(float(truth.prior.precision), rel=1e-5)
        assert float(found.posterior.likelihood.noise_std) == pytest.approx(float(truth.likelihood.noise_std), rel=1e-5)
        assert found.posterior.log_evidence == pytest.approx(truth.log_evidence.value, abs=1e-6)
        assert found.posterior.effective_dimension == pytest.approx(truth.effective_dimension.value, rel=1e-5)
        torch.testing.assert_close(found.posterior.covariance, truth.covariance, rtol=1e-4, atol=1e-8)


@pytest.mark.slow
def test_equal_effective_dimensions_say_that_the_smaller_network_was_enough():
    data = wave(60)
    models = {f"{hidden} units": network(hidden) for hidden in (1, 3, 8)}
    found = mackay.compare(models, data, Gaussian(), cycles=40, progress=False)
    gamma = {name: fit.posterior.effective_dimension for name, fit in found.fits.items()}
    assert gamma["3 units"] > 1.5 * gamma["1 units"]
    assert gamma["8 units"] == pytest.approx(gamma["3 units"], rel=0.05)
    assert found.best in ("3 units", "8 units")
    assert found.fits[found.best].posterior.log_evidence == max(f.posterior.log_evidence for f in found.fits.values())
    assert any("8 units: it determines no more weights than 3 units" in line for line in found.advice)


def test_a_network_that_is_too_small_is_advised_to_grow():
    x, noise = wave(60)
    data = (x, 1.5 * torch.tanh(2 * x + 0.5) + 0.3 + 0.02 * noise)
    found = mackay.train(network(1), data, Gaussian(), cycles=40, progress=False)
    assert found.posterior.effective_dimension > 0.9 * 4
    assert "may be too small" in found.advice
    assert mackay.compare({"a": network(1)}, data, Gaussian(), cycles=40, progress=False).advice == (
        f"a: {found.advice}",
    )


def test_an_indefinite_hessian_is_refused_and_the_gauss_newton_matrix_is_not():
    x, y = wave()
    model = network(6, seed=3).eval()  # not trained
    with pytest.raises(ValueError, match="the Hessian is not positive definite: its smallest eigenvalue is -"):
        mackay.fit(model, (x, y), Gaussian(0.1), curvature="hessian", precision=1e-3)
    outputs, w = flat_outputs(model, x)
    matrix = torch.autograd.functional.hessian(lambda v: 50 * (outputs(v) - y).square().sum(), w)
    lowest = float(torch.linalg.eigvalsh(matrix)[0])
    assert lowest < 0
    assert mackay.fit(model, (x, y), Gaussian(0.1), precision=1e-3).values.min() > -1e-9
    found = mackay.fit(model, (x, y), Gaussian(0.1), curvature="hessian", precision=-lowest + 1)
    assert float(found.values.min()) == pytest.approx(lowest, rel=1e-6)
    torch.testing.assert_close(
        found.covariance, torch.linalg.inv(matrix + found.precision * torch.eye(len(w)).double()), rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_class_labels_have_no_noise_and_a_fixed_point_of_their_own(likelihood):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(37, 2, generator=generator, dtype=torch.float64)
    score = x[:, :1] + 0.7 * torch.randn(37, 1, generator=generator, dtype=torch.float64)
    y = (score[:, 0] > 0).long() if isinstance(likelihood, Categorical) else (score > 0).double()
    model = network(4, 2, 3 if isinstance(likelihood, Categorical) else 1)
    found = mackay.train(model, (x, y), likelihood, cycles=60, rtol=1e-6, progress=False)
    w = torch.cat([weight.detach().reshape(-1) for weight in found.model.parameters()])
    assert found.posterior.precision == pytest.approx(
        found.posterior.effective_dimension / float(w.square().sum()), rel=1e-4
    )
    outputs = found.model(x).detach()
    expected = float(log_prob(likelihood, outputs, y)) - 0.5 * found.posterior.precision * float(w.square().sum())
    expected -= 0.5 * float((found.posterior.values / found.posterior.precision).log1p().sum())
    assert found.posterior.log_evidence == pytest.approx(expected, rel=1e-8)
    assert found.cycles[-1].noise_std is None
    probs = found.posterior.predict(x).probs
    confidence, bare = (
        part.maximum(1 - part) for part in (probs, outputs.softmax(1) if probs.shape[1] > 1 else outputs.sigmoid())
    )
    assert bool((confidence.mean() < bare.mean()).all())


@pytest.mark.parametrize("curvature", ["ggn", "hessian", "empirical fisher"])
def test_predictions_are_those_of_the_dense_covariance(curvature):
    (x, y), new = wave(), torch.linspace(-3, 3, 7).double()[:, None]
    model = mackay.train(network(3), (x, y), Gaussian(0.15), precision=0.5, steps=500, progress=False).model
    found = mackay.fit(model, (x, y), Gaussian(0.15), curvature=curvature, precision=0.5, draws=4000)
    outputs, w = flat_outputs(model, new)
    jacobian = torch.autograd.functional.jacobian(outputs, w).reshape(len(new), -1)
    covariance = jacobian @ found.covariance @ jacobian.mT
    prediction = found.predict(new)
    torch.testing.assert_close(prediction.epistemic_variance[:, 0], covariance.diagonal(), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(prediction.variance, prediction.epistemic_variance + 0.15**2)
    torch.testing.assert_close(prediction.prior_variance[:, 0], jacobian.square().sum(1) / 0.5)
    check_covariance((found.functions(new) - model(new).detach())[..., 0].mT, covariance)


def test_a_trained_network_alone_is_tuned_at_its_weights():
    (x, y), model = wave(), network(3)
    model = mackay.train(model, (x, y), Gaussian(), progress=False).model
    before = deepcopy(model.state_dict())
    found = mackay.fit(model, (x, y), Gaussian())
    w = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    residuals = float((model(x) - y).square().sum().detach())
    assert found.precision == pytest.approx(found.effective_dimension / float(w.square().sum()), rel=1e-8)
    beta = float(found.likelihood.noise_std) ** -2
    assert beta == pytest.approx((len(x) - found.effective_dimension) / residuals, rel=1e-8)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_single_precision_is_trained_in_double_and_given_back():
    x, y = wave()
    model = network(3).float()
    found = mackay.train(model, (x.float(), y.float()), Gaussian(), cycles=2, progress=False)
    assert not found.converged
    assert found.posterior.precision == found.cycles[-1].precision
    assert {weight.dtype for weight in found.model.parameters()} == {torch.float32}
    assert found.posterior.predict(x.float()).mean.dtype == torch.float32
    again = mackay.train(network(3).float(), (x.float(), y.float()), Gaussian(), cycles=2, progress=False)
    assert again.posterior.log_evidence == found.posterior.log_evidence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curvature": "kfac"}, "curvature is 'kfac', expected 'ggn'"),
        ({"cycles": 0}, "cycles is 0"),
        ({"precision": -1.0}, "precision is -1.0"),
        ({"start_precision": float("inf")}, "start_precision is inf"),
        ({"curvature": "empirical fisher"}, "does not scale with a noise precision"),
    ],
)
def test_what_cannot_be_done_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        mackay.train(network(2), wave(), Gaussian(), progress=False, **options)


def test_large_networks_and_no_networks_are_refused():
    with pytest.raises(ValueError, match="dense curvatures are for at most 5,000"):
        mackay.train(network(100, 60), (torch.zeros(2, 60).double(), torch.zeros(2, 1)), Gaussian(1.0), progress=False)
    with pytest.raises(ValueError, match="no networks to compare"):
        mackay.compare({}, wave(), Gaussian())
