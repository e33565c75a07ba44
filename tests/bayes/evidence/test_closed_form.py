"""The evidence as sums over a spectrum: its values against the dense normal density, its slopes against differences."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from lapwing import GammaHyperprior
from lapwing.bayes.evidence.closed_form import ClosedForm

RNG = np.random.default_rng(4)
ROWS = RNG.normal(size=(11, 5))
TARGETS = ROWS @ [1.0, -2.0, 0.3, 0.0, 0.5] + RNG.normal(size=11)
PRIOR, NOISE = GammaHyperprior(2.0, 0.5), GammaHyperprior(1.0, 0.3)


def sums(prior=PRIOR, noise=NOISE) -> ClosedForm:
    left, singular, _ = np.linalg.svd(ROWS, full_matrices=False)
    seen = left.T @ TARGETS
    rest = float(((TARGETS - left @ seen) ** 2).sum())
    return ClosedForm(singular**2, seen**2, np.ones(5), rest, 11.0, 0.0, prior, noise)


@pytest.mark.parametrize(("prior", "noise"), [(0.4, 2.5), (30.0, 0.2)])
def test_values_are_those_of_the_dense_normal_density(prior, noise):
    dense = multivariate_normal(cov=ROWS @ ROWS.T / prior + np.eye(11) / noise).logpdf(TARGETS)
    hyperpriors = 2 * math.log(prior) - 0.5 * prior + math.log(noise) - 0.3 * noise
    assert sums().slopes(math.log(prior), math.log(noise)).value == pytest.approx(dense + hyperpriors, rel=1e-12)


def test_gradient_and_hessian_are_differences_of_values_and_gradients():
    """Central differences of steps h err by about h²: 1e-8 of numbers near one."""
    x, h, known = np.array([0.3, -0.2]), 1e-4, sums()
    at = known.slopes(*x)
    found = [(known.slopes(*(x + h * e)), known.slopes(*(x - h * e))) for e in np.eye(2)]
    slopes = [(up.value - down.value) / (2 * h) for up, down in found]
    np.testing.assert_allclose(slopes, [at.prior, at.noise], atol=1e-7)
    bends = [[(up.prior - down.prior) / (2 * h), (up.noise - down.noise) / (2 * h)] for up, down in found]
    expected = [[at.prior_prior, at.prior_noise], [at.prior_noise, at.noise_noise]]
    np.testing.assert_allclose(bends, expected, atol=1e-7)


def test_the_best_noise_of_a_ratio_is_stationary_along_it():
    ratios = np.array([0.7, 20.0])
    for ratio, noise, value in zip(ratios, *sums().at_ratios(ratios), strict=True):
        at = sums().slopes(math.log(ratio * noise), math.log(noise))
        assert at.value == pytest.approx(value, rel=1e-12)
        assert at.prior + at.noise == pytest.approx(0, abs=1e-10)  # the direction in which the ratio stays


def test_newton_steps_end_where_the_gradient_does_and_go_uphill():
    prior, noise, trace = sums().maximum(0.0, 0.0, enough=1e-9)
    at = sums().slopes(prior, noise)
    assert max(abs(at.prior), abs(at.noise)) <= 1e-9
    assert all(later >= earlier - 1e-10 for earlier, later in pairwise(trace))


def test_steps_that_lead_nowhere_are_given_up():
    """Far on the side of stiff priors the evidence is convex, and one step is not enough from a good start."""
    assert sums(GammaHyperprior(0, 0), GammaHyperprior(0, 0)).maximum(30.0, 0.0, enough=1e-9) is None
    assert sums().maximum(0.0, 0.0, enough=1e-9, most=1) is None
