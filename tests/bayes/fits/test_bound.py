"""The best Gaussian and its bound as theorems: one optimum, below the evidence by a divergence, stationary in everything."""

from math import exp, log

import pytest
import torch
from scipy.stats import f as f_distribution
from torch import Tensor

import lapwing as lw
from lapwing.bayes.fits import bound as bounds
from lapwing.bayes.fits.bound import Ascent, Search
from lapwing.bayes.fits.bound_search import BoundSearch
from lapwing.bayes.fits.newton import NewtonSteps
from tests.bayes.fits.labelled import Labelled, average, bound, labelled, log_evidence, normal, outputs

PRECISION = 0.7
TIGHT = 1e-13  # nats
ALONE = ["labels", "counts"]
KINDS = [*ALONE, "classes"]


def search_of(of: Labelled, precision: float = PRECISION, tol: float = TIGHT) -> BoundSearch:
    prior = lw.Isotropic(precision).on(of.model.features, of.weights)
    return BoundSearch.of(of.model, prior, 0, NewtonSteps(tol=tol))


def gaussian_of(search: BoundSearch, found: Ascent) -> tuple[Tensor, Tensor, Tensor]:  # (d,), (d,), (d, d)
    """Precisions, mean and covariance of the weights, from the whitened ones; their columns are not reduced."""
    inverse = torch.cholesky_inverse(found.at.factor) * exp(-found.at.log_precision)
    return torch.full((len(inverse),), exp(found.at.log_precision), dtype=torch.float64), search.weights(found), inverse


class TestGaussianNoise:
    """Where log p is quadratic the best Gaussian is the posterior and its bound the evidence."""

    @pytest.mark.parametrize(("n", "d"), [(23, 5), (7, 11)], ids=["more data", "more weights"])
    def test_the_maximum_is_the_posterior(self, n, d):
        X, y, weights = normal(n, d, seed=0), normal(n, seed=1), 0.5 + normal(n, seed=2).abs()
        model = lw.LinearModel(X, y, lw.Gaussian(0.6), weights=weights)
        search = BoundSearch.of(model, lw.Isotropic(PRECISION).on(model.features, weights), 0, NewtonSteps(tol=TIGHT))
        found = search.at(PRECISION, None)
        noise = weights / 0.36
        covariance = torch.linalg.inv(PRECISION * torch.eye(d).double() + X.mT @ (noise[:, None] * X))
        torch.testing.assert_close(search.weights(found), covariance @ X.mT @ (noise * y), rtol=1e-8, atol=1e-10)
        density = -0.5 * weights * log(2 * torch.pi * 0.36)
        fit = y - X @ search.weights(found)
        evidence = density.sum() - 0.5 * noise @ fit.square() - 0.5 * PRECISION * search.weights(found).square().sum()
        evidence = evidence + 0.5 * (torch.logdet(covariance) + d * log(PRECISION))
        assert found.converged
        assert found.at.bound == pytest.approx(float(evidence), abs=1e-8)
        torch.testing.assert_close(search.curvature(found)[:, 0, 0], noise, rtol=1e-12, atol=0)

    def test_the_best_precision_is_that_of_the_evidence(self):
        X, y = normal(23, 5, seed=0), normal(23, seed=1)
        model = lw.LinearModel(X, y + X @ normal(5, seed=3), lw.Gaussian(0.6))
        search = BoundSearch.of(model, lw.Isotropic().on(model.features, model.weights), 0, NewtonSteps(tol=TIGHT))
        found, exact = search.maximum(), lw.infer(model, prior=lw.Isotropic())
        assert found.at.bound == pytest.approx(float(exact.log_evidence.value), abs=1e-8)
        # both are where a slope is zero, to a square root of their tolerance in nats
        assert found.at.log_precision == pytest.approx(float(exact.prior.precision.log()), abs=1e-5)


