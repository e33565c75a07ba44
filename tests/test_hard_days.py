"""Hard numerical days: the result is right within its stated error, or says that it is not."""

import copy

import mpmath
import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.bayes.fits import newton
from lapwing.bayes.methods import outputs
from lapwing.bayes.methods.krylov import KrylovPreconditioner
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.bayes.statistics import Ritz
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense
from tests.network.networks import normal

EPS = torch.finfo(torch.float64).eps


def orthonormal(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(normal(rows, columns, seed=seed))[0]


@pytest.mark.parametrize("shape", [(40, 9), (9, 31)], ids=["tall", "wide"])
@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
@pytest.mark.parametrize("noise_std", [1.0, 1e-3, 1e-6])
def test_condition_numbers(condition, noise_std, shape):
    """Along every right singular vector the variance is 1 / (α + s² / σ²), whatever the condition of the features."""
    n, d = shape
    values, alpha = torch.logspace(0, -torch.tensor(condition).log10().item(), 9, dtype=torch.float64), 0.5
    left, right = orthonormal(n, 9, 1), orthonormal(d, 9, 2)
    features = left * values @ right.mT
    y = features @ normal(d, seed=3) + noise_std * normal(n, seed=4)
    posterior = lw.infer(
        lw.LinearModel(features, y, lw.Gaussian(noise_std)), prior=lw.Isotropic(alpha), method=lw.Exact()
    )
    expected = 1 / (alpha + (values / noise_std) ** 2)
    found = posterior.predict(right.mT).epistemic_variance
    told = posterior.diagnostics.round_off
    assert told < 1e-3  # it is usable, and says so
    # features themselves are known to eps of the largest, so s is to eps and s² / σ² to 2 eps · s / σ²
    given = 2 * EPS * values * 10 / noise_std**2 / (alpha + (values / noise_std) ** 2)
    # and where weights outnumber data a variance is what the prior's leaves, known to eps of that
    assert ((found - expected).abs() <= (100 * told + given + 1e3 * EPS) * expected + 100 * EPS / alpha).all()


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e7])
def test_curves_over_precisions_have_the_variances_of_predictions(condition):
    """Where weights outnumber data, directions of small eigenvalues are known badly: the same care in both places."""
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), 9, dtype=torch.float64)
    right = orthonormal(31, 9, 2)
    model = lw.LinearModel(orthonormal(9, 9, 1) * values @ right.mT, normal(9, seed=4), lw.Gaussian(0.5))
    posterior = lw.infer(model, prior=lw.Isotropic(2.0), method=lw.Exact("dual"))
    new, none = Dense(right.mT), torch.zeros(31, 0, dtype=torch.float64)
    spread = outputs.over_ratio(posterior.gaussian.whitened, new, (9,), none, 0, full=False)
    for ratio in (1e-4, 1.0, 1e4):
        expected = 1 / (2.0 / ratio + values.square() / 0.25)
        bound = 100 * posterior.diagnostics.round_off * max(ratio, 1.0) + 1e3 * EPS  # as in the test before
        for found in (
            posterior.at(precision=2.0 / ratio).predict(right.mT).epistemic_variance,
            spread(ratio).variance,
            posterior.gaussian.over_ratio(new, (9,), full=False, around=None)(ratio)[1].variance,
        ):
            assert float((found / expected - 1).abs().max()) <= bound


@pytest.mark.parametrize("method", [lw.Exact(), lw.Krylov(rtol=1e-8)])
def test_columns_that_are_copies_and_columns_of_zeros(method):
    """What one weight of variance 2 does, two equal columns of variance 1 each do; a column of zeros does nothing."""
    x, y, new = normal(30, 4, seed=1), normal(30, seed=2), normal(6, 4, seed=3)

    def doubled(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows, rows, torch.zeros(len(rows), 2).double()], dim=1)

    def fit(rows: torch.Tensor, precision: float) -> lw.Posterior:
        return lw.infer(
            lw.LinearModel(rows, y, lw.Gaussian(0.4)), prior=lw.Isotropic(precision), method=method, draws=64
        )

    one, two = fit(x, 0.5), fit(doubled(x), 1.0)
    expected, found = one.predict(new), two.predict(doubled(new))
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-7, atol=1e-7)
    assert abs(one.log_evidence.value - two.log_evidence.value) <= 1e-7 + 5 * (
        one.log_evidence.standard_error + two.log_evidence.standard_error
    )
    if isinstance(method, lw.Exact):
        torch.testing.assert_close(found.epistemic_variance, expected.epistemic_variance)
    else:  # both are from 64 draws, of a relative standard error √(2/64) each
        assert ((found.epistemic_variance / expected.epistemic_variance).log().abs() < 5 * (4 / 64) ** 0.5).all()
    assert two.diagnostics.converged


