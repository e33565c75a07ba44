"""Over data sets drawn from the model itself, ranks of the truth are uniform and intervals hold it as often as they say."""

import sys
from pathlib import Path

import pytest
import torch

import lapwing as lw

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_calibration as calibration

LEAST = 1e-3  # a p-value that a right method falls short of once in a thousand seeds


@pytest.mark.parametrize(("problem", "method"), [("linear", "exact"), ("linearised", "exact"), ("linear", "krylov")])
def test_ranks_are_uniform_and_intervals_cover(problem, method):
    found = calibration.measure(problem, method, n=11, repeats=100, seed=5)
    assert found["rank_p_value"] > LEAST, found
    assert all(abs(z) < 3.3 for z in found["coverage_z"]), found


def test_logistic_regression_covers():
    """Laplace's approximation is not exact, but at 40 data near enough not to be seen in 100 data sets."""
    found = calibration.measure("labels", "exact", n=40, repeats=100, seed=5)
    assert found["rank_p_value"] > LEAST, found
    assert all(abs(z) < 3.3 for z in found["coverage_z"]), found


def test_draws_that_are_too_narrow_would_be_noticed(monkeypatch):
    wide = lw.Posterior.draws.fget
    monkeypatch.setattr(lw.Posterior, "draws", property(lambda self: self.mean + 0.4 * (wide(self) - self.mean)))
    assert calibration.measure("linear", "exact", n=11, repeats=100, seed=5)["rank_p_value"] < LEAST


def test_the_test_of_uniformity_is_one():
    generator = torch.Generator().manual_seed(0)
    values = [calibration.uniform(torch.randint(20, (400,), generator=generator), 20) for _ in range(300)]
    share = sum(value < 0.1 for value in values) / 300
    assert abs(share - 0.1) < 4 * (0.09 / 300) ** 0.5
