"""Studies that need no downloads to be checked: corrupted pictures on a small network, and costs in passes."""

import pytest
import torch

from benchmarks.classifiers import Problem
from benchmarks.corruptions import corrupt
from benchmarks.networks import batchnorm_cnn
from benchmarks.outcomes import Cell
from benchmarks.tasks import cifar, scaling
from lapwing import metrics


@pytest.fixture
def small(monkeypatch):
    """The study of a small network with 6 × 7 pictures of three colours in four classes."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 3, 6, 7, generator=generator), torch.randint(4, (60,), generator=generator)
    model = batchnorm_cnn(4, channels=3, width=5, seed=1).eval()
    given = Problem(None, model, (x[:20], y[:20]), (x[20:40], y[20:40]), epochs=2, seed=0, few=9, total=500)
    monkeypatch.setattr(cifar, "problem", lambda few, seed: (given, (x[40:], y[40:])))
    return model, x[40:], y[40:]


def cell(task, data, method):
    return Cell(task, data, method, 0)


class TestCorrupted:
    def test_scores_are_those_of_the_pictures_made_worse(self, small, tmp_path):
        """NLL at a severity is the mean over all corruptions of it, from the network's own logits."""
        model, x, y = small
        found = cifar.run(cell("corrupted-cifar", "cifar10", "map"), tmp_path)
        assert found["nll_0"] == pytest.approx(metrics.nll(model(x).detach().double().softmax(1), y), rel=1e-5)
        worse = torch.cat([corrupt(x, kind, 3) for kind in cifar.KINDS])
        probs = model(worse).detach().double().softmax(1)
        assert found["nll_3"] == pytest.approx(metrics.nll(probs, y.repeat(3)), rel=1e-5)
        kinds = [found[f"nll_{kind}_3"] for kind in cifar.KINDS]
        assert found["nll_3"] == pytest.approx(sum(kinds) / 3)

    def test_temperature_scaling_differs_from_itself_by_nothing(self, small, tmp_path):
        found = cifar.run(cell("corrupted-cifar", "cifar10", "temperature"), tmp_path)
        assert found["over_temperature"] == found["over_temperature_error"] == 0
        alone = cifar.run(cell("corrupted-cifar", "cifar10", "map"), tmp_path)
        means = [sum(one[f"nll_{severity}"] for severity in cifar.SEVERITIES) / 3 for one in (alone, found)]
        assert alone["over_temperature"] == pytest.approx(means[0] - means[1])


class TestScaling:
    @pytest.mark.parametrize("method", ["last-layer", "diagonal"])
    def test_costs_are_positive_and_sizes_those_of_the_network(self, method, tmp_path):
        found = scaling.run(cell("scaling", "width 8", method), tmp_path)
        assert found["fit_passes"] > 1
        assert found["predict_passes"] > 1
        assert (found["weights"], found["rows"]) == (267, 3000)

    def test_the_number_of_weights(self):
        model = scaling.mlp([scaling.INPUTS, 9, 9, scaling.OUTPUTS])
        assert scaling.weights(9) == sum(weight.numel() for weight in model.parameters())