class TestOneOptimum:
    """At a fixed prior searches end at one Gaussian, wherever they start: to 1e-6 of a posterior standard deviation.

    A gap of 1e-13 nats bounds the Newton step by √2 · 3e-7 of those, and the step of B by 2 · 3e-7 of their squares.
    """

    @pytest.mark.parametrize(("n", "d"), [(19, 4), (7, 11)], ids=["more data", "more weights"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_from_random_starts(self, kind, n, d):
        of = labelled(kind, n, d, seed=5)
        # points of several classes are a smooth function too: its own maximum is found as sharply
        rows = search_of(of).rows
        first = bounds.at_precision(rows, log(PRECISION), TIGHT)
        assert first.converged
        k = rows.offset.shape[1]
        for seed in range(4):
            root = normal(n, k, k, seed=20 + seed)
            search = Search(rows, TIGHT, bounds.MAX_STEPS)
            start = search.at(log(PRECISION), 0.5 * normal(rows.size, seed=seed), 0.3 * root @ root.mT)
            assert start.bound < first.at.bound - 0.1
            found = search.ascend(start, tune=False)
            assert found.converged
            assert found.at.bound == pytest.approx(first.at.bound, abs=1e-9)
            torch.testing.assert_close(found.at.mean, first.at.mean, rtol=0, atol=1e-6)
            assert float(((found.at.curvature - first.at.curvature) @ first.at.variances).abs().max()) < 1e-6

    @pytest.mark.parametrize("kind", KINDS)
    def test_under_priors_however_wide(self, kind):
        """Where the mean rate of a count under the prior is e^(v/2), which is 1e300 or none at all."""
        rows = search_of(labelled(kind, 19, 4, seed=5)).rows
        near = bounds.at_precision(rows, 0.0, 1e-9)
        for log_precision in (-30.0, -12.0, -7.0, -6.0, -5.0, -4.0, -3.0, 20.0):
            found = bounds.at_precision(rows, log_precision, 1e-9)
            again = bounds.from_near(rows, near, log_precision, 1e-9)
            assert found.converged
            assert again.converged
            assert again.at.bound == pytest.approx(found.at.bound, abs=1e-7)

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_step_lowers_the_bound(self, kind):
        rows = search_of(labelled(kind, 19, 4, seed=5)).rows
        reached = []
        for steps in range(1, 9):
            search = Search(rows, TIGHT, steps)
            reached.append(search.ascend(search.start(log(PRECISION)), tune=True).at.bound)
        assert reached == sorted(reached)


class TestAgainstTheEvidence:
    @pytest.mark.parametrize("d", [2, 3])
    @pytest.mark.parametrize("kind", ALONE)
    def test_the_gap_is_the_divergence(self, kind, d):
        """log p(y) − bound = KL(q ‖ posterior) ≥ 0, the latter from the joint density on a grid under q."""
        of = labelled(kind, 11, d, seed=3)
        search = search_of(of)
        found = search.at(PRECISION, None)
        at = gaussian_of(search, found)
        evidence = log_evidence(of, *at, points=161 if d == 2 else 61, reach=15.0)
        precision, mean, covariance = at
        root = torch.linalg.cholesky(covariance)
        axes = torch.linspace(-9, 9, 121 if d == 2 else 61, dtype=torch.float64)
        z = torch.cartesian_prod(*[axes] * d)
        weights, theta = (-0.5 * z.square().sum(1)).softmax(0), mean + z @ root.mT
        joint = of.log_density(torch.einsum("nkd,pd->pnk", of.differences, theta)) @ of.weights
        joint = joint - 0.5 * theta.square() @ precision + 0.5 * (precision / (2 * torch.pi)).log().sum()
        own = -0.5 * z.square().sum(1) - 0.5 * d * log(2 * torch.pi) - root.diagonal().log().sum()
        divergence = float(weights @ (own - joint)) + evidence
        assert divergence > 1e-3
        assert evidence - found.at.bound == pytest.approx(divergence, abs=1e-6)

    def test_classes_are_as_near_as_is_said(self):
        """By points the bound has an error, and the one said is how far other points are: √2 times as far.

        So over problems the ratio of their squares is half of an F variable, which in one of 10⁴ cases is larger.
        """
        off, said = [], []
        for seed in range(12):
            of = labelled("classes", 11, 2 + seed % 2, seed=10 * seed)
            search = search_of(of)
            found = search.at(PRECISION, None)
            at = gaussian_of(search, found)
            dense = float(bound(of, *at))
            assert dense < log_evidence(of, *at, points=101 if seed % 2 == 0 else 41, reach=12.0)
            off.append(found.at.bound - dense)
            said.append(search.quadrature_error(found))
        ratio = torch.tensor(off).square().sum() / torch.tensor(said).square().sum()
        assert float(ratio) < 0.5 * f_distribution.ppf(1 - 1e-4, 12, 12)

    def test_one_output_has_no_error_of_points(self):
        search = search_of(labelled("labels", 11, 3, seed=3))
        assert search.quadrature_error(search.at(PRECISION, None)) == 0


class TestStationarity:
    @pytest.mark.parametrize("kind", ALONE)
    def test_mean_and_curvature_are_averages(self, kind):
        """Am = Φᵀ E_q[∂ log p] and B = −2 ∂/∂V of E_q log p, both by autodiff of sums over another grid."""
        of = labelled(kind, 19, 4, seed=7)
        search = search_of(of)
        found = search.at(PRECISION, None)
        precision, mean, covariance = gaussian_of(search, found)
        f, V = (part.requires_grad_() for part in outputs(of, mean, covariance))
        gradient, slope = torch.autograd.grad(of.weights @ average(of, f, V, 801), (f, V))
        D = of.differences
        left = precision * mean - torch.einsum("nkd,nk->d", D, gradient)
        assert float(left @ covariance @ left) < 2 * TIGHT
        B = search.curvature(found)
        assert float(((B + slope + slope.mT) @ V.detach()).abs().max()) < 2 * TIGHT**0.5  # what a gap of that leaves
        inverse = torch.diag(precision) + torch.einsum("nad,nab,nbe->de", D, B, D)
        torch.testing.assert_close(covariance @ inverse, torch.eye(4).double(), rtol=0, atol=1e-10)
        assert found.at.bound == pytest.approx(float(bound(of, precision, mean, covariance)), abs=1e-9)

    def test_of_classes_too_within_their_points(self):
        """The points' error of an average is about 1e-3 of one: gradients and curvatures of classes are below one."""
        of = labelled("classes", 19, 4, seed=7)
        search = search_of(of)
        found = search.at(PRECISION, None)
        precision, mean, covariance = gaussian_of(search, found)
        f, V = (part.requires_grad_() for part in outputs(of, mean, covariance))
        gradient, slope = torch.autograd.grad(of.weights @ average(of, f, V, 141), (f, V))
        D, C = of.differences, of.model.likelihood.contrasts(3)
        own = search.curvature(found)  # of the contrasts Cᵀf; differences are f = T C Cᵀ f with T their coefficients
        T = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]).double() @ C
        expected = T.mT @ -(slope + slope.mT) @ T
        torch.testing.assert_close(own, expected, rtol=0, atol=2e-2)
        error = precision * mean - torch.einsum("nkd,nk->d", D, gradient)
        assert float(error @ covariance @ error) ** 0.5 < 2e-2  # in posterior standard deviations

    def test_nothing_near_by_is_higher(self):
        """The dense bound falls in every direction of mean and covariance, quadratically."""
        of = labelled("labels", 19, 4, seed=7)
        search = search_of(of)
        precision, mean, covariance = gaussian_of(search, search.at(PRECISION, None))
        root, top = torch.linalg.cholesky(covariance), bound(of, precision, mean, covariance)
        for seed in range(6):
            turn = normal(4, 4, seed=seed)
            for size in (1e-2, -1e-2):
                near = root @ torch.linalg.matrix_exp(size * (turn + turn.mT)) @ root.mT
                assert bound(of, precision, mean + size * root @ normal(4, seed=seed), near) < top - 1e-6


