"""Gaussian variational inference through `infer`: what a posterior says equals dense formulas, fresh fits and files."""

from math import exp, log

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import lapwing as lw
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.bayes.likelihoods import HeteroscedasticGaussian, likelihood
from lapwing.bayes.priors import Prior
from tests.bayes.fits.labelled import LIKELIHOODS, Labelled, bound, labelled, normal
from tests.properties import check_covariance

PRECISION = 0.7
TIGHT = lw.Exact(newton=NewtonSteps(tol=1e-13))
KINDS = list(LIKELIHOODS)
SHAPES = pytest.mark.parametrize(("n", "d"), [(19, 4), (7, 11)], ids=["more data", "more weights"])


def inferred(of: Labelled, prior: Prior | None = None, **given) -> lw.Posterior:
    return lw.infer(of.model, prior=prior or lw.Isotropic(PRECISION), **{"method": TIGHT, **given})


def same(one: lw.Posterior, other: lw.Posterior, std: float = 1e-5) -> None:
    """Means within some of a posterior standard deviation, covariances within as much, one bound."""
    root = torch.linalg.cholesky(other.covariance)
    away = torch.linalg.solve_triangular(root, (one.mean - other.mean)[:, None], upper=False)
    assert float(away.abs().max()) < std
    half = torch.linalg.solve_triangular(root, one.covariance, upper=False)
    turned = torch.linalg.solve_triangular(root, half.mT, upper=False)
    assert float((turned - torch.eye(len(turned)).double()).abs().max()) < std
    assert float(one.log_evidence.value) == pytest.approx(float(other.log_evidence.value), abs=1e-9)


