"""Averages over Gaussian outputs, against adaptive quadrature and against differences of the sums themselves."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from lapwing.bayes.likelihoods import expectation
from lapwing.bayes.likelihoods.expectation import WIDE, by_points, by_quadrature, logistic, normal_points
from lapwing.bayes.likelihoods.poisson import Poisson

N, C = 4, 3


def softplus(f: float) -> float:
    return float(np.logaddexp(0.0, f))


def sigmoid(f: float) -> float:
    return float(np.exp(-np.logaddexp(0.0, -f)))


def averaged(function, mean: float, std: float) -> float:
    """E function(f), f ~ N(mean, std²), split where the Gaussian and where a logistic function turn."""
    logistic_turns = [turn for turn in (-40.0, -10.0, -2.0, 0.0, 2.0, 10.0, 40.0) if abs(turn - mean) < 12 * std]
    places = sorted([mean + std * step for step in (-12, -6, -3, -1, 0, 1, 3, 6, 12)] + logistic_turns)

    def density(f: float) -> float:
        return function(f) * np.exp(-0.5 * ((f - mean) / std) ** 2) / (std * (2 * np.pi) ** 0.5)

    return sum(quad(density, low, high, epsabs=1e-14, epsrel=1e-13)[0] for low, high in pairwise(places))


class TestLogistic:
    @pytest.mark.parametrize("std", [0.01, 0.3, 1.0, 2.5, 5.0, 5.999, 6.001, 9.0, 40.0, 300.0])
    def test_is_the_average(self, std):
        """Both to 1e-9 of one, or of E log(1 + eᶠ) where outputs are as wide as hundreds."""
        mean = torch.tensor([-60.0, -7.0, -0.4, 0.0, 1.3, 9.0, 35.0]).double()
        found = logistic(mean, torch.full_like(mean, std**2))
        functions = (softplus, sigmoid, lambda f: sigmoid(f) * sigmoid(-f))
        for values, function in zip(found, functions, strict=True):
            expected = torch.tensor([averaged(function, at, std) for at in mean.tolist()], dtype=torch.float64)
            torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)

    def test_both_branches_agree_where_they_meet(self):
        """Across a step of 1e-9 in the standard deviation the averages move by less than that: their slope is below one."""
        mean = torch.linspace(-30, 30, 61).double()
        below, above = (logistic(mean, torch.full_like(mean, (WIDE + step) ** 2)) for step in (-5e-10, 5e-10))
        for one, other in zip(below, above, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-9)

    def test_blocks_of_data_change_nothing(self, monkeypatch):
        """Each datum is averaged by itself; only the mean over data behind the error is summed in another order."""
        mean, covariance = covariances(3)
        whole = by_points(softmax, mean, covariance)
        monkeypatch.setattr(expectation, "BLOCK", 1)
        by_one = by_points(softmax, mean, covariance)
        for name in ("log_density", "gradient", "curvature"):
            torch.testing.assert_close(getattr(by_one, name), getattr(whole, name), rtol=1e-13, atol=1e-14)
        assert by_one.standard_error == pytest.approx(whole.standard_error, rel=1e-10)

    def test_outputs_without_variance_are_certain(self):
        mean = torch.tensor([[-3.0, 0.0, 2.0], [50.0, -50.0, 700.0]]).double()
        found = logistic(mean, torch.zeros_like(mean))
        p = mean.sigmoid()
        expected = torch.nn.functional.softplus(mean), p, p * (-mean).sigmoid()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def covariances(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean, root = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((N, C), (N, C, C)))
    return mean, root @ root.mT + 0.1 * torch.eye(C).double()


def softmax(at: Tensor, data: slice) -> tuple[Tensor, Tensor]:
    """log p of class 0 and its gradient, outputs (c, n, points)."""
    first = torch.zeros_like(at)
    first[0] = 1
    return at.log_softmax(0)[0], first - at.softmax(0)


class TestByPoints:
    def test_the_points_have_a_mean_of_zero_and_a_covariance_of_one(self):
        points = normal_points(C, 64, 5)
        torch.testing.assert_close(points.mean(0), torch.zeros(C).double(), rtol=0, atol=1e-14)
        torch.testing.assert_close(points.mT @ points / 64, torch.eye(C).double(), rtol=0, atol=1e-13)
        assert not torch.equal(points, normal_points(C, 64, 6))

    def test_gradient_is_the_derivative_in_the_mean(self):
        """Central differences with a step of 1e-5: their error is its square, 1e-10, and round-off of 1e-11."""
        mean, covariance = covariances()
        found, h = by_points(softmax, mean, covariance, count=64), 1e-5
        for axis in range(C):
            step = torch.zeros(C).double()
            step[axis] = h
            up, down = (by_points(softmax, mean + sign * step, covariance, count=64) for sign in (1, -1))
            change = (up.log_density - down.log_density) / (2 * h)
            torch.testing.assert_close(found.gradient[:, axis], change, rtol=0, atol=1e-9)

    def test_curvature_is_minus_twice_the_derivative_in_the_covariance(self):
        """Also of few points, which know the average itself to two digits only."""
        mean, covariance = covariances()
        found, h = by_points(softmax, mean, covariance, count=64), 1e-5
        for a in range(C):
            for b in range(a + 1):
                step = torch.zeros(C, C).double()
                step[a, b] = step[b, a] = h
                up, down = (by_points(softmax, mean, covariance + sign * step, count=64) for sign in (1, -1))
                change = (up.log_density - down.log_density) / (2 * h)
                pair = found.curvature[:, a, b] * (1 if a == b else 2)
                torch.testing.assert_close(-0.5 * pair, change, rtol=0, atol=1e-8)
        assert torch.equal(found.curvature, found.curvature.mT)

    def test_logarithms_that_are_quadratic_are_averaged_exactly(self):
        """To 1e-9: the jitter of 1e-11 of the variance moves them by as much."""
        mean, covariance = covariances(1)
        H = torch.tensor([[2.0, 0.3, -0.1], [0.3, 1.0, 0.2], [-0.1, 0.2, 0.5]]).double()
        centre = torch.tensor([0.5, -1.0, 2.0]).double()

        def density(at: Tensor, data: slice) -> tuple[Tensor, Tensor]:
            away = at - centre[:, None, None]
            slope = -torch.einsum("ab,bnp->anp", H, away)
            return 0.5 * (away * slope).sum(0), slope

        found = by_points(density, mean, covariance, count=16)
        away = mean - centre
        expected = -0.5 * ((away @ H * away).sum(1) + torch.einsum("ab,nba->n", H, covariance))
        torch.testing.assert_close(found.log_density, expected, rtol=1e-9, atol=0)
        torch.testing.assert_close(found.gradient, -away @ H, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.curvature, H.expand(N, C, C), rtol=1e-9, atol=1e-9)

    def test_another_seed_is_within_a_few_of_the_errors_said(self):
        mean, covariance = covariances(2)
        one, other = (by_points(softmax, mean, covariance, seed) for seed in (0, 1))
        moved = abs(float((one.log_density - other.log_density).mean()))
        assert 0 < moved < 5 * (one.standard_error**2 + other.standard_error**2) ** 0.5

    def test_blocks_of_data_change_nothing(self, monkeypatch):
        """Each datum is averaged by itself; only the mean over data behind the error is summed in another order."""
        mean, covariance = covariances(3)
        whole = by_points(softmax, mean, covariance)
        monkeypatch.setattr(expectation, "BLOCK", 1)
        by_one = by_points(softmax, mean, covariance)
        for name in ("log_density", "gradient", "curvature"):
            torch.testing.assert_close(getattr(by_one, name), getattr(whole, name), rtol=1e-13, atol=1e-14)
        assert by_one.standard_error == pytest.approx(whole.standard_error, rel=1e-10)

    def test_outputs_without_variance_are_certain(self):
        mean, _ = covariances()
        found = by_points(softmax, mean, torch.zeros(N, C, C).double())
        torch.testing.assert_close(found.log_density, mean.log_softmax(1)[:, 0], rtol=1e-12, atol=0)
        torch.testing.assert_close(found.gradient, torch.eye(C)[0].double() - mean.softmax(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("std", [0.01, 1.0, 3.0])
def test_quadrature_of_counts_is_the_closed_form(std):
    """The trapezoidal rule, which knows nothing of exponentials, against E eᶠ = e^(m + v/2)."""
    of, mean = Poisson(), torch.tensor([-1.0, 0.5, 2.0]).double()
    targets, variance = torch.tensor([0.0, 2.0, 7.0]).double(), torch.full((3,), std**2).double()

    def values(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return of.log_density(at, targets), of.gradient(at, targets), of.hessian_diagonal(at, None, targets)

    found, expected = by_quadrature(values, mean, variance), of.expected(mean, variance, targets)
    for name in ("log_density", "gradient", "curvature"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