@pytest.mark.parametrize("likelihood", [lw.Gaussian(0.4), lw.Bernoulli()])
def test_data_given_twice_count_twice(likelihood):
    x = normal(17, 3, seed=1)
    y = normal(17, seed=2) if isinstance(likelihood, lw.Gaussian) else (normal(17, seed=2) > 0).double()
    twice = lw.infer(lw.LinearModel(torch.cat([x, x]), torch.cat([y, y]), likelihood), prior=lw.Isotropic(0.7))
    weighed = lw.infer(lw.LinearModel(x, y, likelihood, weights=2 * torch.ones(17)), prior=lw.Isotropic(0.7))
    torch.testing.assert_close(twice.mean, weighed.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(twice.covariance, weighed.covariance, rtol=1e-8, atol=1e-10)


def network(width: int = 5) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)).double().eval()


@pytest.mark.parametrize("prior", [lw.Isotropic(0.8), lw.GPrior(0.8), None])
def test_dead_units(prior):
    """Weights into a unit that never fires move nothing: error bars are those of the network without it."""
    alive, dead = network(5), network(6)
    with torch.no_grad():
        dead[0].weight[:5], dead[0].bias[:5] = alive[0].weight, alive[0].bias
        dead[2].weight[:, :5], dead[2].bias[:] = alive[2].weight, alive[2].bias
        dead[0].bias[5] = -1e3
    data, new = (normal(25, 3, seed=1), normal(25, 2, seed=2)), normal(6, 3, seed=3)
    found, expected = (lw.fit(model, data, lw.Gaussian(0.5), prior=prior).predict(new) for model in (dead, alive))
    assert found.variance.isfinite().all()
    if isinstance(prior, lw.Isotropic):
        torch.testing.assert_close(found.epistemic_variance, expected.epistemic_variance, rtol=1e-8, atol=1e-12)
    else:  # the scale of the g-prior is relative to the mean over each tensor, dead weights included
        assert ((found.epistemic_variance / expected.epistemic_variance).log().abs() < 1).all()


@pytest.mark.parametrize("method", [lw.Exact(), lw.Krylov()])
def test_a_softmax_that_is_saturated(method):
    """Where p is 1 exactly its curvature says nothing: error bars are the prior's, and tuning warns."""
    model = network()
    with torch.no_grad():
        model[2].bias[:] = torch.tensor([1e4, -1e4])
    x = normal(20, 3, seed=1)
    data = x, torch.zeros(20, dtype=torch.long)
    assert (model(x).softmax(1).amax(1) == 1).all()
    with pytest.warns(UserWarning, match="fits its training data perfectly"):
        tuned = lw.fit(model, data, lw.Categorical(), method=method, curvature="network")
    assert tuned.predict(x).probs.isfinite().all()
    given = {"prior": lw.Isotropic(2.0), "method": method, "draws": 200, "curvature": "network"}
    posterior = lw.fit(model, data, lw.Categorical(), **given)
    jacobian = lw.linearise(model, (x, data[1]), lw.Categorical()).features.dense()
    expected = jacobian.square().sum(1).reshape(20, 2) / 2.0
    found = posterior.predict(x)
    tolerance = 1e-9 if isinstance(method, lw.Exact) else 5 * (2 / 200) ** 0.5
    assert ((found.epistemic_variance / expected - 1).abs() <= tolerance).all()
    assert found.probs.isfinite().all()
    assert (found.novelty - 1).abs().max() <= tolerance