class TestQuadraticLogarithms:
    """A density of one's own that is Gaussian: the exact posterior and its evidence."""

    def test_of_one_output(self):
        X, y = normal(13, 4, seed=0), normal(13, seed=1)
        own = likelihood(lambda f, y: -0.5 * (f - y) ** 2 / 0.36 - 0.5 * log(2 * torch.pi * 0.36))
        found, exact = (
            lw.infer(lw.LinearModel(X, y, of), prior=lw.Isotropic(PRECISION), method=TIGHT)
            for of in (own, lw.Gaussian(0.6))
        )
        assert found.diagnostics.curvature == "expected over the posterior"
        assert float(found.log_evidence.value) == pytest.approx(float(exact.log_evidence.value), abs=1e-8)
        torch.testing.assert_close(found.mean, exact.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(found.covariance, exact.covariance, rtol=1e-8, atol=1e-10)

    def test_of_two_outputs_by_points(self):
        """Outputs that a density links: noise correlated between them, around a target times a pattern."""
        X, y = normal(7, 2, 5, seed=0), normal(7, seed=1)
        pattern, H = torch.tensor([1.0, -0.5]).double(), torch.tensor([[2.0, 0.8], [0.8, 1.5]]).double()

        def log_prob(f: Tensor, y: Tensor) -> Tensor:
            away = f - y[:, None] * pattern.to(f)
            return -0.5 * ((away @ H.to(f)) * away).sum(1)

        model = lw.LinearModel(X.reshape(-1, 5), y, likelihood(log_prob, outputs=2))
        found = lw.infer(model, prior=lw.Isotropic(PRECISION), method=TIGHT)
        precision = PRECISION * torch.eye(5).double() + torch.einsum("nad,ab,nbe->de", X, H, X)
        covariance = torch.linalg.inv(precision)
        mean = covariance @ torch.einsum("nad,ab,nb->d", X, H, y[:, None] * pattern)
        torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(found.covariance, covariance, rtol=1e-8, atol=1e-9)
        away = X @ mean - y[:, None] * pattern
        fit = -0.5 * (away @ H * away).sum() - 0.5 * PRECISION * mean.square().sum()
        evidence = fit + 0.5 * (torch.logdet(covariance) + 5 * log(PRECISION))
        assert float(found.log_evidence.value) == pytest.approx(float(evidence), abs=1e-8)


class TestAgainstDenseFormulas:
    @SHAPES
    @pytest.mark.parametrize("kind", KINDS)
    def test_covariance_predictions_and_bound(self, kind, n, d):
        of = labelled(kind, n, d, seed=5)
        m, new = of.features.shape[1], normal(5, of.features.shape[1], d, seed=6)
        posterior = inferred(of)
        root = posterior.gaussian.fit.averaged_root()
        flat = of.features
        precision = PRECISION * torch.eye(d).double() + torch.einsum("nad,nab,nbe->de", flat, root @ root.mT, flat)
        covariance = torch.linalg.inv(precision)
        torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-9, atol=1e-11)
        prediction = posterior.predict(new.reshape(-1, d))
        variance = torch.einsum("bmd,de,bme->bm", new, covariance, new)
        torch.testing.assert_close(prediction.epistemic_variance.reshape(5, m), variance, rtol=1e-9, atol=0)
        torch.testing.assert_close(prediction.mean.reshape(5, m), new @ posterior.mean, rtol=1e-10, atol=1e-12)
        if kind != "classes":
            A = torch.full((d,), PRECISION, dtype=torch.float64)
            value = float(bound(of, A, posterior.mean, posterior.covariance))
            assert float(posterior.log_evidence.value) == pytest.approx(value, abs=1e-9)
            assert posterior.diagnostics.bound_error == 0
        gamma = d - PRECISION * float(covariance.diagonal().sum())
        assert float(posterior.effective_dimension.value) == pytest.approx(gamma, rel=1e-9)

    @pytest.mark.parametrize("kind", ["labels", "classes"])
    def test_draws_have_that_covariance(self, kind):
        posterior = inferred(labelled(kind, 19, 4, seed=5), draws=20_000)
        check_covariance((posterior.draws - posterior.mean).mT, posterior.covariance)
        check_covariance((posterior.sample(20_000) - posterior.mean).mT, posterior.covariance)

    @pytest.mark.parametrize("given", [0.01, 2.0])
    def test_one_free_precision_beside_a_given_one(self, given):
        """As for an intercept: against the dense bound maximised over mean, covariance and log precision at once."""
        of = labelled("labels", 23, 3, seed=8)
        prior = lw.PerGroup({"intercept": [0], "slopes": [1, 2]}, precision={"intercept": given, "slopes": None})
        posterior = inferred(of, prior)
        lower = torch.tril_indices(3, 3)

        def unpacked(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            root = torch.zeros(3, 3).double().index_put(tuple(lower), x[3:9])
            root = root.tril(-1) + torch.diag(root.diagonal().exp())
            free = x[9].exp().expand(2)
            return torch.cat([torch.tensor([given], dtype=torch.float64), free]), x[:3], root @ root.mT

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            at = torch.from_numpy(x).requires_grad_()
            value = -bound(of, *unpacked(at))
            return float(value.detach()), torch.autograd.grad(value, at)[0].numpy()

        found = minimize(loss, np.zeros(10), jac=True, method="BFGS", options={"gtol": 1e-8})
        precision, mean, covariance = unpacked(torch.from_numpy(found.x))
        # a gradient of 1e-8 is 1e-8 of a standard deviation or less, and B is known to 6e-7 of one over V
        torch.testing.assert_close(posterior.prior.precision, precision[:2], rtol=2e-6, atol=0)
        torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=2e-6)
        torch.testing.assert_close(posterior.covariance, covariance, rtol=0, atol=2e-6)
        assert float(posterior.log_evidence.value) == pytest.approx(-found.fun, abs=1e-9)


