"""A posterior without some of its data is the posterior of the others."""

import pytest
import torch

import lapwing as lw
from lapwing.bayes.methods import exact
from tests.bayes.posterior.test_updating import LIKELIHOODS, network, normal
from tests.problems import PROBLEMS

CLOSE = {"rtol": 1e-8, "atol": 1e-9}
GONE = [1, 3, 4]


def model_of(problem, likelihood, weights=None):
    return lw.LinearModel(
        problem.features, problem.targets, likelihood, weights=problem.weights if weights is None else weights
    )


def weightless(problem):
    weights = torch.as_tensor(problem.weights).double().clone()
    weights[GONE] = 0
    return weights


NOISES = {
    "one noise": lambda problem: lw.Gaussian(0.6),
    "noise per datum": lambda problem: lw.Gaussian(
        torch.linspace(0.3, 0.9, len(problem.targets)).double().reshape(-1, *[1] * (problem.targets.ndim - 1))
    ),
    "tuned": lambda problem: lw.Gaussian(),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_numbers_become_those_of_the_rest_path_by_path(name, noise):
    """A datum of weight zero is no datum, and keeps its place in the table of noise."""
    problem, likelihood = PROBLEMS[name], NOISES[noise](PROBLEMS[name])
    whole = lw.infer(model_of(problem, likelihood), prior=lw.Isotropic(0.7), draws=5)
    found = whole.remove(GONE)
    expected = lw.infer(model_of(problem, likelihood, weightless(problem)), prior=lw.Isotropic(0.7), draws=5)
    if noise == "tuned":
        expected = expected.at(noise_std=float(whole.likelihood.noise_std))
    torch.testing.assert_close(found.mean, expected.mean, **CLOSE)
    torch.testing.assert_close(found.draws, expected.draws, **CLOSE)
    torch.testing.assert_close(found.covariance, expected.covariance, **CLOSE)
    assert found.log_evidence.value == pytest.approx(expected.log_evidence.value, rel=1e-7)
    assert found.effective_dimension.value == pytest.approx(expected.effective_dimension.value, rel=1e-7)
    assert max(found.diagnostics.residuals) < 1e-9
    torch.testing.assert_close(found.leave_one_out().mean, expected.leave_one_out().mean, **CLOSE)
    m = problem.features.shape[0] // len(problem.targets)
    assert found.diagnostics.observations == whole.diagnostics.observations - 3 * m


def test_it_is_the_closed_form_of_the_rest():
    """By another route: (α I + ΦᵀΦ / σ²)⁻¹ of the rows that stay."""
    x, y = normal(17, 4, seed=1), normal(17, seed=2)
    found = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.5)), prior=lw.Isotropic(0.3)).remove(GONE)
    stay = [i for i in range(17) if i not in GONE]
    covariance = torch.linalg.inv(0.3 * torch.eye(4).double() + 4 * x[stay].mT @ x[stay])
    torch.testing.assert_close(found.covariance, covariance)
    torch.testing.assert_close(found.mean, covariance @ (4 * x[stay].mT @ y[stay]))
    spread = 0.25 * torch.eye(14).double() + x[stay] @ x[stay].mT / 0.3
    exact = torch.distributions.MultivariateNormal(torch.zeros(14).double(), spread).log_prob(y[stay])
    assert found.log_evidence.value == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("name", ["tall outputs", "wide outputs"])
def test_one_noise_per_output(name):
    problem, likelihood = PROBLEMS[name], lw.Gaussian(per_output=True)
    whole = lw.infer(model_of(problem, likelihood), prior=lw.Isotropic(0.7), draws=5)
    expected = lw.infer(model_of(problem, likelihood, weightless(problem)), prior=lw.Isotropic(0.7), draws=5)
    torch.testing.assert_close(
        whole.remove(GONE).draws, expected.at(noise_std=whole.likelihood.noise_std).draws, **CLOSE
    )