@pytest.mark.parametrize("noise_std", [1e-4, 1e-8, 1e-12])
def test_noise_that_vanishes(noise_std):
    """The mean goes through the targets, and what is left of the variance there is at most that of the noise."""
    x, y = normal(7, 12, seed=1), normal(7, seed=2)
    posterior = lw.infer(lw.LinearModel(x, y, lw.Gaussian(noise_std)), prior=lw.Isotropic(1.0), method=lw.Exact())
    found, told = posterior.predict(x), posterior.diagnostics.round_off
    assert ((found.mean - y).abs() <= 10 * noise_std + 100 * told).all()
    assert (found.epistemic_variance >= 0).all()
    assert (found.epistemic_variance <= noise_std**2 * (1 + 1e-6) + 100 * told * x.square().sum(1)).all()


def test_targets_without_noise_say_that_the_noise_was_kept_from_zero():
    x = normal(30, 4, seed=1)
    posterior = lw.infer(lw.LinearModel(x, x @ normal(4, seed=2), lw.Gaussian()), method=lw.Exact())
    assert posterior.diagnostics.noise_at_floor
    assert posterior.likelihood.noise_std < 1e-4


@pytest.mark.parametrize("method", [lw.Exact(), lw.Krylov(rtol=1e-3), lw.CG(rtol=1e-5)])
@pytest.mark.parametrize("labels", [False, True])
def test_single_precision_against_double(method, labels):
    """The same network in float32: draws agree to √(eps · condition) of the data's precision, or it says so."""
    double = network(8)
    single = copy.deepcopy(double).float()
    x, new = normal(40, 3, seed=1), normal(6, 3, seed=3)
    y = (double(x).detach() + normal(40, 2, seed=2)).argmax(1) if labels else normal(40, 2, seed=2)
    likelihood = lw.Categorical() if labels else lw.Gaussian(0.5)
    results = []
    for model, kind in ((single, torch.float32), (double, torch.float64)):
        data = x.to(kind), y if labels else y.to(kind)
        results.append(lw.fit(model, data, likelihood, prior=lw.Isotropic(0.5), method=method, draws=16, seed=1))
    found, expected = (
        fit.functions(new.to(kind)).double() for fit, kind in zip(results, (torch.float32, torch.float64), strict=True)
    )
    spread = expected.std(0).max()
    told = [told_by(fit) for fit in results]
    assert all(fit.diagnostics.converged for fit in results)
    # the same noise behind every draw, so they differ by solver errors and by eps of single precision in the products
    assert float((found - expected).abs().max() / spread) <= 10 * sum(told) + 1e-3


@pytest.mark.parametrize("decades", [0, 4])
@pytest.mark.parametrize("shape", [(40, 90), (90, 40)], ids=["wide", "tall"])
def test_a_space_in_single_precision_preconditions_what_it_barely_knows(shape, decades):
    """Where data say 1e8 times more than the prior, directions known to 1e-7 must not be taken out twice."""
    n, d = shape
    values = torch.logspace(0, -decades, 40, dtype=torch.float64)
    features = Dense((orthonormal(n, 40, 1) * values @ orthonormal(d, 40, 2).mT).float())
    block = krylov.StartBlock(normal(d, 2, seed=3), normal(n, 2, seed=4), normal(n, 1, seed=5))
    space = krylov.grow(features, block, 6)
    known = KrylovPreconditioner(Ritz(space, features, 1e-2, None), space.ritz / 1e-8)
    inverse = known.solve(torch.eye(d, dtype=torch.float64))
    eps = torch.finfo(torch.float32).eps
    assert float(torch.linalg.eigvalsh((inverse + inverse.mT) / 2).min()) > eps**0.5


def test_a_preconditioner_that_is_none_costs_steps_and_not_the_mode():
    class Wrong:
        def solve(self, x: torch.Tensor) -> torch.Tensor:
            return -x

    model = lw.LinearModel(normal(30, 5, seed=1), (normal(30, seed=2) > 0).double(), lw.Bernoulli())
    loss = lw.infer(model, prior=lw.Isotropic(0.5), curvature="mode").gaussian.fit.search.loss(
        torch.ones(5, dtype=torch.float64)
    )
    start = torch.zeros(5, dtype=torch.float64)
    outputs = loss.features @ start[:, None]
    gradient = normal(5, seed=3)
    found, _ = newton._by_cg(loss, outputs[:, 0], gradient, 1e-20, Wrong())
    expected = torch.linalg.solve(loss.hessian(outputs[:, 0]).dense(), gradient)  # dense, by another route
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def told_by(posterior: lw.Posterior) -> float:
    """The error bound of a solver, or what round-off does to a decomposition."""
    bound = posterior.diagnostics.error_bound
    return posterior.diagnostics.round_off if bound is None else bound


