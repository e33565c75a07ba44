"""Krylov, CG and SGD against the exact posterior: path by path where they converge, within stated errors where not."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch

from lapwing import CG, SGD, Exact, Gaussian, GPrior, Isotropic, Krylov, LinearModel, PerGroup, infer
from lapwing.bayes.methods import choosing
from lapwing.linalg import krylov as space_of
from lapwing.linalg.estimators import inverse_root
from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, Stacked
from lapwing.runtime.memory import counting_on
from tests.problems import PROBLEMS, TALL, linear
from tests.properties import check_covariance

MEDIUM = linear(150, 2, 90, noise_std=1.0, seed=3)  # deep enough for a space of 9 columns to be truncated
WIDER = linear(70, 2, 210, noise_std=1.0, signal=2.0, seed=4)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("prior", [Isotropic(), GPrior(), Isotropic(0.7)], ids=["isotropic", "g-prior", "given"])
@pytest.mark.parametrize("likelihood", [Gaussian(), Gaussian(0.8)], ids=["noise tuned", "noise given"])
def test_a_converged_space_is_the_exact_posterior(name, prior, likelihood):
    data = PROBLEMS[name]
    model = LinearModel(data.features, data.targets, likelihood, weights=data.weights)
    exact = infer(model, prior=prior, draws=3)
    krylov = infer(model, prior=prior, draws=3, method=Krylov(rtol=1e-7))
    assert krylov.diagnostics.converged
    at = {"precision": float(exact.prior.precision), "noise_std": exact.likelihood.noise_std}
    if bool(exact.prior.precision.isfinite()):
        there = krylov.at(**at)
        assert relative(there.draws, exact.draws) < 1e-6
        assert relative(there.functions(data.inputs), exact.functions(data.inputs)) < 1e-6
        complete = krylov.diagnostics.directions == min(data.features.shape)
        if complete:  # then its values are the eigenvalues, and nothing is estimated
            assert there.log_evidence.value == pytest.approx(exact.log_evidence.value, rel=1e-9)
            assert krylov.effective_dimension.value == pytest.approx(exact.effective_dimension.value, rel=1e-4)
            assert krylov.effective_dimension.standard_error == 0


@pytest.mark.parametrize("data", [MEDIUM, WIDER], ids=["tall", "wide"])
def test_truncated_sums_are_within_their_standard_errors(data):
    """γ and log evidence at fixed precisions over 30 seeds: unbiased, with errors of the size that is stated."""
    model = LinearModel(data.features, data.targets, Gaussian(1.5))
    exact = infer(model, prior=Isotropic(4.0), draws=0)
    scores = {"effective_dimension": [], "log_evidence": []}
    for seed in range(30):
        krylov = infer(model, prior=Isotropic(4.0), draws=4, seed=seed, method=Krylov(rtol=1e-3))
        assert krylov.diagnostics.directions < min(data.features.shape)
        for name, z in scores.items():
            estimate = getattr(krylov, name)
            z.append((estimate.value - getattr(exact, name).value) / estimate.standard_error)
    for z in scores.values():
        assert np.abs(z).max() <= 5
        assert abs(np.mean(z)) <= 5 / np.sqrt(30)
        assert 0.5 <= np.std(z) <= 1.6  # 30 normals: within 0.5 … 1.6 but for one case in 100,000


@pytest.mark.parametrize("data", [MEDIUM, WIDER], ids=["tall", "wide"])
@pytest.mark.parametrize("rtol", [0.3, 0.03, 1e-3])
def test_the_error_bound_holds(data, rtol):
    model = LinearModel(data.features, data.targets, Gaussian(1.0))
    krylov = infer(model, prior=Isotropic(1.0), draws=4, method=Krylov(rtol=rtol))
    exact = infer(model, prior=Isotropic(1.0), draws=4)
    error = (data.features @ (krylov.gaussian.deviations - exact.gaussian.deviations)).norm(dim=0)
    spread = exact.effective_dimension.value**0.5
    assert float(error.max()) / spread <= krylov.diagnostics.error_bound * 1.2 <= 1.2 * rtol  # γ itself is estimated


def test_a_smaller_precision_grows_the_space():
    model = LinearModel(WIDER.features, WIDER.targets, Gaussian(1.0))
    krylov = infer(model, prior=Isotropic(100.0), draws=4, method=Krylov(rtol=1e-6))
    exact = infer(model, prior=Isotropic(0.5), draws=4)
    smaller = krylov.at(precision=0.5)
    assert len(smaller.gaussian.whitened.values) > len(krylov.gaussian.whitened.values)
    assert relative(smaller.draws, exact.draws) < 1e-5
    assert relative(smaller.at(precision=100.0).draws, krylov.draws) < 1e-5


def test_tuned_precisions_are_near_the_exact_ones():
    model = LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian())
    exact = infer(model, prior=Isotropic(), draws=0)
    for seed in range(5):
        krylov = infer(model, prior=Isotropic(), draws=8, seed=seed, method=Krylov(rtol=1e-3))
        # the space holds all 90 directions or nearly so: what is left is where the search ends, 1e-9 of a gradient
        assert float(krylov.prior.precision) == pytest.approx(float(exact.prior.precision), rel=1e-6)
        assert float(krylov.likelihood.noise_std) == pytest.approx(float(exact.likelihood.noise_std), rel=1e-6)


def test_variances_come_from_draws_with_their_error():
    model = LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian(1.0))
    exact = infer(model, prior=Isotropic(2.0), draws=0).predict(MEDIUM.inputs)
    krylov = infer(model, prior=Isotropic(2.0), draws=200, method=Krylov(rtol=1e-6)).predict(MEDIUM.inputs)
    z = (krylov.epistemic_variance - exact.epistemic_variance) / (exact.epistemic_variance * (2 / 200) ** 0.5)
    assert z.abs().max() <= 5
    torch.testing.assert_close(krylov.standard_error, krylov.epistemic_variance / 10, rtol=1e-12, atol=0)
    torch.testing.assert_close(krylov.mean, exact.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(krylov.prior_variance, exact.prior_variance, rtol=1e-10, atol=0)


@pytest.mark.parametrize("data", [MEDIUM, WIDER], ids=["tall", "wide"])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_bounds_enclose_the_exact_variance(data, steps):
    model = LinearModel(data.features, data.targets, Gaussian(1.3), weights=data.weights)
    exact = infer(model, prior=GPrior(0.01), draws=0).predict(data.inputs, bounds=True)
    krylov = infer(model, prior=GPrior(0.01), draws=4, method=Krylov(steps=steps, rtol=1e-9))
    low, high = krylov.predict(data.inputs, bounds=True).bounds
    assert (low <= exact.epistemic_variance * (1 + 1e-9)).all()
    assert (high >= exact.epistemic_variance * (1 - 1e-9)).all()
    assert torch.equal(exact.bounds[0], exact.bounds[1])
    assert krylov.predict(data.inputs, bounds=True)[2:4].bounds[1].shape == exact.mean[2:4].shape
    if steps == 6:
        assert float((high / low).max()) < float((exact.prior_variance / low).max())  # and say more than the prior


def test_a_basis_too_large_for_memory_gives_way_to_conjugate_gradients(monkeypatch):
    monkeypatch.setattr(choosing, "EXACT_SIZE", 20)
    monkeypatch.setattr(space_of, "available_bytes", lambda: 1000)
    posterior = infer(LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian(1.0)), prior=Isotropic(1.0), draws=4)
    assert "would not fit" in posterior.diagnostics.why
    exact = infer(posterior.model, prior=Isotropic(1.0), draws=4, method=Exact())
    error = (MEDIUM.features @ (posterior.gaussian.deviations - exact.gaussian.deviations)).norm(dim=0).max()
    assert float(error) / exact.effective_dimension.value**0.5 <= 1.2 * posterior.diagnostics.error_bound <= 0.05


def test_dual_descent_reaches_the_exact_draws_of_few_data():
    data = linear(40, 1, 90, noise_std=1.0, seed=9)
    features = torch.linalg.qr(data.features.mT)[0].mT * torch.linspace(2, 6, 40, dtype=torch.float64)[:, None]
    model = LinearModel(features, data.targets, Gaussian(1.0))
    exact = infer(model, prior=Isotropic(1.0), draws=5)
    sgd = infer(model, prior=Isotropic(1.0), draws=5, method=SGD(batch_size=8, steps=3000))
    # a descent in the dual has no gradient noise at its end: its bound tells how near it is
    assert (
        relative(features @ sgd.gaussian.deviations, features @ exact.gaussian.deviations)
        <= sgd.diagnostics.error_bound
        < 1e-9
    )
    assert relative(sgd.draws, exact.draws) < 1e-9


def test_draws_have_the_posterior_covariance():
    data = linear(40, 1, 6, seed=8)
    model = LinearModel(data.features, data.targets, Gaussian(1.0))
    covariance = infer(model, prior=Isotropic(0.5), draws=0).covariance
    for method in (Krylov(rtol=1e-6), CG(rtol=1e-8)):
        check_covariance(infer(model, prior=Isotropic(0.5), draws=5000, method=method).gaussian.deviations, covariance)


def test_three_samplers_share_one_covariance(generator):
    """Perturb-and-solve, the Lanczos inverse square root, and eigenpairs with the prior outside them."""
    data, n = linear(20, 1, 31, seed=8), 6000
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(1.0)), prior=Isotropic(0.5), draws=n)
    precision = Dense(data.features).T @ Dense(data.features) + Diagonal(torch.full((31,), 0.5, dtype=torch.float64))
    normals = torch.randn(31, n, generator=generator, dtype=torch.float64)
    for draws in (
        posterior.gaussian.deviations,
        (posterior.sample(n) - posterior.mean).mT,
        inverse_root(precision, normals, steps=31),
    ):
        check_covariance(draws, posterior.covariance)
        values, vectors = torch.linalg.eigh(precision.dense())
        white = vectors * values.sqrt() @ vectors.mT @ draws
        distance = float((white @ white.mT / n - torch.eye(31)).square().sum() / 31)
        assert distance == pytest.approx(32 / n, rel=0.2)


@pytest.mark.parametrize("method", [Krylov(rtol=1e-8), CG(rtol=1e-9)], ids=["krylov", "cg"])
def test_tuning_on_held_out_data_without_a_closed_form(method):
    model = LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian(1.0))
    start = infer(model, prior=Isotropic(3.0), draws=16, method=method)
    tuned = start.tune((MEDIUM.inputs, MEDIUM.held_out))
    score = float(tuned.predict(MEDIUM.inputs).log_prob(MEDIUM.held_out).mean())
    assert score == pytest.approx(float(tuned.curve.held_out.max()), abs=1e-6)  # the same draws, to their tolerance
    grid = [start.at(precision=3.0 * factor) for factor in np.logspace(-2, 2, 9)]
    brute = [float(at.predict(MEDIUM.inputs).log_prob(MEDIUM.held_out).mean()) for at in grid]
    assert score >= max(brute) - 1e-6


@pytest.mark.parametrize(("method", "reason"), [(Krylov(steps=2, rtol=1e-6), "steps"), (Krylov(rtol=1e-6), "memory")])
def test_what_did_not_converge_says_so(method, reason, monkeypatch):
    if reason == "memory":
        monkeypatch.setattr(space_of, "available_bytes", lambda: 100_000)  # for the space alone
    posterior = infer(
        LinearModel(WIDER.features, WIDER.targets, Gaussian(1.0)), prior=Isotropic(1.0), draws=4, method=method
    )
    assert posterior.diagnostics.limited_by == reason
    assert not posterior.diagnostics.converged
    assert posterior.diagnostics.error_bound > 1e-6


@pytest.mark.parametrize(
    ("rank", "likelihood"), [(0, Gaussian(0.8)), (20, Gaussian(per_output=True))], ids=["noise given", "per output"]
)
def test_cg_serves_several_precisions(rank, likelihood):
    prior = PerGroup({"a": slice(0, 30), "b": slice(30, 90)})
    model = LinearModel(MEDIUM.features, MEDIUM.targets, likelihood)
    exact = infer(model, prior=prior, draws=400)
    cg = infer(model, prior=prior, draws=400, method=CG(rtol=1e-9, rank=rank))
    assert cg.diagnostics.converged
    at = {"precision": exact.prior.precision, "noise_std": exact.likelihood.noise_std}
    there = cg.at(**at)
    assert relative(there.draws, exact.draws) < 1e-6
    assert (
        abs(there.effective_dimension.value - exact.effective_dimension.value)
        <= 5 * there.effective_dimension.standard_error
    )
    assert abs(there.log_evidence.value - exact.log_evidence.value) <= 5 * there.log_evidence.standard_error
    # 400 draws know γ of the first group, 17 of its 30 weights, to about 1 %, and the fixed point moves by more than that
    torch.testing.assert_close(cg.prior.precision, exact.prior.precision, rtol=0.05, atol=0)
    torch.testing.assert_close(cg.likelihood.noise_std, exact.likelihood.noise_std, rtol=0.02, atol=0)


def test_a_krylov_space_starts_and_deflates_conjugate_gradients():
    """Two groups, their precisions ten times apart: fewer steps than without, and the same solution."""
    data = linear(400, 1, 120, noise_std=1.0, seed=6)
    groups = PerGroup({"a": slice(0, 50), "b": slice(50, 120)})
    posterior = infer(
        LinearModel(data.features, data.targets, Gaussian()), prior=groups, draws=16, method=CG(rtol=1e-6)
    )
    sampler, noise = posterior.gaussian.sampler, posterior.gaussian.noise_precision
    assert sampler.ritz is not None
    prior = posterior.prior.with_precision([0.3, 3.0])
    helped, _ = replace(sampler, warm=None).solve(prior, noise)
    alone, _ = replace(sampler, warm=None, ritz=None).solve(prior, noise)
    assert helped.converged
    assert helped.steps < 0.7 * alone.steps
    assert relative(helped.x, alone.x) < 1e-3


@pytest.mark.parametrize("objective", ["L", "L'", "mixed"])
def test_stochastic_gradients_reach_the_exact_draws(objective):
    data = linear(400, 1, 12, noise_std=1.0, seed=5)
    features = torch.linalg.qr(data.features)[0] * 20  # well-conditioned: this is about the road, not the terrain
    model = LinearModel(features, data.targets, Gaussian(1.0))
    exact = infer(model, prior=Isotropic(40.0), draws=6)
    sgd = infer(model, prior=Isotropic(40.0), draws=6, method=SGD(objective, batch_size=50, steps=4000))
    error, bound = (
        relative(features @ sgd.gaussian.deviations, features @ exact.gaussian.deviations),
        sgd.diagnostics.error_bound,
    )
    assert error <= min(bound, 0.05)
    assert bound < 0.1  # gradient noise at the end, which falls with the steps
    assert relative(sgd.mean, exact.mean) < 0.05


def test_all_methods_agree_path_by_path():
    """Primal and dual decomposition, primal and dual Krylov, conjugate gradients; the same noise."""
    for data in (MEDIUM, WIDER):
        model = LinearModel(data.features, data.targets, Gaussian(1.2))
        methods = [Exact("primal"), Exact("dual"), Krylov(rtol=1e-8), CG(rtol=1e-10), CG(rtol=1e-10, rank=30)]
        draws = [infer(model, prior=Isotropic(1.0), draws=5, method=method).draws for method in methods]
        assert max(relative(other, draws[0]) for other in draws[1:]) < 1e-6


def test_the_method_is_chosen_by_size_and_says_why(monkeypatch):
    monkeypatch.setattr(choosing, "EXACT_SIZE", 20)
    model = LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian())
    assert "both sides are large" in " ".join(repr(infer(model, draws=4)).split())
    groups = PerGroup({"a": slice(0, 30), "b": slice(30, 90)})
    assert "several precisions" in infer(model, prior=groups, draws=4).diagnostics.why
    assert infer(LinearModel(TALL.features, TALL.targets, Gaussian()), draws=4).diagnostics.method == "exact, primal"
    assert infer(model, draws=0).diagnostics.method.startswith("exact")


class Streamed(LinearOperator):
    """Rows made on the fly, by two products alone."""

    def __init__(self, matrix: torch.Tensor, wrong: float = 1.0, poison: bool = False):
        self.matrix, self.wrong, self.poison = matrix, wrong, poison

    @property
    def shape(self):
        return tuple(self.matrix.shape)

    @property
    def like(self):
        return self.matrix

    def matmat(self, x):
        product = self.matrix @ x
        return product * float("nan") if self.poison and x.shape[1] > 2 else product

    def rmatmat(self, y):
        return self.wrong * self.matrix.mT @ y


def test_an_operator_known_by_its_products_gives_the_posterior_of_its_matrix():
    expected = infer(LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian(1.0)), prior=Isotropic(1.0), draws=4)
    for method in (Krylov(rtol=1e-8), CG(rtol=1e-10), None):
        model = LinearModel(Streamed(MEDIUM.features), MEDIUM.targets, Gaussian(1.0))
        assert relative(infer(model, prior=Isotropic(1.0), draws=4, method=method).draws, expected.draws) < 1e-6
    sparse = scipy.sparse.csr_array(torch.where(MEDIUM.features.abs() > 0.2, MEDIUM.features, 0.0).numpy())
    one, other = (
        infer(LinearModel(features, MEDIUM.targets, Gaussian()), draws=4, method=Krylov(rtol=1e-8))
        for features in (sparse, sparse.toarray())
    )
    assert relative(one.draws, other.draws) < 1e-6


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: (Streamed(MEDIUM.features, wrong=1.01), Krylov()), ValueError, "Streamed of shape .* is not adjoint"),
        (lambda: (Streamed(MEDIUM.features, poison=True), Krylov()), ValueError, "not finite"),
        (
            lambda: (Streamed(MEDIUM.features, poison=True), CG()),
            (ValueError, FloatingPointError),
            "not finite|not a number",
        ),
    ],
)
def test_bad_operators_are_named(make, error, message):
    operator, method = make()
    with pytest.raises(error, match=message):
        infer(LinearModel(operator, MEDIUM.targets, Gaussian(1.0)), prior=Isotropic(1.0), draws=4, method=method)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: infer(m, prior=PerGroup({"a": slice(0, 90)}), draws=0, method=Krylov()), "ask for draws=1"),
        (lambda m: infer(m, prior=PerGroup({"a": [0], "b": slice(1, 90)}), method=Krylov()), "one prior precision"),
        (lambda m: infer(m, draws=4, method=Krylov()).covariance, "no closed-form covariance"),
        (lambda m: infer(m, draws=4, method=Krylov()).sample(3), "no closed-form covariance"),
        (lambda m: infer(m, draws=4, method=CG()).leave_one_out(), "no closed-form covariance"),
        (lambda m: infer(m, draws=4, method=CG()).curve, "one precision only"),
        (lambda m: Krylov(rtol=0.0), "rtol must lie"),
        (lambda m: Krylov(steps=0), "steps must be"),
        (lambda m: SGD("L2"), "expected 'L'"),
        (lambda m: SGD(steps=0), "must be positive"),
    ],
)
def test_what_a_method_cannot_do_it_says(make, message):
    with pytest.raises(ValueError, match=message):
        make(LinearModel(MEDIUM.features, MEDIUM.targets, Gaussian()))


def test_ill_conditioned_duplicated_and_zero_features():
    u, _ = torch.linalg.qr(torch.randn(60, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    hard = u * torch.logspace(0, -6, 20, dtype=torch.float64) @ v.mT  # condition number 1e12 of the Gram matrix
    hard = torch.cat([hard, hard[:, :3], torch.zeros(60, 2, dtype=torch.float64)], dim=1)
    hard = torch.cat([hard, torch.zeros(4, 25, dtype=torch.float64)])
    targets = torch.cat([u.sum(1), torch.zeros(4, dtype=torch.float64)])
    model = LinearModel(hard, targets, Gaussian(1e-3))
    exact = infer(model, prior=Isotropic(1.0), draws=3)
    krylov = infer(model, prior=Isotropic(1.0), draws=3, method=Krylov(rtol=1e-6))
    assert krylov.diagnostics.converged
    assert relative(hard @ krylov.gaussian.deviations, hard @ exact.gaussian.deviations) < 1e-5
    assert relative(krylov.gaussian.deviations, exact.gaussian.deviations) < 1e-5


def test_progress_reports_passes_and_can_be_silenced(capsys, monkeypatch):
    shown = []
    model = LinearModel(WIDER.features, WIDER.targets, Gaussian())
    infer(model, draws=4, method=Krylov(), progress=shown.append)
    assert any("passes" in text for text in shown)
    assert shown[-1] == ""
    infer(model, draws=4, method=Krylov(), progress=False)
    assert capsys.readouterr().err == ""
    infer(model, draws=4, progress=True)
    assert capsys.readouterr().err.startswith("lapwing: decomposing")  # a log: a line now and then
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    infer(model, draws=4, progress=True)
    assert "maximising the evidence" in capsys.readouterr().err


TALLER = linear(800, 1, 30, noise_std=1.0, seed=11)


@pytest.mark.parametrize("several", [False, True], ids=["one precision", "several"])
def test_whole_passes_that_do_not_fit_give_way_to_stochastic_gradients(monkeypatch, several):
    """800 × 30 features, 4 draws: CG is said to need 8 · 5 · (12 · 30 + 3 · 800) bytes, SGD 8 · 5 · (11 · 30 + 800)."""
    by_cg, by_sgd = 8 * 5 * (12 * 30 + 3 * 800), 8 * 5 * (11 * 30 + 800)
    monkeypatch.setattr(choosing, "EXACT_SIZE", 20)
    model = LinearModel(TALLER.features, TALLER.targets, Gaussian(1.0))
    prior = PerGroup({"a": slice(0, 10), "b": slice(10, 30)}) if several else Isotropic()

    def chosen(free: float, features: object = None) -> tuple[object, str]:
        there = model if features is None else replace(model, features=features)
        with counting_on(int(free)):
            return choosing.choose(there, prior, 4)

    assert isinstance(chosen(2 * by_cg)[0], CG if several else Krylov)
    method, why = chosen(2 * by_cg - 1)
    assert method == SGD()
    assert "110 kB with conjugate gradients" in why
    assert "minibatches take 45.2 kB" in why
    with pytest.raises(MemoryError, match=r"by stochastic gradients .*30 weights.* needs 45\.2 kB.*fewer draws"):
        chosen(by_sgd)
    # in batches of 100 rows there are no columns as long as the data
    streamed = Stacked(Dense, [(part,) for part in TALLER.features.split(100)], (100,) * 8, 30, TALLER.features)
    assert isinstance(chosen(2 * 8 * 5 * (12 * 30 + 3 * 100), streamed)[0], CG if several else Krylov)
    # where a batch costs a product with every row, minibatches are no way out
    with pytest.raises(MemoryError, match="by conjugate gradients"):
        chosen(by_cg, Streamed(TALLER.features))


def test_stochastic_gradients_chosen_for_memory_find_the_posterior(monkeypatch):
    """The whole way: chosen, started without a Krylov space, tuned, and near the exact posterior."""
    features = torch.linalg.qr(TALLER.features)[0] * torch.linspace(15, 30, 30, dtype=torch.float64)
    signal = features @ torch.linspace(-0.4, 0.4, 30, dtype=torch.float64)
    noise = torch.randn(800, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    model = LinearModel(features, signal + noise, Gaussian())
    exact = infer(model, prior=Isotropic(), draws=16)
    monkeypatch.setattr(choosing, "EXACT_SIZE", 20)
    with counting_on(8 * 17 * (12 * 30 + 3 * 800)):
        posterior = infer(model, prior=Isotropic(), draws=16)
    assert posterior.diagnostics.method.startswith("SGD(")
    assert "minibatches take" in posterior.diagnostics.why
    assert float(posterior.likelihood.noise_std) == pytest.approx(float(exact.likelihood.noise_std), rel=0.02)
    assert relative(features @ posterior.mean, features @ exact.mean) < 0.1
    there = exact.at(float(posterior.prior.precision), float(posterior.likelihood.noise_std))
    assert relative(features @ posterior.gaussian.deviations, features @ there.gaussian.deviations) < 0.1


@pytest.mark.parametrize("precision", [2.0, None], ids=["given", "tuned"])
def test_labels_of_stored_features_find_their_mode_in_the_row_space(precision, monkeypatch):
    """A Krylov space knows weights; the loss of fewer data than weights is one over their row space."""
    from lapwing import Bernoulli
    from lapwing.bayes.fits import newton

    generator = torch.Generator().manual_seed(3)
    features = torch.randn(17, 23, generator=generator, dtype=torch.float64)
    labels = (torch.rand(17, generator=generator) < 0.5).double()
    model, prior = LinearModel(features, labels, Bernoulli()), Isotropic(precision)
    exact = infer(model, prior=prior, method=Exact(), draws=4, curvature="mode")
    monkeypatch.setattr(newton, "DENSE_SIZE", 0)
    krylov = infer(model, prior=Isotropic(float(exact.prior.precision[0])), method=Krylov(rtol=1e-9), draws=4)
    torch.testing.assert_close(krylov.mean, exact.mean, rtol=1e-6, atol=1e-9)
    if precision is None:
        tuned = infer(model, prior=prior, method=Krylov(rtol=1e-9), draws=4)
        assert torch.isfinite(tuned.mean).all()
