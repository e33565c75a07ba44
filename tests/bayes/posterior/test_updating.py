"""A posterior given more data is the posterior of all of them."""

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.problems import PROBLEMS

CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(problem, cut, likelihood=None):
    """Models of the first data, of the rest and of all."""
    m, n = problem.outputs, len(problem.targets)

    def model(start, stop):
        rows = problem.features[start * m : stop * m]
        noise = likelihood(start, stop) if likelihood else lw.Gaussian(0.6)
        return lw.LinearModel(rows, problem.targets[start:stop], noise, weights=problem.weights[start:stop])

    return model(0, cut), model(cut, n), model(0, n)


def check_same(found, expected, inputs, close=CLOSE):
    torch.testing.assert_close(found.mean, expected.mean, **close)
    torch.testing.assert_close(found.draws, expected.draws, **close)
    one, other = found.predict(inputs), expected.predict(inputs)
    torch.testing.assert_close(one.epistemic_variance, other.epistemic_variance, **close)
    torch.testing.assert_close(one.draws, other.draws, **close)
    assert found.log_evidence.value == pytest.approx(expected.log_evidence.value, rel=1e-7)
    assert found.effective_dimension.value == pytest.approx(expected.effective_dimension.value, rel=1e-7)
    assert found.diagnostics.observations == expected.diagnostics.observations


