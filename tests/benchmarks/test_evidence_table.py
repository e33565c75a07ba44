"""The task evidence-table: its names, its cells, and each way to set the precisions on a small problem."""

import pytest
import torch
from typer.testing import CliRunner

import lapwing as lw
from benchmarks.__main__ import app
from benchmarks.networks import batchnorm_cnn
from benchmarks.tasks import STUDIES
from benchmarks.tasks import evidence_table as study

N, NEW, CLASSES = 9, 4, 3


@pytest.fixture(scope="module")
def small():
    generator = torch.Generator().manual_seed(3)
    x, new = (torch.rand(n, 1, 5, 6, generator=generator, dtype=torch.float64) for n in (N, NEW))
    y = torch.arange(N) % CLASSES
    model = batchnorm_cnn(CLASSES, width=2, seed=1).double().eval()
    test = new, torch.tensor([0, 2, 1, 0])
    return model, (x, y), test, study.linearised(model, (x, y), test)


@pytest.mark.parametrize("way", ["weights-single", "mode-several"])
def test_probabilities_are_those_of_the_posterior_at_these_precisions(small, way):
    model, data, (new, labels), found = small
    at = study.tuned(found.train, way)
    linear = lw.linearise(model, data, lw.Categorical())
    groups = linear.groups("normalised")
    given = dict(zip(groups, at.precision.clamp_max(1e9).tolist(), strict=True))  # a pruned group is as good as fixed
    prior = lw.PerGroup(groups, precision=given)
    posterior = lw.infer(linear, prior=prior, method=lw.Exact(), draws=0, progress=False, curvature="network")
    assert found.scores(way)["nll"] == pytest.approx(-float(posterior.predict(new).log_prob(labels).mean()), abs=1e-6)


def test_one_precision_is_one_and_several_have_the_larger_evidence(small):
    found = small[-1]
    single, several = (study.tuned(found.train, f"mode-{how}") for how in ("single", "several"))
    assert len(single.precision.unique()) == 1
    assert len(several.precision) == len(found.train.prior.names) > 1
    assert several.log_evidence >= single.log_evidence - 1e-3


def test_a_curvature_that_follows_the_mode_settles_there(small):
    train = small[-1].train
    at = study.tuned(train, "full-single")
    mode = train.mode(train.kernel(at.precision)).outputs
    # log precisions had settled to 0.01, and the outputs of the mode change no faster than they do
    torch.testing.assert_close(at.curvature_at, mode, rtol=0.02, atol=0.02)


def test_the_network_alone_has_no_spread(small):
    model, _, (new, labels), found = small
    expected = -model(new).detach().log_softmax(1)[range(NEW), labels].mean()
    assert found.scores("map")["nll"] == pytest.approx(float(expected))


@pytest.mark.parametrize(("network", "groups"), [("cnn", 4), ("resnet", 8), ("pre-resnet", 4), ("transformer", 1)])
def test_groups_are_the_matrices_that_a_normalisation_follows(network, groups):
    model = study.NETWORKS[network](study.SIZE, 0).eval()
    pictures = torch.rand(2, 1, study.SIZE, study.SIZE, generator=torch.Generator().manual_seed(0))
    linear = lw.linearise(model, (pictures, torch.tensor([3, 1])), lw.Categorical())
    assert len(linear.groups("normalised")) == groups
    assert 44_000 < linear.features.shape[1] < 48_000


@pytest.mark.parametrize(
    ("option", "name", "listed"),
    [("--methods", "laplace", "mode-single, mode-several"), ("--data", "vgg", "transformer, cnn, resnet")],
)
def test_unknown_names_list_the_valid_ones(tmp_path, option, name, listed):
    result = CliRunner().invoke(app, ["evidence-table", option, name, "--out", str(tmp_path / "out")])
    assert result.exit_code != 0
    assert listed in " ".join(result.output.split())


def test_published_figures_belong_to_ways_that_there_are():
    table = STUDIES["evidence-table"]
    assert all(key.split()[0] in table.methods for row in table.published.values() for key in row)
