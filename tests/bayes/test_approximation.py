"""Laplace's approximation of plain densities, against closed forms and quadrature."""

from math import lgamma, log, pi

import numpy as np
import pytest
import scipy.integrate
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lapwing import laplace_approximation
from tests.network.networks import normal

ROOT = normal(3, 3, seed=1) + 2 * torch.eye(3).double()
CENTRE = torch.tensor([0.3, -2.0, 5.0]).double()


def test_a_gaussian_is_its_own_approximation():
    covariance = ROOT @ ROOT.mT

    def log_density(x: Tensor) -> Tensor:
        away = x - CENTRE
        return 1.7 - 0.5 * away @ torch.linalg.solve(covariance, away)

    found = laplace_approximation(log_density, [0.0, 0.0, 0.0])
    torch.testing.assert_close(found.mode, CENTRE, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.covariance, covariance, rtol=1e-8, atol=1e-8)
    expected = 1.7 + 1.5 * log(2 * pi) + 0.5 * float(torch.linalg.slogdet(covariance).logabsdet)
    assert found.log_normaliser == pytest.approx(expected, abs=1e-8)
    torch.testing.assert_close(found.distribution.mean, CENTRE, rtol=1e-8, atol=1e-8)


def test_the_gamma_integral_gives_stirlings_formula():
    """∫ xⁿ e⁻ˣ dx = n!, and Laplace's approximation of it is n log n − n + ½ log 2πn: off by 1/12n."""
    n = 40.0
    found = laplace_approximation(lambda x: (n * x.log() - x).sum(), [7.0])
    assert float(found.mode) == pytest.approx(n, rel=1e-9)
    assert float(found.covariance) == pytest.approx(n, rel=1e-8)
    assert lgamma(n + 1) - found.log_normaliser == pytest.approx(1 / (12 * n), rel=1e-2)


def test_the_evidence_of_a_logistic_regression_is_that_of_quadrature():
    """Two weights, 50 labels: within 0.1 nat, and the gradient at the mode below 1e-6."""
    x, signs = normal(50, 2, seed=3), normal(50, seed=4).sign()

    def log_density(w: Tensor) -> Tensor:
        return logsigmoid(signs * (x @ w)).sum() - 0.5 * w @ w - log(2 * pi)

    found = laplace_approximation(log_density, [2.0, -1.0])
    assert found.gradient < 1e-6
    width = 8 * found.covariance.diagonal().sqrt()
    low, high = (found.mode - width).tolist(), (found.mode + width).tolist()
    integral, _ = scipy.integrate.dblquad(
        lambda b, a: float(log_density(torch.tensor([a, b]).double()).exp()) * 1e12, low[0], high[0], low[1], high[1],
        epsabs=0, epsrel=1e-4,
    )  # fmt: skip
    assert found.log_normaliser == pytest.approx(np.log(integral) - 12 * log(10), abs=0.1)


@pytest.mark.parametrize(
    ("log_density", "start", "message"),
    [
        (lambda x: x.square().sum(), [1.0, 2.0], "no maximum was found"),
        (lambda x: -0.5 * x[0].square() + 0 * x[1], [1.0, 2.0], "no maximum was found"),
        (lambda x: -x.square(), [1.0, 2.0], r"returned \(2,\), expected a tensor with one number"),
        (lambda x: float(x[0]), [1.0, 2.0], "returned float"),
        (lambda x: x.log().sum() - x.sum(), [-1.0, 2.0], "log_density is nan at the start"),
    ],
    ids=["no peak", "flat", "a vector", "a float", "outside"],
)
def test_what_has_no_approximation_is_refused(log_density, start, message):
    with pytest.raises(ValueError, match=message):
        laplace_approximation(log_density, start)