@pytest.mark.parametrize("method", [lw.Krylov(rtol=1e-7), lw.CG(rtol=1e-10), lw.Exact("svd")], ids=str)
def test_other_methods_agree_to_their_tolerance(method):
    problem = PROBLEMS["tall"]
    whole = lw.infer(model_of(problem, lw.Gaussian(0.6)), prior=lw.Isotropic(0.7), method=method, draws=5)
    expected = lw.infer(model_of(problem, lw.Gaussian(0.6), weightless(problem)), prior=lw.Isotropic(0.7), draws=5)
    torch.testing.assert_close(whole.remove(GONE).draws, expected.draws, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("method", [None, lw.Krylov(rtol=1e-7)], ids=["exact", "krylov"])
def test_networks_become_those_of_the_rest(kind, method):
    x, y = normal(23, 3, seed=1), normal(23, 3, seed=2)
    y = {"numbers": y, "classes": y.argmax(1), "labels": (y > 0).double()}[kind]
    options = {"prior": lw.Isotropic(2.0), "method": method, "draws": 5}
    found = lw.fit(network(3), (x, y), LIKELIHOODS[kind], **options).remove([20, 22, 21])
    expected = lw.fit(network(3), (x[:20], y[:20]), LIKELIHOODS[kind], **options)  # the last: noise has no gap
    torch.testing.assert_close(found.functions(x), expected.functions(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    # of a Krylov space the evidence is an estimate, from the noise of 23 data in one case and of 20 in the other
    assert found.log_evidence.value == pytest.approx(expected.log_evidence.value, abs=1e-4 if method is None else 1.5)


def test_what_was_added_can_be_removed_and_others_added_again():
    x, y = normal(19, 4, seed=1), normal(19, seed=2)
    options = {"prior": lw.Isotropic(0.3), "draws": 5}
    some = lw.infer(lw.LinearModel(x[:12], y[:12], lw.Gaussian(0.5)), **options)
    found = some.update((x[12:15], y[12:15])).remove([2, 13]).update((x[15:], y[15:])).remove([16])
    weights = torch.ones(19).double()
    weights[[2, 13, 16]] = 0
    expected = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.5), weights=weights), **options)
    torch.testing.assert_close(found.draws, expected.draws, **CLOSE)
    assert (found.diagnostics.observations, found.diagnostics.removed) == (16, 3)
    torch.testing.assert_close(some.update((x[12:], y[12:])).remove(range(12, 19)).draws, some.draws, **CLOSE)


def test_retuned_it_has_the_precisions_of_the_rest():
    x, y = normal(40, 4, seed=1), normal(40, seed=2)
    y[3] = 300.0
    found = lw.infer(lw.LinearModel(x, y, lw.Gaussian()), prior=lw.Isotropic()).remove([3], retune=True)
    keep = torch.arange(40) != 3
    expected = lw.infer(lw.LinearModel(x[keep], y[keep], lw.Gaussian()), prior=lw.Isotropic())
    assert float(found.prior.precision) == pytest.approx(float(expected.prior.precision), rel=1e-4)
    assert float(found.likelihood.noise_std) == pytest.approx(float(expected.likelihood.noise_std), rel=1e-4)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_loaded_posterior_is_shown_what_to_remove(kind, tmp_path):
    x, y = normal(23, 3, seed=1), normal(23, 3, seed=2)
    y = y if kind == "numbers" else y.argmax(1)
    whole = lw.fit(network(3), (x, y), LIKELIHOODS[kind], prior=lw.Isotropic(2.0), draws=5)
    loaded = lw.load(whole.save(tmp_path / "p"), network(3))
    found = loaded.remove(GONE, (x[GONE], y[GONE]))
    torch.testing.assert_close(found.functions(x), whole.remove(GONE).functions(x), rtol=1e-6, atol=1e-7)
    if kind == "numbers":
        with pytest.raises(ValueError, match="training data"):
            loaded.remove(GONE)
        with pytest.raises(ValueError, match="not among those"):
            loaded.remove([2], (9 * x[2:3], y[2:3]))
        with pytest.raises(ValueError, match="3 places of data to remove, and 2 data"):
            loaded.remove(GONE, (x[:2], y[:2]))


def test_what_cannot_be_removed_says_why():
    x, y = normal(11, 3, seed=1), normal(11, 2, seed=2)
    posterior = lw.infer(lw.LinearModel(x.repeat_interleave(2, 0), y, lw.Gaussian(0.5)), prior=lw.Isotropic(1.0))
    for wrong in ([11], [-1], [2, 2], [0.5], [], [[1]], torch.ones(4, dtype=torch.bool)):
        with pytest.raises(ValueError, match="places of data|a mask of shape"):
            posterior.remove(wrong)
    with pytest.raises(ValueError, match="removed before"):
        posterior.remove([3]).remove([3, 4])
    with pytest.raises(ValueError, match="no data are left"):
        posterior.remove(range(11))
    with pytest.raises(ValueError, match="fit it again"):
        lw.fit(network(3), (x, normal(11, 3, seed=3)), lw.Gaussian(0.5), method=lw.KFAC()).remove([0])
    mask = torch.arange(11) == 3
    torch.testing.assert_close(posterior.remove(mask).draws, posterior.remove([3]).draws)


EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "d"), [(6, 8), (17, 4)], ids=["wide", "tall"])
def test_features_in_single_precision_lose_only_its_round_off(n, d, seed, monkeypatch):
    """Rounded rows move each singular value by eps · σ_max, so weights by eps · κ, with a factor √n for all rows."""
    again, made = exact.ExactPosterior.summary, []
    monkeypatch.setattr(exact.ExactPosterior, "summary", lambda *given: made.append(0) or again(*given))
    x, y, options = normal(n, d, seed=seed).float(), normal(n, seed=seed + 50), {"prior": lw.Isotropic(1.0), "draws": 5}
    found = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.003)), **options).remove([2])
    assert bool(made) == (n < d)  # where each datum is all that is known in a direction
    keep = torch.arange(n) != 2
    weightless = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.003), weights=keep.double()), **options)
    left = x[keep].double()
    singular = torch.linalg.svdvals(left)
    close = 4 * n**0.5 * EPS * float(singular[0] / singular[-1])
    mean = torch.linalg.solve(torch.eye(d).double() + left.mT @ left / 0.003**2, left.mT @ y[keep] / 0.003**2)
    assert float((found.mean - mean).norm()) < close * float(mean.norm())
    assert float((found.draws - weightless.draws).norm()) < close * float(weightless.draws.norm())
    gamma = float((1 / (1 + 0.003**2 / singular.square())).sum())
    assert found.effective_dimension.value == pytest.approx(gamma, rel=close)


def loaded(tmp_path, x, y):
    return lw.load(lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.3)), prior=lw.Isotropic(1.0)).save(tmp_path / "p"))


def test_without_the_others_single_precision_says_what_it_cannot_tell(tmp_path):
    """Whether a direction is left is below round-off for fewer data than weights, and for no others."""
    x, y = normal(6, 8, seed=1).float(), normal(6, seed=2)
    for given in (x, x.double()):  # what the fit knew counts, not only what is shown
        with pytest.raises(ValueError, match="lost in the round-off of the features"):
            loaded(tmp_path, x, y).remove([2], (given[2:3], y[2:3]))
    x, y = normal(17, 4, seed=1).float(), normal(17, seed=2)
    keep = torch.arange(17) != 2
    expected = lw.infer(lw.LinearModel(x[keep], y[keep], lw.Gaussian(0.3)), prior=lw.Isotropic(1.0)).mean
    found = loaded(tmp_path, x, y).remove([2], (x[2:3], y[2:3])).mean
    singular = torch.linalg.svdvals(x[keep].double())
    assert float((found - expected).norm()) < 4 * 17**0.5 * EPS * float(singular[0] / singular[-1] * expected.norm())


def test_without_its_model_it_refuses_what_it_cannot_have_been_given(tmp_path):
    x = normal(50, 3, seed=1)
    y = x.sum(1) + 0.3 * normal(50, seed=2)
    whole = loaded(tmp_path, x, y)
    once = whole.remove([3], (x[3:4], y[3:4]))
    assert (once.diagnostics.observations, once.ledger.removed) == (49, (3,))
    for posterior in (once, lw.load(once.save(tmp_path / "once"))):
        with pytest.raises(ValueError, match=r"\[3\] were removed before"):
            posterior.remove([2, 3], (x[2:4], y[2:4]))
    with pytest.raises(ValueError, match="not among those"):
        whole.remove([3], (x[3:4] / 2, 30 * y[3:4]))
    with pytest.raises(ValueError, match="not among those"):
        whole.remove([3], lw.LinearModel(x[3:4] / 100, y[3:4], lw.Gaussian(0.3), weights=torch.tensor([51.0])))
    with pytest.raises(ValueError, match="no data are left"):
        whole.remove(range(50), (x, y))
    wide = loaded(tmp_path, x[:2], y[:2])
    with pytest.raises(ValueError, match="not among those"):  # what is no sum of the rows that were given
        wide.remove([1], (torch.linalg.cross(x[:1], x[1:2]), y[1:2]))


def test_an_outlier_leaves_no_trace_in_what_is_left(tmp_path):
    """Of leverage near one: round-off of the whole, beside what is left, is the error and no reason to refuse."""
    x, y = normal(50, 3, seed=1), normal(50, seed=2)
    x[3] *= 3e3
    keep = torch.arange(50) != 3
    expected = lw.infer(lw.LinearModel(x[keep], y[keep], lw.Gaussian(0.3)), prior=lw.Isotropic(1.0)).mean
    found = loaded(tmp_path, x, y).remove([3], (x[3:4], y[3:4])).mean
    whole, left = torch.linalg.svdvals(x).square(), torch.linalg.svdvals(x[keep]).square()
    close = 50 * torch.finfo(torch.float64).eps * float(whole[0] / left[-1])
    assert 1e-12 < close < 1e-7
    assert float((found - expected).norm()) < close * float(expected.norm())