def exactly(features, targets, noise_std, precisions, data_noise, prior_noise):
    """The mean and the draws that belong to the noise, with sixty digits, and √γ: how wide draws are on the data."""
    with mpmath.workdps(60):
        G, y, xi, theta = (
            mpmath.matrix(part.tolist()) for part in (features, targets[:, None], data_noise, prior_noise)
        )
        beta, alpha = 1 / mpmath.mpf(noise_std) ** 2, [mpmath.mpf(value) for value in precisions.tolist()]
        inverse = mpmath.inverse(beta * (G.T * G) + mpmath.diag(alpha))
        root = mpmath.diag([mpmath.sqrt(value) for value in alpha])
        draws = inverse * (mpmath.sqrt(beta) * (G.T * xi) + root * theta)
        gamma = len(alpha) - sum(value * inverse[i, i] for i, value in enumerate(alpha))
        return G, inverse * (beta * (G.T * y)), draws, float(mpmath.sqrt(gamma))


METHODS = {"exact": lw.Exact(), "by group": lw.Exact(), "krylov": lw.Krylov(rtol=1e-3), "cg": lw.CG(rtol=1e-8)}


@pytest.mark.parametrize("shape", [(40, 9), (9, 23)], ids=["tall", "wide"])
@pytest.mark.parametrize("condition", [1e6, 1e12])
@pytest.mark.parametrize("noise_std", [1e-3, 1e-6, 1e-9])
def test_draws_and_means_are_those_of_sixty_digits_or_not_converged(condition, noise_std, shape):
    """Directions that data know a little, behind others that they know 1e12 times better, are not lost."""
    n, d = shape
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), 9, dtype=torch.float64)
    features = orthonormal(n, 9, 1) * values @ orthonormal(d, 9, 2).mT
    y = features @ normal(d, seed=3) + noise_std * normal(n, seed=4)
    noise = [Noise(1, stream).rows(0, size, 2) for stream, size in ((DATA, n), (PRIOR, d))]
    alone = torch.full((d,), 0.5, dtype=torch.float64)
    groups = torch.where(torch.arange(d) < 4, 0.5, 2.0).double()
    truths = {grouped: exactly(features, y, noise_std, (alone, groups)[grouped], *noise) for grouped in (False, True)}
    for name, method in METHODS.items():
        prior = lw.PerGroup({"a": slice(0, 4), "b": slice(4, d)}, {"a": 0.5, "b": 2.0})
        posterior = lw.infer(
            lw.LinearModel(features, y, lw.Gaussian(noise_std)), method=method, draws=2, seed=1,
            prior=prior if name == "by group" else lw.Isotropic(0.5),
        )  # fmt: skip
        G, mean, draws, width = truths[name == "by group"]
        found = torch.cat([posterior.gaussian.deviations, posterior.mean[:, None]], dim=1)
        with mpmath.workdps(60):
            wrong = [mpmath.matrix(found[:, j].tolist()) - (draws[:, j] if j < 2 else mean) for j in range(3)]
            error = max(float(mpmath.norm(G * column)) for column in wrong) / noise_std / width
        if method == lw.Exact():
            told, by_singular_values = told_by(posterior), "svd" in posterior.diagnostics.method
            assert told < 1e-4  # it is usable, and says so
            # of variances; a singular value that comes from a Gram matrix is known to the root of that
            assert error <= (100 * told if by_singular_values else told**0.5), (name, error, told)
        elif posterior.diagnostics.converged:
            assert error <= 2 * told_by(posterior), (name, error, told_by(posterior))  # γ itself is estimated
        else:
            assert told_by(posterior) > 1e-3