NOISES = {
    "one noise": None,
    "noise per datum": lambda start, stop: lw.Gaussian(torch.linspace(0.3, 0.9, 60).double()[start:stop, None]),
    "tuned": lambda start, stop: lw.Gaussian(),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_numbers_become_those_of_all_data_path_by_path(name, noise):
    problem = PROBLEMS[name]
    likelihood = NOISES[noise]
    if noise == "noise per datum" and problem.outputs == 1:
        likelihood = lambda start, stop: lw.Gaussian(torch.linspace(0.3, 0.9, 60).double()[start:stop])  # noqa: E731
    first, second, both = parts(problem, 4, likelihood)
    prior = lw.Isotropic(0.7)
    posterior = lw.infer(first, prior=prior, draws=5)
    expected = lw.infer(both, prior=prior, draws=5)
    if noise == "tuned":  # the noise stays what it was: all data at that noise
        expected = expected.at(noise_std=float(posterior.likelihood.noise_std))
    found = posterior.update(second)
    if noise == "noise per datum":
        found_prediction, expected_prediction = found.predict(problem.inputs), expected.predict(problem.inputs)
        torch.testing.assert_close(found_prediction.epistemic_variance, expected_prediction.epistemic_variance, **CLOSE)
    check_same(found, expected, problem.inputs)
    assert max(found.diagnostics.residuals) < 1e-9
    assert found.verify(problem.inputs).relative_error < 1e-6
    torch.testing.assert_close(found.leave_one_out().mean, expected.leave_one_out().mean, **CLOSE)


@pytest.mark.parametrize("name", ["tall outputs", "wide outputs"])
def test_one_noise_per_output(name):
    first, second, both = parts(PROBLEMS[name], 4, lambda a, b: lw.Gaussian(per_output=True))
    posterior = lw.infer(first, prior=lw.Isotropic(0.7), draws=5)
    expected = lw.infer(both, prior=lw.Isotropic(0.7), draws=5).at(noise_std=posterior.likelihood.noise_std)
    check_same(posterior.update(second), expected, PROBLEMS[name].inputs)


def test_one_datum_after_another_is_all_at_once():
    problem = PROBLEMS["tall"]
    first, _, both = parts(problem, 10)
    found = lw.infer(first, prior=lw.Isotropic(0.7), draws=5)
    for i in range(10, len(problem.targets)):
        more = lw.LinearModel(
            problem.features[i : i + 1],
            problem.targets[i : i + 1],
            lw.Gaussian(0.6),
            weights=problem.weights[i : i + 1],
        )
        found = found.update(more)
    check_same(found, lw.infer(both, prior=lw.Isotropic(0.7), draws=5), problem.inputs)
    assert found.diagnostics.updates == len(problem.targets) - 10


def test_retuned_it_has_the_precisions_of_all_data():
    problem = PROBLEMS["tall"]
    first, second, both = parts(problem, 10, lambda a, b: lw.Gaussian())
    found = lw.infer(first, prior=lw.Isotropic(), draws=5).update(second, retune=True)
    expected = lw.infer(both, prior=lw.Isotropic(), draws=5)
    assert float(found.prior.precision) == pytest.approx(float(expected.prior.precision), rel=1e-4)
    assert float(found.likelihood.noise_std) == pytest.approx(float(expected.likelihood.noise_std), rel=1e-4)
    assert found.diagnostics.tuned_by == "evidence"
    kept = lw.infer(first, prior=lw.Isotropic(), draws=5).update(second)
    assert kept.diagnostics.tuned_by == "evidence, before the update"


@pytest.mark.parametrize("method", [lw.Krylov(rtol=1e-6), lw.CG(rtol=1e-10)], ids=["krylov", "cg"])
@pytest.mark.parametrize("name", ["tall", "wide outputs"])
def test_matrix_free_methods_agree_to_their_tolerance(name, method):
    first, second, both = parts(PROBLEMS[name], 4)
    prior, inputs = lw.Isotropic(0.7), PROBLEMS[name].inputs
    found = lw.infer(first, prior=prior, method=method, draws=5).update(second)
    expected = lw.infer(both, prior=prior, method=method, draws=5)
    torch.testing.assert_close(found.draws, expected.draws, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.predict(inputs).draws, expected.predict(inputs).draws, rtol=1e-5, atol=1e-5)
    exact = lw.infer(both, prior=prior, draws=5)
    torch.testing.assert_close(found.draws, exact.draws, rtol=1e-5, atol=1e-6)


def test_conjugate_gradients_start_from_where_they_were():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 60, generator=generator, dtype=torch.float64) * torch.logspace(-2, 0, 60).double()
    y = x.sum(1) + torch.randn(400, generator=generator, dtype=torch.float64)
    prior, method = lw.Isotropic(0.01), lw.CG(rtol=1e-4)
    some = lw.infer(lw.LinearModel(x[:396], y[:396], lw.Gaussian(1.0)), prior=prior, method=method, draws=4)
    fresh = lw.infer(lw.LinearModel(x, y, lw.Gaussian(1.0)), prior=prior, method=method, draws=4)
    found = some.update((x[396:], y[396:]))
    assert found.diagnostics.data_passes < fresh.diagnostics.data_passes
    assert max(found.diagnostics.residuals) < 1e-4


