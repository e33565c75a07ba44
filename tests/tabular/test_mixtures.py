"""Mixtures of Gaussians against sums over their members and scipy."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from lapwing.tabular.mixtures import Mixture

MEANS = torch.tensor([[0.0, 5.0], [1.0, -3.0], [4.0, 5.5]], dtype=torch.float64)
STDS = torch.tensor([[1.0, 0.2], [0.3, 2.0], [2.0, 0.5]], dtype=torch.float64)
MIXTURE = Mixture(MEANS, STDS)


def test_moments_are_those_of_the_density():
    grid = np.linspace(-30, 40, 200_001)
    for place in range(2):
        density = norm.pdf(grid[:, None], MEANS[:, place], STDS[:, place]).mean(1)
        mean = np.trapezoid(grid * density, grid)
        variance = np.trapezoid((grid - mean) ** 2 * density, grid)
        assert float(MIXTURE.mean[place]) == pytest.approx(mean, abs=1e-9)
        assert float(MIXTURE.std[place]) == pytest.approx(variance**0.5, rel=1e-9)


def test_log_density():
    values = torch.tensor([0.7, 5.2], dtype=torch.float64)
    truth = np.log(norm.pdf(values, MEANS, STDS).mean(0))
    np.testing.assert_allclose(MIXTURE.log_density(values), truth, rtol=1e-12)
    far = torch.full((2,), 1e4, dtype=torch.float64)
    assert MIXTURE.log_density(far).isfinite().all()


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_intervals_hold_their_probability(level):
    low, high = MIXTURE.interval(level)
    np.testing.assert_allclose(MIXTURE.cdf(low), (1 - level) / 2, rtol=1e-9)
    np.testing.assert_allclose(MIXTURE.cdf(high), (1 + level) / 2, rtol=1e-12)


def test_one_member_is_a_gaussian():
    low, high = Mixture(MEANS[:1], STDS[:1]).interval(0.9)
    np.testing.assert_allclose(torch.stack([low, high]), norm.interval(0.9, MEANS[0], STDS[0]), rtol=1e-12)
