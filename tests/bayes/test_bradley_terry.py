"""Rewards of pairs against formulas of the difference of two rewards, integrated by scipy."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn

import lapwing as lw
from lapwing.bayes.likelihoods import Spread

OF = lw.BradleyTerry()
MEAN = torch.tensor([[0.3, -1.0], [-2.0, 1.5], [4.0, 3.5]]).double()
ROOT = torch.tensor([[[1.0, 0.0], [0.4, 0.7]], [[2.0, 0.0], [-1.0, 0.5]], [[0.3, 0.0], [0.1, 0.2]]]).double()
COVARIANCE = ROOT @ ROOT.mT
FIRST = torch.tensor([0, 1, 0])


@pytest.fixture(autouse=True)
def _own_random_state():
    with torch.random.fork_rng():
        yield


def averaged(function, datum: int) -> float:
    """E function(r₀ − r₁), the difference having the variance c₀₀ + c₁₁ − 2 c₀₁."""
    c = COVARIANCE[datum]
    centre, std = float(MEAN[datum, 0] - MEAN[datum, 1]), float(c[0, 0] + c[1, 1] - 2 * c[0, 1]) ** 0.5

    def density(z: float) -> float:
        return function(centre + std * z) * np.exp(-0.5 * z * z) / (2 * np.pi) ** 0.5

    return quad(density, -12, 12, epsabs=1e-13, epsrel=1e-13, limit=200)[0]


def sigmoid(d: float) -> float:
    return 1 / (1 + np.exp(-d))


def test_the_first_is_preferred_by_the_logistic_function_of_the_difference():
    difference = MEAN[:, 0] - MEAN[:, 1]
    expected = torch.where(FIRST == 0, difference, -difference).sigmoid().log()
    torch.testing.assert_close(OF.log_density(MEAN, FIRST), expected, rtol=1e-12, atol=0)
    shifted = OF.log_density(MEAN + torch.tensor([[5.0], [-2.0], [0.1]]).double(), FIRST)
    torch.testing.assert_close(shifted, expected, rtol=1e-12, atol=1e-14)


def test_averages_are_integrals_over_the_difference():
    """Logarithms to 1e-9, as the quadrature claims; gradients lie along (1, −1), curvatures along its square."""
    found = OF.expected(MEAN, COVARIANCE, FIRST)
    signs = [1 if place == 0 else -1 for place in FIRST.tolist()]
    logs = [averaged(lambda d, s=s: -np.logaddexp(0, -s * d), n) for n, s in enumerate(signs)]
    slopes = [averaged(lambda d, s=s: s * sigmoid(-s * d), n) for n, s in enumerate(signs)]
    bends = [averaged(lambda d: sigmoid(d) * sigmoid(-d), n) for n in range(3)]
    along = torch.tensor([1.0, -1.0]).double()
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found.log_density, torch.tensor(logs, dtype=torch.float64), **close)
    torch.testing.assert_close(found.gradient, torch.tensor(slopes, dtype=torch.float64)[:, None] * along, **close)
    outer = along[:, None] * along
    torch.testing.assert_close(
        found.curvature, torch.tensor(bends, dtype=torch.float64)[:, None, None] * outer, **close
    )


def test_predictive_probabilities_are_the_integral():
    spread = Spread(COVARIANCE.diagonal(dim1=1, dim2=2), COVARIANCE)
    found = OF.probabilities("quadrature", MEAN, spread)
    expected = torch.tensor([averaged(sigmoid, n) for n in range(3)], dtype=torch.float64)
    torch.testing.assert_close(found[:, 0], expected, rtol=1e-8, atol=0)
    torch.testing.assert_close(found.sum(1), torch.ones(3).double(), rtol=1e-12, atol=0)
    probit = OF.probabilities("full probit", MEAN, spread)
    torch.testing.assert_close(probit, found, rtol=0, atol=0.02)  # as far as the approximation goes
    assert OF.wide_link == "quadrature"


def test_outputs_that_are_not_pairs_are_refused():
    with pytest.raises(ValueError, match=r"takes the rewards of pairs, outputs \(n, 2\)"):
        lw.fit(nn.Linear(4, 3).eval(), (torch.zeros(5, 4), torch.zeros(5).long()), OF)


class TestPairs:
    def posterior(self):
        """Of a linear reward: pairs are then logistic regression on differences."""
        generator = torch.Generator().manual_seed(0)
        first, second = (torch.randn(23, 4, generator=generator, dtype=torch.float64) for _ in range(2))
        reward = nn.Linear(4, 1, bias=False).double()
        with torch.no_grad():
            reward.weight.copy_(torch.tensor([[1.0, -0.5, 0.2, 0.0]]))
        targets = (first @ reward.weight[0] < second @ reward.weight[0]).long().detach()
        targets[::5] = 1 - targets[::5]
        network = lw.Pairs(reward.eval())
        options = {"prior": lw.Isotropic(2.0), "method": lw.Exact()}
        return first, second, targets, lw.fit(network, ((first, second), targets), OF, **options), options

    def test_are_logistic_regression_on_differences(self):
        """The same bound, mean and covariance by a linear model of one output; both searches end within 1e-4 nats."""
        first, second, targets, posterior, options = self.posterior()
        other = lw.infer(lw.LinearModel(first - second, 1.0 - targets.double(), lw.Bernoulli()), **options)
        assert float(posterior.log_evidence) == pytest.approx(float(other.log_evidence), abs=1e-3)
        new = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ours = posterior.predict((new, torch.zeros_like(new)), link="quadrature").probs[:, 0]
        torch.testing.assert_close(ours, other.predict(new, link="quadrature").probs, rtol=0, atol=1e-3)

    def test_a_file_predicts_the_same(self, tmp_path):
        first, second, _, posterior, _ = self.posterior()
        reward = nn.Linear(4, 1, bias=False).double()
        with torch.no_grad():
            reward.weight.copy_(torch.tensor([[1.0, -0.5, 0.2, 0.0]]))
        again = lw.load(posterior.save(tmp_path / "rewards"), lw.Pairs(reward).eval())
        assert isinstance(again.likelihood, lw.BradleyTerry)
        torch.testing.assert_close(
            again.predict((first, second)).probs, posterior.predict((first, second)).probs, rtol=1e-12, atol=0
        )

    def test_dictionaries_and_their_order(self):
        embedding = nn.EmbeddingBag(7, 3).double()

        class Reward(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.head = embedding, nn.Linear(3, 1).double()

            def forward(self, input_ids, attention_mask=None):
                return {"logits": self.head(self.embedding(input_ids)), "hidden": input_ids}

        network = lw.Pairs(Reward().eval())
        one, other = (
            {"input_ids": torch.randint(0, 7, (5, 4), generator=torch.Generator().manual_seed(s))} for s in (0, 1)
        )
        rewards = network(one, other)
        assert rewards.shape == (5, 2)
        assert not torch.equal(rewards[:, 0], rewards[:, 1])
        torch.testing.assert_close(network(other, one), rewards.flip(1), rtol=0, atol=0)
        found = lw.fit(network, ((one, other), torch.zeros(5).long()), OF, select=lambda name: "head" in name)
        assert found.predict((one, other)).probs.shape == (5, 2)

    def test_more_than_one_reward_is_refused(self):
        with pytest.raises(ValueError, match=r"returns \(5, 3\) for 5 inputs: expected one reward each"):
            lw.Pairs(nn.Linear(4, 3))(torch.zeros(5, 4), torch.zeros(5, 4))