class TestPrecisions:
    @pytest.mark.parametrize("kind", ["labels", "counts"])
    def test_tuned_is_mackays_fixed_point_and_the_top_of_a_scan(self, kind):
        of = labelled(kind, 29, 4, signal=0.7, seed=11)
        posterior = inferred(of, lw.Isotropic())
        precision = float(posterior.prior.precision)
        gamma, squared = float(posterior.effective_dimension.value), float(posterior.mean.square().sum())
        assert precision == pytest.approx(gamma / squared, rel=1e-6)
        top = float(posterior.log_evidence.value)
        scan = [float(posterior.at(precision=precision * exp(s)).log_evidence.value) for s in (-2, -0.2, 0.2, 2)]
        assert max(scan) < top
        assert posterior.diagnostics.tuned_by == "evidence"
        assert posterior.diagnostics.converged

    @SHAPES
    @pytest.mark.parametrize("kind", KINDS)
    def test_another_precision_is_a_fresh_inference(self, kind, n, d):
        of = labelled(kind, n, d, seed=5)
        same(inferred(of).at(precision=2.5), inferred(of, lw.Isotropic(2.5)))

    def test_another_precision_of_a_group(self):
        of = labelled("labels", 23, 3, seed=8)
        groups = {"intercept": [0], "slopes": [1, 2]}
        posterior = inferred(of, lw.PerGroup(groups, precision={"intercept": 0.1, "slopes": None}))
        for at in ({"intercept": 0.1, "slopes": 3.0}, {"intercept": 0.9, "slopes": 3.0}):
            same(posterior.at(precision=at), inferred(of, lw.PerGroup(groups, precision=at)))

    def test_the_curve_is_the_bound(self):
        posterior = inferred(labelled("labels", 19, 4, seed=5), lw.Isotropic())
        curve = posterior.curve
        for place in (0, len(curve.precision) // 2):
            there = posterior.at(precision=float(curve.precision[place]))
            assert float(curve.log_evidence[place]) == pytest.approx(float(there.log_evidence.value), abs=1e-6)


class TestOtherData:
    @SHAPES
    @pytest.mark.parametrize("kind", KINDS)
    def test_more_and_fewer_are_fits_of_those(self, kind, n, d):
        of = labelled(kind, n, d, seed=5)
        some = Labelled(kind, of.features[:-2], of.targets[:-2], of.weights[:-2])
        tail = Labelled(kind, of.features[-2:], of.targets[-2:], of.weights[-2:])
        whole, part = inferred(of), inferred(some)
        same(part.update(tail.model), whole)
        same(whole.remove([n - 2, n - 1]), part)
        assert whole.remove([0]).diagnostics.removed == of.features.shape[1]

    @pytest.mark.parametrize("kind", KINDS)
    def test_counts_of_two_are_data_twice(self, kind):
        of = labelled(kind, 13, 4, seed=5)
        twice = Labelled(kind, of.features.repeat(2, 1, 1), of.targets.repeat(2), of.weights.repeat(2))
        same(inferred(Labelled(kind, of.features, of.targets, 2 * of.weights)), inferred(twice))

    def test_more_data_tuned_again(self):
        of = labelled("labels", 29, 4, signal=0.7, seed=11)
        some = Labelled("labels", of.features[:20], of.targets[:20], of.weights[:20])
        tail = Labelled("labels", of.features[20:], of.targets[20:], of.weights[20:])
        found = inferred(some, lw.Isotropic()).update(tail.model, retune=True)
        whole = inferred(of, lw.Isotropic())
        # the search from outside stops at its own tolerance, so that only the bound is compared sharply
        assert float(found.log_evidence.value) == pytest.approx(float(whole.log_evidence.value), abs=1e-6)


class TestFiles:
    @SHAPES
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_file_predicts_the_same_and_knows_other_precisions(self, kind, n, d, tmp_path):
        of, m = labelled(kind, n, d, seed=5), 3 if kind == "classes" else 1
        posterior, new = inferred(of, lw.Isotropic()), normal(5 * m, d, seed=6)
        loaded = lw.load(posterior.save(tmp_path / "posterior"))
        for one, other in ((loaded, posterior), (loaded.at(precision=2.5), posterior.at(precision=2.5))):
            ours, theirs = one.predict(new), other.predict(new)
            torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=1e-5)
            torch.testing.assert_close(ours.epistemic_variance, theirs.epistemic_variance, rtol=1e-5, atol=0)
            assert float(one.log_evidence.value) == pytest.approx(float(other.log_evidence.value), abs=1e-8)
        assert loaded.diagnostics.curvature == posterior.diagnostics.curvature

    def test_a_given_precision_beside_a_free_one(self, tmp_path):
        of = labelled("labels", 23, 3, seed=8)
        prior = lw.PerGroup({"intercept": [0], "slopes": [1, 2]}, precision={"intercept": 0.1, "slopes": None})
        posterior, new = inferred(of, prior), normal(5, 3, seed=6)
        loaded = lw.load(posterior.save(tmp_path / "posterior"))
        at = {"intercept": 0.1, "slopes": 3.0}
        for one, other in ((loaded, posterior), (loaded.at(precision=at), posterior.at(precision=at))):
            torch.testing.assert_close(one.predict(new).mean, other.predict(new).mean, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("kind", ["labels", "classes"])
    def test_a_file_can_be_tuned(self, kind, tmp_path):
        of, held_out = labelled(kind, 29, 4, seed=5), labelled(kind, 17, 4, seed=50)
        posterior = inferred(of, lw.Isotropic())
        data = (held_out.features.reshape(-1, 4), held_out.targets)
        ours, theirs = (one.tune(data) for one in (lw.load(posterior.save(tmp_path / "posterior")), posterior))
        torch.testing.assert_close(ours.prior.precision, theirs.prior.precision, rtol=1e-3, atol=0)
        assert ours.diagnostics.held_out == pytest.approx(theirs.diagnostics.held_out, abs=1e-5)


class TestContracts:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("prior", [lw.Isotropic(), lw.Isotropic(PRECISION)], ids=["tuned", "given"])
    def test_a_search_that_is_cut_short_says_so_and_is_a_value(self, kind, prior):
        of = labelled(kind, 29, 4, signal=0.7, seed=11)
        posterior = inferred(of, prior, method=lw.Exact(newton=NewtonSteps(max_steps=1)))
        assert not posterior.diagnostics.converged
        assert posterior.diagnostics.bound_gap > 0
        prediction = posterior.predict(of.model.features.dense())
        assert bool(prediction.mean.isfinite().all())
        assert bool((prediction.epistemic_variance > 0).all())
        assert float(posterior.log_evidence.value) < float(inferred(of, prior).log_evidence.value)

    @pytest.mark.parametrize("kind", KINDS)
    def test_another_precision_says_how_its_own_search_went(self, kind):
        of = labelled(kind, 29, 4, signal=0.7, seed=11)
        posterior = inferred(of, method=lw.Exact(newton=NewtonSteps(tol=1e-6, max_steps=20)))
        assert posterior.diagnostics.converged
        far = posterior.at(precision=1e-9)
        fit = far.gaussian.fit
        assert far.diagnostics.converged == fit.ascent.converged
        assert far.diagnostics.bound_gap == fit.ascent.at.gap
        cut = inferred(of, method=lw.Exact(newton=NewtonSteps(max_steps=1))).at(precision=1e-9)
        assert not cut.diagnostics.converged
        assert bool(cut.predict(of.model.features.dense()).epistemic_variance.isfinite().all())

    def test_densities_that_are_not_log_concave_keep_laplace(self):
        X = normal(17, 2, 5, seed=0)
        model = lw.LinearModel(X.reshape(-1, 5), normal(17, seed=1), HeteroscedasticGaussian())
        assert lw.infer(model, prior=lw.Isotropic(1.0)).diagnostics.curvature != "expected over the posterior"
        with pytest.raises(ValueError, match="not log-concave"):
            lw.infer(model, prior=lw.Isotropic(1.0), curvature="expected")

    @pytest.mark.parametrize("method", [lw.KFAC(), lw.Diagonal(), lw.CG()], ids=["kfac", "diagonal", "cg"])
    def test_methods_that_take_one_point_say_what_to_do(self, method):
        of = labelled("labels", 19, 4, seed=5)
        with pytest.raises(ValueError, match=r"leave the method out, or take Exact\(\)"):
            lw.infer(of.model, prior=lw.Isotropic(1.0), method=method, curvature="expected")

    def test_print_says_that_the_evidence_is_a_lower_bound(self):
        of = labelled("counts", 29, 4, signal=0.7, seed=11)
        assert "a lower bound" in repr(inferred(of, lw.Isotropic()))
        assert "a lower bound" not in repr(inferred(of, lw.Isotropic(), curvature="mode"))

    @pytest.mark.parametrize(("asked", "said"), [(None, "expected over the posterior"), ("mode", "Hessian")])
    def test_where_the_curvature_was_taken_is_said(self, asked, said):
        posterior = inferred(labelled("labels", 19, 4, seed=5), curvature=asked)
        assert posterior.diagnostics.curvature == said


class TestNothingToLearn:
    """Labels that have nothing to do with the features: the bound is largest at an infinite precision."""

    @pytest.fixture
    def pruned(self) -> tuple[Labelled, lw.Posterior]:
        of = Labelled("labels", normal(23, 1, 3, seed=2), (normal(23, seed=4) > 0).double(), torch.ones(23).double())
        return of, inferred(of, lw.Isotropic())

    def test_then_outputs_are_zero_and_certain(self, pruned):
        of, posterior = pruned
        assert bool(posterior.prior.precision.isinf().all())
        assert float(posterior.log_evidence.value) == pytest.approx(23 * log(0.5), abs=1e-9)
        prediction = posterior.predict(of.model.features.dense())
        for what in (posterior.mean, posterior.covariance, prediction.mean, prediction.epistemic_variance):
            assert torch.equal(what, torch.zeros_like(what))
        torch.testing.assert_close(prediction.probs, torch.full((23,), 0.5, dtype=torch.float64), rtol=0, atol=1e-12)
        assert float(posterior.effective_dimension.value) == pytest.approx(0, abs=1e-9)

    def test_a_finite_precision_is_still_a_fresh_inference(self, pruned, tmp_path):
        of, posterior = pruned
        fresh, new = inferred(of, lw.Isotropic(2.5)), normal(5, 3, seed=6)
        same(posterior.at(precision=2.5), fresh)
        loaded = lw.load(posterior.save(tmp_path / "posterior"))
        assert torch.equal(loaded.predict(new).mean, posterior.predict(new).mean)
        torch.testing.assert_close(
            loaded.at(precision=2.5).predict(new).mean, fresh.predict(new).mean, rtol=0, atol=1e-5
        )

    def test_more_data_may_be_worth_it(self, pruned):
        of, posterior = pruned
        X = normal(30, 1, 3, seed=7)
        more = Labelled("labels", X, (X[:, 0, 0] > 0).double(), torch.ones(30).double())
        whole = Labelled(
            "labels", torch.cat([of.features, X]), torch.cat([of.targets, more.targets]), torch.ones(53).double()
        )
        kept, found = (posterior.update(more.model, retune=retune) for retune in (False, True))
        assert float(kept.log_evidence.value) == pytest.approx(53 * log(0.5), abs=1e-9)
        same(found, inferred(whole, lw.Isotropic()), std=1e-4)

    def test_beside_a_given_precision(self):
        """An intercept stays: that of the labels alone."""
        X = torch.cat([torch.ones(23, 1, 1).double(), normal(23, 1, 3, seed=2)], 2)
        y = (normal(23, seed=4) > -0.7).double()
        groups = {"intercept": [0], "slopes": [1, 2, 3]}
        given = {"intercept": 0.01, "slopes": None}
        found = inferred(Labelled("labels", X, y, torch.ones(23).double()), lw.PerGroup(groups, precision=given))
        alone = inferred(Labelled("labels", X[:, :, :1], y, torch.ones(23).double()), lw.Isotropic(0.01))
        assert float(found.prior.precision[1]) == float("inf")
        assert float(found.log_evidence.value) == pytest.approx(float(alone.log_evidence.value), abs=1e-9)
        torch.testing.assert_close(found.mean[:1], alone.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.covariance[:1, :1], alone.covariance, rtol=1e-5, atol=0)
        assert bool((found.mean[1:] == 0).all())


class TestNetworks:
    """Of a network the model is Jθ alone: no outputs of its own at weights of zero."""

    @pytest.fixture
    def known(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).double().eval()
        x = normal(37, 3, seed=5)
        y = (3 * network(x).detach() + 0.3 * normal(37, 5, seed=6)).argmax(1)
        weights = dict(network.named_parameters())
        jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(network, w, (x,)))(weights)
        J = torch.cat([part.detach().reshape(37, 5, -1) for part in jacobian.values()], 2)
        return network, x, y, J

    def test_a_fit_is_that_of_its_jacobian(self, known):
        network, x, y, J = known
        given, rows = {"prior": lw.Isotropic(PRECISION), "method": TIGHT}, J.reshape(-1, J.shape[2])
        found = lw.fit(network, (x, y), lw.Categorical(), progress=False, **given)
        dense = lw.infer(lw.LinearModel(rows, y, lw.Categorical()), **given)
        same(found, dense)
        ours, theirs = found.predict(x), dense.predict(rows)
        torch.testing.assert_close(ours.mean, J @ found.mean, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(ours.epistemic_variance, theirs.epistemic_variance, rtol=1e-5, atol=0)
        torch.testing.assert_close(ours.probs, theirs.probs, rtol=0, atol=1e-5)

    def test_the_prior_is_that_of_the_better_bound(self, known):
        network, x, y, _ = known

        def fitted(prior: Prior | None) -> lw.Posterior:
            return lw.fit(network, (x, y), lw.Categorical(), prior=prior, method=TIGHT, progress=False)

        found, options = fitted(None), {"GPrior": lw.GPrior(), "Isotropic": lw.Isotropic()}
        each = {name: float(fitted(prior).log_evidence.value) for name, prior in options.items()}
        assert found.diagnostics.prior == max(each, key=each.__getitem__)
        assert float(found.log_evidence.value) == pytest.approx(max(each.values()), abs=1e-8)

    def test_a_file_goes_on(self, known, tmp_path):
        network, x, y, _ = known
        posterior = lw.fit(network, (x, y), lw.Categorical(), prior=lw.Isotropic(), method=TIGHT, progress=False)
        loaded = lw.load(posterior.save(tmp_path / "posterior"), network)
        for one, other in ((loaded, posterior), (loaded.at(precision=2.5), posterior.at(precision=2.5))):
            torch.testing.assert_close(one.predict(x).probs, other.predict(x).probs, rtol=0, atol=1e-5)
        more = normal(4, 3, seed=8), torch.tensor([0, 3, 1, 4])
        ours, theirs = (one.update(more).predict(x) for one in (loaded, posterior))
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=1e-4)
