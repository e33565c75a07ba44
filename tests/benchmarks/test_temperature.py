"""The temperature study: what its cells run, on digits in place of MNIST."""

import pytest
import torch

from benchmarks.networks import Wide, seeded
from benchmarks.outcomes import Cell
from benchmarks.tasks import STUDIES, temperature


@pytest.fixture
def digits(monkeypatch):
    found = temperature.pictures("digits")
    monkeypatch.setattr(temperature, "pictures", lambda: found)
    return found


def test_the_network_is_an_average_over_its_units():
    network = seeded(lambda: Wide(3, 5, 2), 0)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    units = (x @ network.hidden.weight.T + network.hidden.bias).relu()
    by_hand = (units[:, :, None] * network.out.weight.T).sum(1) / 5 + network.out.bias / 5
    assert torch.allclose(network(x), by_hand, atol=1e-6)


def test_a_cell_has_the_scores_of_its_fit(digits, tmp_path):
    train, validation, test = digits
    found = temperature.run(Cell("temperature", "64", "vi-tau-1e-4", 1), tmp_path)
    assert set(STUDIES["temperature"].scores) <= set(found)
    balanced = temperature.variational.Balanced(1e-4, units="hidden")
    alone = temperature.by_variation(train, 64, balanced, seed=1)
    assert found["nll"] == temperature.variational.held_out(alone, test)["nll"]
    assert found["validation_nll"] == temperature.variational.held_out(alone, validation)["nll"]
    assert found["divergence"] == alone.divergence
    assert alone.heat.eta == pytest.approx(1e-4 * 500 / 64)


def test_chains_are_colder_and_drift_alike(digits):
    """With the same seed chains at two temperatures differ only by their noise: the colder one is nearer to none."""
    train, _, test = digits
    warm, cold, coldest = (temperature.by_langevin(train, 16, T, warmup=80) for T in (0.5, 1e-3, 1e-9))
    assert [chains.diagnostics["step_size"] for chains in (warm, cold)] == pytest.approx([2.5e-3, 5e-6])
    ends = [chains.positions[:, -1] for chains in (warm, cold, coldest)]
    noise = [float((end - ends[2]).square().mean().sqrt()) for end in ends[:2]]
    assert noise[0] / noise[1] == pytest.approx(500**0.5, rel=0.05)  # the drift is nearly linear over so few steps
    assert set(temperature.scores(cold, test, test)) >= {"nll", "gibbs_nll", "accuracy", "ece", "confidence"}


def test_a_cold_likelihood_leaves_the_prior_alone(digits, monkeypatch):
    """What the chains are given: (log likelihood + log prior) / T with a prior precision of T / s², so log prior / s²."""
    seen = {}

    def fit(model, data, likelihood, **options):
        seen.update(options)

    monkeypatch.setattr(temperature.mcmc, "fit", fit)
    for tempered, precision in (("likelihood", 0.5), ("posterior", 5.0)):
        temperature.by_langevin(digits[0], 16, 0.1, tempered=tempered)
        assert seen["prior_precision"] == pytest.approx(precision)
        assert seen["temperature"] == 0.1
        if tempered == "likelihood":  # else from the prior that is given, which is not the one that is meant here
            weights = torch.cat(
                [weight.detach().reshape(-1) for model in seen["start"] for weight in model.parameters()]
            )
            assert float(weights.square().mean()) == pytest.approx(0.2, rel=5 * (2 / len(weights)) ** 0.5)
