"""Samples of the priors, against integrals over a grid and closed forms."""

import math

import pytest
import torch

from lapwing.tomography import filter_samples, predcp_samples, tv_samples
from tests.properties import check_covariance
from tests.tomography import problems


def test_images_of_total_variation_have_the_moments_of_their_density():
    """Four pixels, their density summed over a grid: mean, variance, covariances and mean TV."""
    weight, draws = 3.0, 8000
    axis = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    a, b, c, d = torch.meshgrid(axis, axis, axis, axis, indexing="ij")  # [[a, b], [c, d]]
    tv = (a - b).abs() + (c - d).abs() + (a - c).abs() + (b - d).abs()
    density = torch.exp(-weight * tv)
    density /= density.sum()
    x = tv_samples(2, weight, draws=draws, sweeps=30, seed=3).reshape(draws, 4)
    found_tv = x.reshape(-1, 2, 2).diff(dim=1).abs().sum((1, 2)) + x.reshape(-1, 2, 2).diff(dim=2).abs().sum((1, 2))
    statistics = {
        "mean": (x[:, 0], a), "square": (x[:, 1].square(), b.square()), "beside": (x[:, 0] * x[:, 1], a * b),
        "across": (x[:, 0] * x[:, 3], a * d), "tv": (found_tv, tv),
    }  # fmt: skip
    for name, (sampled, exactly) in statistics.items():
        mean, error = float(sampled.mean()), float(sampled.std()) / draws**0.5
        # a grid of midpoints errs by h²/24 of second derivatives, and by h/4 a difference where they meet
        assert abs(mean - float((density * exactly).sum())) <= 5 * error + 2e-3, name


def test_a_pixel_at_the_edge_has_fewer_neighbours():
    weight, draws = 6.0, 2000
    x = tv_samples(3, weight, draws=draws, sweeps=40, seed=1)
    assert x.min() >= 0
    assert x.max() <= 1
    inner, corner = ((x[:, i, i] - x.mean((1, 2))).square() for i in (1, 0))
    assert inner.mean() < corner.mean()  # the middle is tied to four others, a corner to two


def test_images_of_the_filters_have_their_covariance():
    linear = problems.linear()
    prior = problems.prior(linear.blocks)
    J = problems.dense_jacobian(linear.reconstruction)
    expected = J @ problems.dense_covariance(linear.reconstruction.model, prior) @ J.mT
    kept = expected.diagonal() > 1e-8 * expected.diagonal().max()
    drawn = filter_samples(linear, prior, draws=3000).reshape(3000, -1)
    check_covariance(drawn[:, kept].mT, expected[kept][:, kept])


def test_gaussian_images_have_an_expected_tv_that_is_exponential():
    """The mean over ℓ of E[TV | ℓ] is that of an exponential variable cut off where pixels are independent."""
    size, draws, std = 5, 4000, 0.7
    largest = math.sqrt(2 / math.pi) * 2 * size * (size - 1) * math.sqrt(2) * std  # differences of variance 2 std²
    rate = 3 / largest
    x = predcp_samples(size, rate, draws=draws, std=std, seed=2)
    totals = x.diff(dim=1).abs().sum((1, 2)) + x.diff(dim=2).abs().sum((1, 2))
    expected = (1 - 4 * math.exp(-3)) / (1 - math.exp(-3)) / rate
    assert abs(float(totals.mean()) - expected) <= 5 * float(totals.std()) / draws**0.5
    variance = x.square().mean((1, 2))  # pixels of an image are dependent, images are not
    assert abs(float(variance.mean()) - std**2) <= 5 * float(variance.std()) / draws**0.5
    rough, smooth = (predcp_samples(size, r, draws=50).diff(dim=1).abs().mean() for r in (1e-3, 10.0))
    assert smooth < 0.2 * rough


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="weight 0"):
        tv_samples(3, 0)
    with pytest.raises(ValueError, match="rate 0"):
        predcp_samples(3, 0)
