"""What Gaussian outputs say about observations, under every likelihood, against scipy's adaptive quadrature."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import lapwing as lw
from lapwing.bayes.likelihoods import Bernoulli, HeteroscedasticGaussian, Poisson, likelihood
from lapwing.bayes.likelihoods.poisson import LogNormalPoisson, poisson_entropy
from lapwing.bayes.likelihoods.spread import Spread
from lapwing.bayes.predictive import Observation, Prediction

MEANS, VARIANCES = (-1.5, 0.3, 4.0), (1e-4, 0.4, 6.0)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def integral(function, mean: float, std: float, at: tuple[float, ...] = ()) -> float:
    """∫ function(f) N(f; mean, std²) df."""

    def integrand(f: float) -> float:
        return function(f) * scipy.stats.norm.pdf(f, mean, std)

    low, high = mean - 12 * std, mean + 12 * std
    points = sorted({mean, *(point for point in at if low < point < high)})
    return scipy.integrate.quad(integrand, low, high, points=points, epsabs=0, epsrel=1e-11, limit=500)[0]


def predicted(of, mean: torch.Tensor, covariance: torch.Tensor, link: str | None = None, draws=None) -> Prediction:
    """A prediction around these outputs, (n, c) and (n, c, c)."""
    spread = Spread(covariance.diagonal(dim1=1, dim2=2), covariance, seed=3)
    return Prediction(
        of.observed(mean), of.observed(spread.variance), of.observed(2 * spread.variance),
        Observation(of, link or of.links[0], spread, mean), draws=draws, seed=1,
    )  # fmt: skip


@pytest.mark.parametrize("variance", [0.01, 1.0, 9.0, 60.0])
@pytest.mark.parametrize("mean", [-6.0, 0.4, 3.0])
def test_bernoulli_quadrature_equals_scipys(mean, variance):
    spread = Spread(doubles(variance), None)
    ours = float(Bernoulli().probabilities(Bernoulli().checked_link("quadrature"), doubles(mean), spread))
    expected = integral(lambda f: 1 / (1 + np.exp(-f)), mean, variance**0.5, at=(0.0,))
    assert ours == pytest.approx(expected, rel=1e-9)


def test_multi_label_predictions_treat_each_label_for_itself():
    mean = doubles(0.5, -2.0, 1.0, 3.0, 0.0, -0.2).reshape(2, 3)
    covariance = torch.eye(3).double() * doubles(0.5, 2.0, 1.0)[:, None] + 0.3
    prediction = predicted(Bernoulli(), mean, covariance.expand(2, 3, 3), "quadrature")
    targets = doubles(1, 0, 1, 0, 0, 1).reshape(2, 3)
    expected = [
        [
            np.log(integral(lambda f, y=y: 1 / (1 + np.exp(f if y == 0 else -f)), m, v**0.5))
            for m, v, y in zip(row, (0.8, 2.3, 1.3), chosen, strict=True)
        ]
        for row, chosen in zip(mean.tolist(), targets.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        prediction.log_prob(targets), torch.tensor(expected).double(), rtol=1e-9, atol=0
    )  # fmt: skip
    torch.testing.assert_close(prediction.expectation, prediction.probs)
    frame = prediction.to_frame()
    assert list(frame.columns) == ["prob_0", "prob_1", "prob_2", "entropy", "mutual_information", "novelty"]
    with pytest.raises(ValueError, match="targets of 0 and 1"):
        prediction.log_prob(targets + 2)


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("count", [0, 3, 40, 20_000])
def test_the_density_of_a_count_equals_scipys_quadrature(count, mean, variance):
    ours = float(LogNormalPoisson(doubles(mean), doubles(variance)).log_prob(doubles(count)))
    # the integrand in logarithms, shifted by its largest value: densities here reach e^-100000
    high = max(mean + 40 * variance**0.5, mean + 2 * variance * count) if variance < 1e-3 else mean + 40 * variance**0.5
    f = np.linspace(
        mean - 40 * variance**0.5, high, 400_001
    )  # ten steps or more to the width of a peak: the sum is exact

    def log_integrand(f):
        return scipy.stats.poisson.logpmf(count, np.exp(np.minimum(f, 60))) + scipy.stats.norm.logpdf(
            f, mean, variance**0.5
        )

    values = log_integrand(f)
    top = values.max()
    expected = top + np.log(np.exp(values - top).sum() * (f[1] - f[0]))
    assert ours == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_counts_of_a_known_rate_are_poisson():
    found = LogNormalPoisson(doubles(1.3), doubles(0.0))
    counts = torch.arange(30.0).double()
    expected = torch.distributions.Poisson(doubles(1.3).exp()).log_prob(counts)
    torch.testing.assert_close(found.log_prob(counts), expected, rtol=1e-10, atol=1e-10)
    assert float(found.entropy()) == pytest.approx(scipy.stats.poisson.entropy(np.exp(1.3)), abs=1e-9)


@pytest.mark.parametrize(("mean", "variance"), [(-1.0, 0.5), (1.5, 1.2), (5.4, 0.01), (5.4, 0.2), (7.5, 1e-3)])
def test_moments_quantiles_and_entropy_of_counts_equal_sums_over_all_of_them(mean, variance):
    found = LogNormalPoisson(doubles(mean), doubles(variance))
    counts = torch.arange(60_000.0).double()
    probability = found.log_prob(counts).exp()
    assert float(probability.sum()) == pytest.approx(1, abs=1e-9)
    assert float(found.mean) == pytest.approx(float(counts @ probability), rel=1e-8)
    assert float(found.variance) == pytest.approx(
        float(counts.square() @ probability) - float(found.mean) ** 2, rel=1e-6
    )
    cumulative = probability.cumsum(0)
    some = doubles(-1, 0, 1, 4, 80, 220, 2000)
    expected = torch.where(some < 0, 0, cumulative[some.clamp_min(0).long()])
    torch.testing.assert_close(found.cdf(some), expected, rtol=0, atol=1e-8)
    for level in (0.05, 0.5, 0.95):
        assert float(found.icdf(doubles(level))) == int((cumulative < level).sum())
    assert float(found.entropy()) == pytest.approx(float(torch.special.entr(probability).sum()), abs=1e-7)


def test_counts_as_large_as_a_wide_rate_allows_have_a_density_and_an_entropy():
    """Far out a count is its rate, so the entropy is that of a log-normal number: log rate + ½ log 2πe v.

    Where nearly all counts are large the two differ by the probability of small ones, e^(−25²/18) here.
    """
    found = LogNormalPoisson(doubles(25.0, 40.0), doubles(9.0, 17.0))
    expected = doubles(25.0, 40.0) + 0.5 * (2 * torch.pi * torch.e * doubles(9.0, 17.0)).log()
    torch.testing.assert_close(found.entropy(), expected, rtol=0, atol=1e-5)
    near = LogNormalPoisson(doubles(16.0), doubles(2.0))  # where both forms of the density hold
    counts = doubles(0.4e7, 0.99e7, 1.01e7, 2e7)
    steps = (
        near.log_prob(counts)
        + counts.log()
        + (counts.log() - 16.0).square() / 4
        + 0.5 * (4 * torch.tensor(torch.pi)).log()
    )
    torch.testing.assert_close(steps, torch.zeros(4).double(), rtol=0, atol=1e-6)
    wide = LogNormalPoisson(doubles(-1.8), doubles(24.0)).entropy()
    assert bool(wide.isfinite().all())
    assert float(wide) > 0


def test_the_entropy_of_a_poisson_count_equals_scipys():
    rates = doubles(0.01, 0.7, 12.0, 99.9, 100.1, 900.0)
    expected = [scipy.stats.poisson.entropy(float(rate)) for rate in rates]
    torch.testing.assert_close(poisson_entropy(rates), doubles(*expected), rtol=0, atol=1e-8)


def test_what_a_count_says_about_its_rate():
    """I(y; f) = Σ ∫ p(y | f) N(f) log p(y | f) / p(y), by quadrature for every count."""
    mean, variance = 0.8, 0.6
    found = predicted(Poisson(), doubles(mean).reshape(1, 1), doubles(variance).reshape(1, 1, 1))
    marginal = LogNormalPoisson(doubles(mean), doubles(variance))
    counts, z = np.arange(1500)[:, None], np.linspace(-10, 10, 1001)
    weights = scipy.stats.norm.pdf(z) * (z[1] - z[0])
    at = scipy.stats.poisson.logpmf(counts, np.exp(mean + variance**0.5 * z))
    own = np.log(np.maximum(np.exp(at) @ weights, 1e-300))
    expected = (np.exp(at) * (at - own[:, None]) @ weights).sum()
    assert float(marginal.log_prob(doubles(7))) == pytest.approx(own[7], abs=1e-9)
    assert float(found.mutual_information) == pytest.approx(expected, rel=1e-6)


def test_predictions_of_counts():
    mean, variance = doubles(0.2, 1.0, 2.0, 3.0).reshape(2, 2), doubles(0.3, 0.5, 0.1, 0.2).reshape(2, 2)
    draws = mean + variance.sqrt() * torch.randn(4000, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    prediction = predicted(Poisson(), mean, torch.diag_embed(variance), draws=draws)
    torch.testing.assert_close(prediction.expectation, (mean + variance / 2).exp())
    low, high = prediction.interval(0.9)
    assert bool((low < high).all())
    assert bool((low == low.round()).all())
    inside = ((prediction.samples >= low) & (prediction.samples <= high)).double().mean(0)
    assert bool((inside > 0.9 - 3 * (0.09 / 4000) ** 0.5).all())  # counts are discrete: at least the level
    z = (prediction.samples.mean(0) - prediction.expectation) / (prediction.distribution.variance / 4000).sqrt()
    assert float(z.abs().max()) < 4
    assert list(prediction.to_frame().columns) == ["mean_0", "epistemic_std_0", "mean_1", "epistemic_std_1", "novelty"]
    torch.testing.assert_close(prediction.variance, variance)
    for wrong, message in (("aleatoric_variance", "logarithms of rates"), ("probs", "no classes")):
        with pytest.raises(ValueError, match=message):
            getattr(prediction, wrong)
    with pytest.raises(ValueError, match="takes counts"):
        prediction.log_prob(mean)
    with pytest.raises(ValueError, match="link is 'probit', expected one of 'quadrature' for Poisson"):
        predicted(Poisson(), mean, torch.diag_embed(variance), "probit")


def heteroscedastic() -> tuple[Prediction, torch.Tensor, torch.Tensor]:
    mean = doubles(0.4, -0.9)[None]
    covariance = doubles(0.5, -0.35, -0.35, 0.9).reshape(1, 2, 2)
    return predicted(HeteroscedasticGaussian(), mean, covariance), mean[0], covariance[0]


def density(y: float, mean: torch.Tensor, covariance: torch.Tensor) -> float:
    """∫∫ N(y; μ, e^s) N(μ, s) dμ ds with both axes whitened."""
    z = torch.linspace(-9, 9, 901, dtype=torch.float64)
    weights = (-0.5 * z.square()).softmax(0)
    a, b = torch.meshgrid(z, z, indexing="ij")
    mu, s = mean[:, None, None] + torch.einsum("ij,jab->iab", torch.linalg.cholesky(covariance), torch.stack([a, b]))
    return float(weights @ torch.distributions.Normal(mu, (s / 2).exp()).log_prob(doubles(y)).exp() @ weights)


@pytest.mark.parametrize("y", [-2.5, 0.3])
def test_the_density_under_mean_and_variance_heads_equals_a_double_integral(y):
    prediction, mean, covariance = heteroscedastic()
    assert float(prediction.log_prob(doubles(y))) == pytest.approx(np.log(density(y, mean, covariance)), abs=1e-7)


def test_variances_interval_and_entropy_under_mean_and_variance_heads():
    prediction, _, _ = heteroscedastic()
    assert prediction.mean.tolist() == [0.4]
    assert prediction.epistemic_variance.tolist() == [0.5]
    assert float(prediction.aleatoric_variance) == pytest.approx(np.exp(-0.9 + 0.45), rel=1e-12)

    def p(y: float) -> float:
        return float(prediction.log_prob(doubles(y)).exp())

    def over(function, low=-60.0, high=60.0) -> float:
        return scipy.integrate.quad(function, low, high, points=[0, -3, 3], limit=400, epsabs=1e-10, epsrel=1e-9)[0]

    assert over(p) == pytest.approx(1, abs=1e-7)
    centre = over(lambda y: y * p(y))
    assert float(prediction.expectation) == pytest.approx(centre, abs=1e-7)
    assert centre == pytest.approx(0.4, abs=1e-7)
    assert over(lambda y: (y - centre) ** 2 * p(y)) == pytest.approx(float(prediction.variance), rel=1e-5)
    low, high = prediction.interval(0.8)
    assert scipy.integrate.quad(p, float(low), float(high), epsabs=1e-10)[0] == pytest.approx(0.8, abs=1e-7)
    assert scipy.integrate.quad(p, -60, float(low), points=[-3], limit=400)[0] == pytest.approx(0.1, abs=1e-6)
    entropy = over(lambda y: -p(y) * np.log(p(y)) if p(y) > 0 else 0.0)
    assert float(prediction.entropy) == pytest.approx(entropy, abs=1e-6)
    within = 0.5 * np.log(2 * np.pi * np.e) - 0.45  # ½ log 2πe + ½ E[s]
    assert float(prediction.mutual_information) == pytest.approx(entropy - within, abs=1e-6)
    assert list(prediction.to_frame().columns) == ["mean", "std", "epistemic_std", "lower_90", "upper_90", "novelty"]
    with pytest.raises(ValueError, match="no classes"):
        _ = prediction.probs


def test_several_means_and_variances_are_predicted_each_for_itself():
    outputs = doubles(0.4, 1.0, -2.0, -0.9, 0.3, 0.1)[None]  # three means, then three log variances
    root = torch.randn(6, 6, generator=torch.Generator().manual_seed(4)).double() * 0.4
    covariance = (root @ root.mT)[None]
    together = predicted(HeteroscedasticGaussian(), outputs, covariance)
    targets = doubles(0.0, 1.5, -2.2)[None]
    assert together.mean.shape == (1, 3)
    for k in range(3):
        alone = predicted(
            HeteroscedasticGaussian(), outputs[:, [k, k + 3]], covariance[:, [k, k + 3]][:, :, [k, k + 3]]
        )
        assert float(together.log_prob(targets)[0, k]) == pytest.approx(float(alone.log_prob(targets[:, k])), rel=1e-12)
        assert float(together.std[0, k]) == pytest.approx(float(alone.std), rel=1e-12)
    some = predicted(HeteroscedasticGaussian(), outputs.repeat(3, 1), covariance.repeat(3, 1, 1))[[2, 0]]
    torch.testing.assert_close(some.log_prob(targets.repeat(2, 1)), together.log_prob(targets).repeat(2, 1))
    torch.testing.assert_close(some.std, together.std.repeat(2, 1))


def test_samples_under_mean_and_variance_heads_have_the_predicted_moments():
    _, mean, covariance = heteroscedastic()
    normals = torch.randn(20_000, 1, 2, generator=torch.Generator().manual_seed(5)).double()
    draws = mean + normals @ torch.linalg.cholesky(covariance).mT
    prediction = predicted(HeteroscedasticGaussian(), mean[None], covariance[None], draws=draws)
    samples = prediction.samples
    assert samples.shape == (20_000, 1)
    variance = float(prediction.variance)
    assert abs(float(samples.mean()) - 0.4) < 4 * (variance / 20_000) ** 0.5
    squares = (samples - 0.4).square()
    assert abs(float(squares.mean()) - variance) < 4 * float(squares.std()) / 20_000**0.5


EXPONENTIAL = likelihood(lambda f, y: f - y * f.exp(), valid=lambda y: y >= 0)
CAUCHY = likelihood(
    lambda f, y: -np.log(np.pi) - (1 + (y - f).square()).log(), fisher=lambda f: torch.full_like(f, 0.5)
)


@pytest.mark.parametrize("of", [EXPONENTIAL, CAUCHY], ids=["convex", "not convex"])
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.2), (-1.0, 3.0)])
def test_the_density_under_a_likelihood_of_your_own_equals_scipys_quadrature(of, mean, variance):
    prediction = predicted(of, doubles(mean).reshape(1, 1), doubles(variance).reshape(1, 1, 1))

    def p(f: float) -> float:
        return float(of.log_density(doubles(f), doubles(1.7)).exp())

    expected = np.log(integral(p, mean, variance**0.5, at=(1.7, -0.5)))
    assert float(prediction.log_prob(doubles(1.7).reshape(1, 1))) == pytest.approx(expected, abs=1e-8)


def test_the_mean_under_a_likelihood_of_your_own_is_averaged_over_the_outputs():
    of = likelihood(lambda f, y: f - y * f.exp(), mean=lambda f: (-f).exp())
    prediction = predicted(of, doubles(0.3).reshape(1, 1), doubles(0.8).reshape(1, 1, 1))
    assert float(prediction.expectation) == pytest.approx(np.exp(-0.3 + 0.4), rel=1e-10)


def test_several_outputs_of_your_own_are_averaged_by_monte_carlo():
    """Mean and variance heads written as one's own: the average over 512 points is within their scatter."""
    of = likelihood(
        lambda f, y: HeteroscedasticGaussian().log_density(f, y), outputs=2,
        fisher=lambda f: torch.diag_embed(HeteroscedasticGaussian().hessian_diagonal(f)),
    )  # fmt: skip
    exact, mean, covariance = heteroscedastic()
    prediction = predicted(of, mean[None], covariance[None])
    y = doubles(0.3)
    draws = (
        mean
        + torch.randn(512, 2, generator=torch.Generator().manual_seed(6)).double()
        @ torch.linalg.cholesky(covariance).mT
    )
    values = of.log_density(draws, y.expand(512)).exp()
    error = float(values.std() / values.mean()) / 512**0.5
    assert float(prediction.log_prob(y)) == pytest.approx(float(exact.log_prob(y)), abs=4 * error)


