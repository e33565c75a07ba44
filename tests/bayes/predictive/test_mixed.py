"""Mixtures of predictions against scipy: densities, quantiles, moments, entropies, and what lies between members."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson, Spread
from lapwing.bayes.predictive import Observation, Prediction, mixed
from lapwing.families import temperature

MEANS = torch.tensor([[[0.3, -1.0], [2.0, 0.1], [0.0, 5.0]], [[0.9, -1.2], [-3.0, 0.0], [0.1, 4.0]]]).double()
STDS, NOISES = torch.tensor([[0.5, 1.1], [0.2, 0.4], [2.0, 0.9]]).double(), (0.3, 0.8)


def numbers(seed: int = 0) -> list[Prediction]:
    """Two members with their own means (3, 2) and noise."""
    found = []
    for mean, noise in zip(MEANS, NOISES, strict=True):
        draws = mean + STDS * torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(seed)).double()
        seen = Observation(Gaussian(noise), "closed form", Spread(STDS.square(), None), mean)
        found.append(Prediction(mean, STDS.square(), 4 * STDS.square(), seen, draws=draws, seed=3))
    return found


def labels(members: int = 3) -> list[Prediction]:
    """Members with logits (5, 4) and a full covariance."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for number in range(members):
        mean = 2 * torch.randn(5, 4, generator=generator).double()
        root = torch.randn(5, 4, 4, generator=generator).double()
        covariance = (0.2 + number) * root @ root.mT
        spread = Spread(covariance.diagonal(dim1=1, dim2=2), covariance, seed=number)
        seen = Observation(Categorical(), "full probit", spread, mean)
        found.append(Prediction(mean, spread.variance, 9 * spread.variance, seen))
    return found


