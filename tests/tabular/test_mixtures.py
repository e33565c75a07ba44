"""Mixtures against sums over their Gaussians and scipy, and shapes of errors against another optimiser."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm

from lapwing.tabular import mixtures
from lapwing.tabular.mixtures import MemberMixture, Shape

MEANS = torch.tensor([[0.0, 5.0], [1.0, -3.0], [4.0, 5.5]], dtype=torch.float64)
STDS = torch.tensor([[1.0, 0.2], [0.3, 2.0], [2.0, 0.5]], dtype=torch.float64)
FACTORS = torch.tensor([[0.5, 0.2], [1.0, 1.0], [1.5, 1.2], [2.0, 2.5]], dtype=torch.float64)
SHARES = torch.tensor([[0.5, 0.2], [0.3, 0.5], [0.15, 0.2], [0.05, 0.1]], dtype=torch.float64)
HEAVY = Shape(FACTORS / (SHARES * FACTORS**2).sum(0).sqrt(), SHARES)
SHAPES = [pytest.param(Shape.gaussian(), id="gaussian"), pytest.param(HEAVY, id="heavy")]


def density(values, place, shape, *, of=norm.pdf):
    """Of the mixture, or its distribution function, by a sum over members and factors."""
    column = min(place, shape.factors.shape[1] - 1)
    parts = [
        float(share) * of(values, float(mean), float(factor * std))
        for mean, std in zip(MEANS[:, place], STDS[:, place], strict=True)
        for factor, share in zip(shape.factors[:, column], shape.shares[:, column], strict=True)
    ]
    return sum(parts) / len(MEANS)


@pytest.mark.parametrize("shape", SHAPES)
def test_moments_are_those_of_the_density(shape):
    mixture = MemberMixture(MEANS, STDS, shape)
    grid = np.linspace(-60, 70, 400_001)
    for place in range(2):
        each = density(grid, place, shape)
        mean = np.trapezoid(grid * each, grid)
        variance = np.trapezoid((grid - mean) ** 2 * each, grid)
        assert np.trapezoid(each, grid) == pytest.approx(1, abs=1e-9)
        assert float(mixture.mean[place]) == pytest.approx(mean, abs=1e-9)
        assert float(mixture.std[place]) == pytest.approx(variance**0.5, rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_density(shape):
    mixture = MemberMixture(MEANS, STDS, shape)
    values = torch.tensor([0.7, 5.2], dtype=torch.float64)
    truth = [np.log(density(float(values[place]), place, shape)) for place in range(2)]
    np.testing.assert_allclose(mixture.log_density(values), truth, rtol=1e-12)
    far = torch.full((2,), 1e4, dtype=torch.float64)
    assert mixture.log_density(far).isfinite().all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_intervals_hold_their_probability(level, shape):
    low, high = MemberMixture(MEANS, STDS, shape).interval(level)
    for place in range(2):
        below = density(float(low[place]), place, shape, of=norm.cdf)
        np.testing.assert_allclose(below, (1 - level) / 2, rtol=1e-9)
        np.testing.assert_allclose(density(float(high[place]), place, shape, of=norm.cdf), (1 + level) / 2, rtol=1e-12)


def test_one_member_is_a_gaussian():
    low, high = MemberMixture(MEANS[:1], STDS[:1], Shape.gaussian()).interval(0.9)
    np.testing.assert_allclose(torch.stack([low, high]), norm.interval(0.9, MEANS[0], STDS[0]), rtol=1e-12)


def left_out(generator, n=150):
    """Predictions by two members of two targets, of heavy tails and of normal errors, and weights of rows."""
    means = torch.randn(2, n, 2, generator=generator, dtype=torch.float64)
    stds = 0.5 + torch.rand(2, n, 2, generator=generator, dtype=torch.float64)
    normals = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    normals[:, 0] *= torch.where(torch.rand(n, generator=generator) < 0.2, 3.0, 0.4)
    weights = torch.randint(0, 4, (n,), generator=generator).double()
    return MemberMixture(means, stds, Shape.gaussian()), means[0] + normals, weights


def test_the_shares_are_the_likeliest(generator):
    """As scipy finds them in logarithms; both are near the maximum of a concave function, a sum over 150 rows."""
    mixture, values, weights = left_out(generator)
    shape = Shape.of(mixture.log_densities(values), weights)
    factors = np.array(mixtures.FACTORS)
    before = np.where(factors == 1, mixtures.GAUSSIAN_ROWS, mixtures.OTHER_ROWS / np.maximum(factors**2, 1))
    for target in range(2):
        each = norm.pdf(
            values[None, None, :, target],
            mixture.means[:, None, :, target],
            factors[None, :, None] * mixture.stds[:, None, :, target].numpy(),
        ).mean(0)

        def loss(logs, each=each):
            shares = np.exp(logs - np.logaddexp.reduce(logs))
            return -(weights.numpy() @ np.log(shares @ each) + before @ np.log(shares))

        found = loss(np.log(shape.shares[:, target].numpy()))
        best = minimize(loss, np.zeros(len(factors)), method="BFGS").fun
        assert found <= best + 0.02
        assert float(shape.shares[:, target].sum()) == pytest.approx(1)
        assert float((shape.shares * shape.factors**2)[:, target].sum()) == pytest.approx(1)
    np.testing.assert_allclose(shape.factors[1:, 0] / shape.factors[:-1, 0], 2**0.5, rtol=1e-12)


def test_rows_count_as_often_as_their_weights_say(generator):
    mixture, values, weights = left_out(generator)
    times = weights.long()
    repeated = MemberMixture(
        mixture.means.repeat_interleave(times, 1), mixture.stds.repeat_interleave(times, 1), Shape.gaussian()
    )
    ones = torch.ones(int(times.sum()), dtype=torch.float64)
    other = Shape.of(repeated.log_densities(values.repeat_interleave(times, 0)), ones)
    torch.testing.assert_close(Shape.of(mixture.log_densities(values), weights).shares, other.shares)


def test_heavy_tails_are_told_from_normal_errors(generator):
    """Probabilities of 4,000 errors are known to less than 0.01."""
    normals = torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    normals[:, 1] *= torch.where(torch.rand(4000, generator=generator) < 0.2, 3.0, 0.4)
    std = torch.tensor([1.0, (0.2 * 9 + 0.8 * 0.16) ** 0.5], dtype=torch.float64)
    mixture = MemberMixture(torch.zeros(1, 4000, 2, dtype=torch.float64), std.expand(1, 4000, 2), Shape.gaussian())
    shape = Shape.of(mixture.log_densities(normals), torch.ones(4000, dtype=torch.float64))
    errors = MemberMixture(torch.zeros(1, 2, dtype=torch.float64), std[None], shape)
    for size in (0.2, 0.5, 1.0, 2.0, 4.0):
        found = errors.cdf(torch.full((2,), size, dtype=torch.float64))
        truth = [norm.cdf(size), 0.2 * norm.cdf(size / 3) + 0.8 * norm.cdf(size / 0.4)]
        np.testing.assert_allclose(found, truth, atol=0.015)