def test_what_a_likelihood_of_your_own_does_not_know_it_says():
    prediction = predicted(
        EXPONENTIAL, doubles(0.3).reshape(1, 1), doubles(0.8).reshape(1, 1, 1), draws=torch.zeros(4, 1, 1)
    )
    for name, message in (
        ("aleatoric_variance", "your own"), ("entropy", "entropy is not known"), ("mutual_information", "no entropy"),
        ("samples", "make it with sample="), ("expectation", "make the likelihood with mean="), ("probs", "no classes"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            getattr(prediction, name)
    with pytest.raises(ValueError, match="an interval is not known"):
        prediction.interval(0.9)
    with pytest.raises(ValueError, match="not valid under this likelihood"):
        prediction.log_prob(doubles(-1.0).reshape(1, 1))
    assert list(prediction.to_frame().columns) == ["mean_0", "epistemic_std_0", "novelty"]


def test_class_labels_have_no_expectation():
    prediction = predicted(lw.Categorical(), torch.zeros(2, 3).double(), torch.eye(3).double().expand(2, 3, 3))
    with pytest.raises(ValueError, match="mean of an observation is not known under Categorical"):
        _ = prediction.expectation
    with pytest.raises(ValueError, match="link is 'quadrature'"):
        predicted(lw.Categorical(), torch.zeros(2, 3).double(), torch.eye(3).double().expand(2, 3, 3), "quadrature")


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)], ids=["one", "several", "places"])
def test_mutual_information_of_outputs_without_a_covariance_has_their_shape(shape):
    """Each output for itself, so that of a datum alone is what it is among others: the same points serve all data."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    variance = 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)
    found = Bernoulli().mutual_information(mean, Spread(variance, None))
    assert found.shape == mean.shape
    alone = torch.cat(
        [Bernoulli().mutual_information(mean[i : i + 1], Spread(variance[i : i + 1], None)) for i in range(5)]
    )
    torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-14)