class TestNumbers:
    widths = tuple((STDS.square() + noise**2).sqrt() for noise in NOISES)

    def density(self, at: np.ndarray) -> np.ndarray:  # (…, 1, 1) or (3, 2) -> (…, 3, 2)
        pairs = zip(MEANS.numpy(), self.widths, strict=True)
        return np.mean([scipy.stats.norm.pdf(at, mean, width.numpy()) for mean, width in pairs], axis=0)

    def integral(self, function) -> torch.Tensor:  # (3, 2)
        """Of a function of (value, density) by the trapezoidal rule, which is exact to round-off for such densities."""
        at = np.linspace(-30, 30, 30_001)[:, None, None]
        return torch.from_numpy(function(at, self.density(at)).sum(0) * 60 / 30_000)

    def cdf(self, at: float, i: int, j: int) -> float:
        pairs = zip(MEANS[:, i, j], self.widths, strict=True)
        return np.mean([scipy.special.ndtr((at - float(mean)) / float(width[i, j])) for mean, width in pairs])

    def test_the_density_is_the_mean_density(self):
        y = torch.tensor([[0.0, 1.0], [-2.0, 0.3], [1.0, 4.4]]).double()
        expected = torch.from_numpy(np.log(self.density(y.numpy())))
        torch.testing.assert_close(mixed(numbers()).log_prob(y), expected, rtol=1e-12, atol=0)

    def test_moments_are_those_of_the_density(self):
        found, mean = mixed(numbers()), self.integral(lambda t, p: t * p)
        torch.testing.assert_close(found.mean, mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.expectation, mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            found.variance, self.integral(lambda t, p: (t - mean.numpy()) ** 2 * p), rtol=1e-10, atol=0
        )

    def test_what_lies_between_and_within(self):
        found = mixed(numbers())
        torch.testing.assert_close(found.between_variance, ((MEANS[0] - MEANS[1]) / 2).square())
        torch.testing.assert_close(found.within_variance, STDS.square())
        torch.testing.assert_close(found.epistemic_variance, found.between_variance + found.within_variance)
        torch.testing.assert_close(found.aleatoric_variance, torch.full((3, 2), (0.09 + 0.64) / 2).double())

    @pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
    def test_quantiles_are_roots_of_the_distribution(self, level):
        ends = mixed(numbers()).interval(level)
        for end, share in zip(ends, ((1 - level) / 2, (1 + level) / 2), strict=True):
            for i in range(3):
                for j in range(2):
                    # at distance d the distribution is off by at least d times the least density nearby
                    assert self.cdf(float(end[i, j]), i, j) == pytest.approx(share, rel=1e-11)

    def test_entropy_and_what_an_observation_would_say(self):
        found, whole = mixed(numbers()), self.integral(lambda _, p: -scipy.special.xlogy(p, p))
        torch.testing.assert_close(found.entropy, whole, rtol=1e-9, atol=0)
        noise = np.mean([0.5 * np.log(2 * np.pi * np.e * std**2) for std in NOISES])
        torch.testing.assert_close(found.mutual_information, whole - noise, rtol=1e-8, atol=0)
        within = torch.stack([part.mutual_information for part in numbers()]).mean(0)
        torch.testing.assert_close(found.between_information, found.mutual_information - within)

    def test_samples_have_the_noise_of_the_member_that_was_drawn(self):
        parts = numbers()
        known = [part.with_noise(std) for part, std in zip(parts, (1e-12, 3.0), strict=True)]
        found = mixed(known)
        assert found.samples.shape == (8, 3, 2)
        torch.testing.assert_close(found.samples[:4], parts[0].draws, rtol=0, atol=1e-10)
        assert float((found.samples[4:] - parts[1].draws).abs().max()) > 1
        assert torch.equal(found.samples, mixed(known).samples)

    def test_scaled_error_bars_keep_the_mean_and_multiply_every_variance(self):
        found = mixed(numbers())
        scaled = temperature.scaled(found, 2.25)
        torch.testing.assert_close(scaled.mean, found.mean)
        torch.testing.assert_close(scaled.variance, 2.25 * found.variance)
        torch.testing.assert_close(scaled.distribution.variance, 2.25 * found.distribution.variance)

    def test_some_of_the_data(self):
        found, y = mixed(numbers()), torch.tensor([[0.0, 1.0], [-2.0, 0.3], [1.0, 4.4]]).double()
        assert torch.equal(found[1:].log_prob(y[1:]), found.log_prob(y)[1:])
        assert torch.equal(found[[2, 0]].samples[:, 0] * 0, found.samples[:, 2] * 0)
        assert list(found.to_frame().columns)[:3] == ["mean_0", "std_0", "epistemic_std_0"]