def network(outputs: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double().eval()


LIKELIHOODS = {"numbers": lw.Gaussian(0.5), "classes": lw.Categorical(), "labels": lw.Bernoulli()}


def of_network(kind):
    x, y = normal(23, 3, seed=1), normal(23, 3, seed=2)
    targets = {"numbers": y, "classes": y.argmax(1), "labels": (y > 0).double()}[kind]
    return network(3), x, targets, LIKELIHOODS[kind]


@pytest.mark.parametrize("method", [None, lw.Krylov(rtol=1e-7), lw.CG(rtol=1e-10)], ids=["exact", "krylov", "cg"])
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_networks_become_those_of_all_data(kind, method):
    """With few data the loss of labels has as many coordinates as rows, with many as weights."""
    model, x, y, likelihood = of_network(kind)
    options = {"prior": lw.Isotropic(2.0), "method": method, "draws": 5}
    expected = lw.fit(model, (x, y), likelihood, **options)
    evidence = pytest.approx(expected.log_evidence.value, abs=1e-4 if method is None else 1.5)
    for cut in (5, 14):
        found = lw.fit(model, (x[:cut], y[:cut]), likelihood, **options).update((x[cut:], y[cut:]))
        torch.testing.assert_close(found.functions(x), expected.functions(x), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
        assert found.log_evidence.value == evidence
        if kind != "numbers":
            torch.testing.assert_close(found.predict(x).probs, expected.predict(x).probs, rtol=1e-6, atol=1e-6)
        if method is None:
            one, other = found.leave_one_out(), expected.leave_one_out()
            torch.testing.assert_close(one.mean, other.mean, rtol=1e-5, atol=1e-6)


def test_the_mode_of_labels_starts_from_the_one_before():
    model, x, y, likelihood = of_network("classes")
    some = lw.fit(model, (x[:22], y[:22]), likelihood, prior=lw.Isotropic(2.0), curvature="network")
    assert some.update((x[22:], y[22:])).diagnostics.mode_steps < some.diagnostics.mode_steps


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_loaded_posterior_can_be_updated(kind, tmp_path):
    model, x, y, likelihood = of_network(kind)
    some = lw.fit(model, (x[:14], y[:14]), likelihood, prior=lw.Isotropic(2.0), draws=5)
    found = lw.load(some.save(tmp_path / "p"), model).update((x[14:], y[14:]))
    expected = lw.fit(model, (x, y), likelihood, prior=lw.Isotropic(2.0), draws=5)
    torch.testing.assert_close(found.functions(x), expected.functions(x), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)


def test_loaders_and_linear_models_are_data_too():
    model, x, y, likelihood = of_network("numbers")
    some = lw.fit(model, (x[:14], y[:14]), likelihood, prior=lw.Isotropic(2.0), draws=5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[14:], y[14:]), batch_size=4)
    expected = some.update((x[14:], y[14:])).draws
    torch.testing.assert_close(some.update(loader).draws, expected, **CLOSE)
    torch.testing.assert_close(some.update(lw.linearise(model, loader, likelihood)).draws, expected, **CLOSE)


def test_a_design_matrix_of_labels_moves_its_curvature():
    """B is taken at the mode, which more data move."""
    x, y = normal(31, 4, seed=1), (normal(31, seed=2) > 0).double()
    options = {"prior": lw.Isotropic(0.5), "draws": 5}
    found = lw.infer(lw.LinearModel(x[:20], y[:20], lw.Bernoulli()), **options).update((x[20:], y[20:]))
    expected = lw.infer(lw.LinearModel(x, y, lw.Bernoulli()), **options)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-7)


def test_what_cannot_be_updated_says_what_to_do(tmp_path):
    model, x, y, likelihood = of_network("numbers")
    some, rest = (x[:14], y[:14]), (x[14:], y[14:])
    with pytest.raises(ValueError, match="fit it again on all"):
        lw.fit(model, some, likelihood, method=lw.KFAC()).update(rest)
    by_cg = lw.fit(model, some, likelihood, method=lw.CG())
    with pytest.raises(ValueError, match=r"retune=True is for Exact\(\)"):
        by_cg.update(rest, retune=True)
    with pytest.raises(ValueError, match="fit it again"):
        lw.load(by_cg.save(tmp_path / "p"), model).update(rest)
    krylov = lw.fit(model, some, likelihood, method=lw.Krylov())
    with pytest.raises(ValueError, match="does not carry its training data"):
        lw.load(krylov.save(tmp_path / "p"), model).update(rest)
    exact = lw.fit(model, some, likelihood, prior=lw.Isotropic(1.0))
    with pytest.raises(ValueError, match="do not fit the 27 outputs"):
        exact.update((x[14:], y[14:, :2]))
    other = network(3)
    other[0].weight.data.add_(1.0)
    with pytest.raises(ValueError, match="other weights"):
        exact.update(lw.linearise(other, rest, likelihood))
    with pytest.raises(ValueError, match="Categorical"):
        exact.update(lw.linearise(model, (x, y.argmax(1)), lw.Categorical()))
    with pytest.raises(ValueError, match="was given"):
        exact.update(lw.linearise(model, rest, lw.Gaussian()))
