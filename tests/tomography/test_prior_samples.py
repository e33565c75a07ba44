"""Samples of the priors, against integrals over a grid and closed forms."""

import math

import pytest
import torch

from lapwing.tomography import TvPredCp, difference_moments, filter_samples, predcp_lengthscales, sweep, tv_samples
from lapwing.tomography.prior_samples import factorised
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
    for of in (prior, factorised(prior)):
        expected = J @ problems.dense_covariance(linear.reconstruction.model, of) @ J.mT
        kept = expected.diagonal() > 1e-8 * expected.diagonal().max()
        drawn = filter_samples(linear, of, draws=3000).reshape(3000, -1)
        check_covariance(drawn[:, kept].mT, expected[kept][:, kept])


def test_lengthscales_of_the_hyperprior_make_kappa_exponential():
    linear = problems.linear()
    prior, moments = problems.prior(linear.blocks), difference_moments(linear)
    number = 1
    seen = sweep(moments, prior, number)
    low, high = float(seen.kappa.min()), float(seen.kappa.max())
    rate = 2 / (high - low)
    draws = [predcp_lengthscales(TvPredCp(rate), moments, prior, seed=seed, points=40) for seed in range(60)]
    kappas = torch.stack([moments.kappa(found, number) for found in draws])
    share = (1 - torch.exp(-rate * (kappas - low))) / (1 - math.exp(-rate * (high - low)))  # uniform, if all is well
    ordered = share.sort().values
    gap = (ordered - (torch.arange(60) + 0.5) / 60).abs().max()
    assert gap <= 1.95 / 60**0.5  # Kolmogorov's distance, at one in a thousand
    points = [i for i, block in enumerate(prior.blocks) if block.side == 1]
    assert torch.equal(draws[0].log_lengthscale[points], prior.log_lengthscale[points])


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="weight 0"):
        tv_samples(3, 0)
