"""Samples of the priors, against integrals over a grid and closed forms."""

import math

import pytest
import torch

from lapwing.studies.tomography import filter_samples, predcp_samples, tv_samples
from lapwing.studies.tomography.prior_samples import _exponential, _share
from tests.properties import check_covariance
from tests.studies.tomography import problems


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


@pytest.mark.parametrize("size", [2, 3])
def test_steep_total_variation_has_the_tv_of_its_gamma_distribution(size):
    """TV is of degree one in the size² − 1 differences, so weight · TV is Gamma(size² − 1), but for the ends of [0, 1].

    They take the share range ≤ TV / 2 of a shape's places, and with it at most (size² − 1) / (2 weight) from the mean.
    """
    weight, draws, shape = 1000.0, 800, size**2 - 1
    x = tv_samples(size, weight, draws=draws, sweeps=60, seed=4)
    found = weight * (x.diff(dim=1).abs().sum((1, 2)) + x.diff(dim=2).abs().sum((1, 2)))
    assert abs(float(found.mean()) - shape) <= 5 * (shape / draws) ** 0.5 + shape / (2 * weight)
    fourth = 3 * shape**2 + 6 * shape  # central moment of a gamma variable
    assert abs(float((found - shape).square().mean()) - shape) <= 5 * ((fourth - shape**2) / draws) ** 0.5 + 0.02
    squares = (x[:, 0, 1] - 0.5).square()  # of a level that is uniform, but for the range
    assert abs(float(squares.mean()) - 1 / 12) <= 5 * ((1 / 80 - 1 / 144) / draws) ** 0.5 + 2 * shape / weight / 12


def test_images_go_on_to_flatten_as_the_weight_grows():
    ranges = []
    for weight in (10.0, 30.0, 100.0, 200.0, 400.0, 1e3, 1e5):
        x = tv_samples(6, weight, draws=20, sweeps=40)
        ranges.append(float((x.amax((1, 2)) - x.amin((1, 2))).mean()))
    assert ranges == sorted(ranges, reverse=True)


@pytest.mark.parametrize("rise", [-2000.0, -3.0, -1e-6, 0.0, 1e-6, 3.0, 700.0, 2000.0])
def test_places_in_an_exponential_density_have_their_mass_below(rise):
    """Against (e^(rise · t) − 1) / (e^rise − 1), where that can be told from its ends."""
    inside = torch.linspace(0, 1, 41, dtype=torch.float64)
    found = _share(inside, torch.full_like(inside, rise))
    assert found[0] == 0
    assert found[-1] == 1
    fall = abs(rise)
    t = found if rise <= 0 else 1 - found
    mass = torch.expm1(-fall * t) / math.expm1(-fall) if rise else t
    # t is known to one rounding of 1, and the mass to that times the density there
    torch.testing.assert_close(mass, inside if rise <= 0 else 1 - inside, rtol=0, atol=4e-16 * max(fall, 4))


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


@pytest.mark.parametrize("rate", [1e5, 1e9])
def test_gaussian_images_of_a_large_rate_are_as_flat_as_it_says(rate):
    """Mean TV is 1 / rate, and TV over its κ does not depend on rate: the covariance given ℓ is not drowned."""
    draws = 600
    x = predcp_samples(8, rate, draws=draws, seed=5)
    totals = x.diff(dim=1).abs().sum((1, 2)) + x.diff(dim=2).abs().sum((1, 2))
    assert abs(float(totals.mean()) - 1 / rate) <= 5 * float(totals.std()) / draws**0.5
    level = x.mean((1, 2))
    assert abs(float(level.square().mean()) - 1) <= 5 * (2 / draws) ** 0.5


@pytest.mark.parametrize("decay", [1e-12, 0.3, 30.0])
def test_a_draw_given_the_first_pixel_has_the_covariance_of_all(decay):
    """Differences from the first pixel: exp(−d_ij / ℓ) + 1 − exp(−d_i / ℓ) − exp(−d_j / ℓ), written with expm1."""
    places = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0)).double()
    apart, generator = torch.cdist(places, places), torch.Generator().manual_seed(1)
    normals = torch.randn(4000, 6, generator=generator, dtype=torch.float64)
    x = torch.stack([_exponential(apart, torch.tensor(decay).double(), z) for z in normals]).mT
    lost = -torch.expm1(-decay * apart)  # one minus the covariance
    check_covariance((x[1:] - x[0]) / decay**0.5, (lost[1:, :1] + lost[:1, 1:] - lost[1:, 1:]) / decay)
    check_covariance(x, 1 - lost)


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="weight 0"):
        tv_samples(3, 0)
    with pytest.raises(ValueError, match="rate 0"):
        predcp_samples(3, 0)