class TestPrecision:
    @pytest.mark.parametrize(("n", "d"), [(29, 4), (9, 13)], ids=["more data", "more weights"])
    @pytest.mark.parametrize("kind", ALONE)
    def test_the_maximum_is_mackays_fixed_point(self, kind, n, d):
        search = search_of(labelled(kind, n, d, signal=0.7, seed=11))
        found = search.maximum()
        assert found.converged
        precision, mean = exp(found.at.log_precision), search.weights(found)
        determined = found.at.determined
        assert precision == pytest.approx(determined / float(mean.square().sum()), rel=1e-6)
        h, at = 1e-3, found.at.log_precision
        up, down = (search.at(exp(at + step), found).at.bound for step in (h, -h))
        assert (up - down) / (2 * h) == pytest.approx(0, abs=1e-6)  # their own error is h² of a third derivative
        assert min(found.at.bound - up, found.at.bound - down) > 0

    @pytest.mark.parametrize("kind", ALONE)
    def test_searches_from_all_precisions_end_within_the_tolerance(self, kind):
        """Also where data determine the weights, so that z follows α: counts up to thirty, of eighty data.

        A search ends where each of three steps gains no more than it: of z and W, of α with z kept, of α with m kept.
        """
        rows = search_of(labelled(kind, 80, 6, signal=1.0, seed=1094)).rows
        found = []
        for std in (0.3, 2.0, 16.0):
            search = Search(rows, 1e-6, bounds.MAX_STEPS)
            ascent = search.ascend(search.start(log(rows.prior_variance / std**2)), tune=True)
            assert ascent.converged
            assert ascent.steps < 30
            found.append(ascent.at.bound)
        assert max(found) - min(found) < 3e-6

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_precision_of_a_scan_is_better(self, kind):
        """By points too: those of all precisions are the same, so that the bound is one smooth function."""
        search = search_of(labelled(kind, 29, 4, signal=0.7, seed=11), tol=1e-9)
        found = search.maximum()
        scan = [search.at(exp(found.at.log_precision + step), None).at.bound for step in (-3, -1, -0.1, 0.1, 1, 3)]
        assert max(scan) < found.at.bound - 1e-4
        assert scan[:3] == sorted(scan[:3])
        assert scan[3:] == sorted(scan[3:], reverse=True)

    @pytest.mark.parametrize("kind", ALONE)
    def test_the_slope_is_that_of_the_bound_at_fixed_whitened_weights(self, kind):
        rows = search_of(labelled(kind, 19, 4, seed=5)).rows
        search, h = Search(rows, TIGHT, 3), 1e-5
        root = normal(19, 1, 1, seed=3)
        there = [search.at(step, 0.3 * normal(4, seed=2), 0.2 * root @ root.mT) for step in (-h, 0.0, h)]
        assert there[1].slope == pytest.approx((there[2].bound - there[0].bound) / (2 * h), abs=1e-7)
        moved = search.averaged(there[1], h)
        assert moved.bound == pytest.approx(there[2].bound, abs=1e-12)

    @pytest.mark.parametrize(("n", "d", "seed", "inside"), [(8, 10, 133, True), (12, 3, 234, False)])
    def test_of_two_maxima_the_better_is_found(self, n, d, seed, inside):
        """Labels follow the smallest feature: either that is worth its prior, or the best is to believe in nothing.

        Then the bound is n log ½ at an infinite precision, which a search approaches.
        """
        X = normal(n, d, seed=seed) * torch.logspace(-2, 1, d, dtype=torch.float64)
        model = lw.LinearModel(X, (X[:, 0] > 0).double(), lw.Bernoulli())
        search = BoundSearch.of(model, lw.Isotropic().on(model.features, model.weights), 0, NewtonSteps(tol=1e-8))
        scan = torch.tensor([search.at(exp(at), None).at.bound for at in range(-8, 15)], dtype=torch.float64)
        rising = scan.diff() > 0
        assert bool((rising[:-1] & ~rising[1:]).any())  # a maximum inside,
        assert bool(rising[-1])  # and one at infinity
        found = search.maximum().at
        assert found.bound > float(scan.max())
        assert (found.log_precision < 5) == inside
        if not inside:
            assert found.bound == pytest.approx(n * log(0.5), abs=1e-3)