class TestLabels:
    def test_probabilities_are_means(self):
        parts, y = labels(), torch.tensor([0, 3, 1, 2, 2])
        found, expected = mixed(parts), torch.stack([part.probs for part in parts]).mean(0)
        torch.testing.assert_close(found.probs, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.log_prob(y), expected.gather(1, y[:, None])[:, 0].log(), rtol=1e-12, atol=0)
        torch.testing.assert_close(found.entropy, -(expected * expected.log()).sum(1), rtol=1e-12, atol=0)

    def test_information_within_and_between(self):
        parts = labels()
        found, each = mixed(parts), torch.stack([part.probs for part in parts])
        between = -(each.mean(0) * each.mean(0).log()).sum(1) + (each * each.log()).sum(2).mean(0)
        torch.testing.assert_close(found.between_information, between, rtol=1e-10, atol=1e-14)
        within = torch.stack([part.mutual_information for part in parts]).mean(0)
        torch.testing.assert_close(found.mutual_information, between + within, rtol=1e-10, atol=1e-14)

    def test_scores_are_of_class_centred_logits(self):
        """Against the second moments of the centred logits of all members, written out."""
        parts = labels()
        found, centre = mixed(parts), torch.eye(4).double() - 0.25
        means = torch.stack([part.mean @ centre for part in parts])
        within = torch.stack([(centre @ part.observation.spread.covariance @ centre) for part in parts]).mean(0)
        total = within.diagonal(dim1=1, dim2=2).sum(1) + (means - means.mean(0)).square().sum(2).mean(0)
        torch.testing.assert_close(found.score_variance, total / 4)
        covariance = found.observation.spread.covariance
        torch.testing.assert_close((centre @ covariance @ centre).diagonal(dim1=1, dim2=2).sum(1), total)
        torch.testing.assert_close(found.epistemic_variance, covariance.diagonal(dim1=1, dim2=2))

    def test_a_temperature_divides_the_logits_of_every_member(self):
        parts = labels()
        found = temperature.scaled(mixed(parts), 1.7)
        expected = torch.stack([temperature.scaled(part, 1.7).probs for part in parts]).mean(0)
        torch.testing.assert_close(found.probs, expected)


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_a_mixture_of_identical_members_is_the_member(kind):
    one = numbers()[0] if kind == "numbers" else labels()[1]
    found = mixed([one, one, one])
    for name in ("mean", "epistemic_variance", "prior_variance", "novelty", "score_variance", "mutual_information"):
        torch.testing.assert_close(getattr(found, name), getattr(one, name), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.entropy, one.entropy, rtol=1e-10, atol=0)
    assert float(found.between_variance.abs().max()) < 1e-15
    if kind == "numbers":
        for ours, theirs in zip(found.interval(0.8), one.interval(0.8), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    else:
        torch.testing.assert_close(found.probs, one.probs)
    assert mixed([one]) is one


def test_counts_have_the_mean_probability_and_its_quantiles():
    mean, variance = torch.tensor([[0.5, 1.5], [1.0, 0.2], [-1.0, 0.8]]).double(), (0.01, 0.3)
    parts = [
        Prediction(
            mean + shift, torch.full_like(mean, v), "not known",
            Observation(Poisson(), Poisson().links[0], Spread(torch.full_like(mean, v), None), mean + shift),
        )
        for shift, v in zip((0.0, 0.7), variance, strict=True)
    ]  # fmt: skip
    found, counts = mixed(parts), torch.arange(60.0).double()[:, None, None].expand(60, 3, 2)
    table = torch.stack([part.distribution.log_prob(counts).exp() for part in parts]).mean(0)
    torch.testing.assert_close(found.log_prob(torch.full((3, 2), 3.0)).exp(), table[3])
    low, high = found.interval(0.9)
    cumulative = table.cumsum(0)
    for end, share in ((low, 0.05), (high, 0.95)):
        assert torch.equal(end, (cumulative < share).sum(0).to(end))
    rates = [(mean + shift + v / 2).exp() for shift, v in zip((0.0, 0.7), variance, strict=True)]
    torch.testing.assert_close(found.expectation, torch.stack(rates).mean(0))


def test_yes_and_no_and_changing_noise_mix_too():
    logits = torch.tensor([[2.0, -1.0], [30.0, -30.0], [0.0, 0.4]]).double()
    sure = Spread(torch.zeros_like(logits), None)
    parts = [
        Prediction(at, sure.variance, "none", Observation(Bernoulli(), "probit", sure, at)) for at in (logits, -logits)
    ]
    torch.testing.assert_close(mixed(parts).probs, torch.full((3, 2), 0.5).double())
    of, covariance = HeteroscedasticGaussian(), 0.1 * torch.eye(4).double().expand(3, 4, 4)
    wide = []
    for shift in (0.0, 2.0):
        outputs = torch.tensor([[0.1, 0.5, -1.0, 0.2], [1.0, 0.0, 0.3, -0.4], [0.0, 2.0, 0.0, 0.0]]).double() + shift
        spread = Spread(covariance.diagonal(dim1=1, dim2=2), covariance)
        seen = Observation(of, of.links[0], spread, outputs)
        wide.append(Prediction(of.observed(outputs), of.observed(spread.variance), "none", seen))
    y = torch.tensor([[0.3, 1.0], [2.0, 0.5], [0.7, 0.1]]).double()
    expected = torch.stack([part.log_prob(y).exp() for part in wide]).mean(0).log()
    found = mixed(wide)
    torch.testing.assert_close(found.log_prob(y), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.between_variance, torch.ones(3, 2).double())
    torch.testing.assert_close(found.distribution.mean, found.mean)
