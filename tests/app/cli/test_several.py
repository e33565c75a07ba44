"""`lapwing fit` with several files of weights, and what later commands make of the run."""

import csv

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.app import records
from lapwing.app.cli import data
from lapwing.app.cli.models import network


@pytest.fixture(scope="module")
def weights(stranger):
    """Two files of weights: the stranger's own, and the same a little moved."""
    moved = {name: 1.1 * value for name, value in torch.load(stranger / "regression.pt").items()}
    torch.save(moved, stranger / "moved.pt")
    return ("--weights", "regression.pt", "--weights", "moved.pt")


def test_several_weights_become_one_mixture(lapwing, stranger, weights, tmp_path):
    out = tmp_path / "run"
    arguments = ("fit", "model.py:regression", "train.csv", *weights, "--test", "test.csv", "--ood", "far.csv")
    result = lapwing(*arguments, "--out", out)
    assert result.exit_code == 0, result.stdout
    assert "networks: 2, as one mixture (as many --weights)" in result.stdout
    record = records.load(out)
    assert record.network.weights == 2 * 26
    assert set(record.solve.precision) == {"network 1, all weights", "network 2, all weights"}
    assert len(record.solve.noise_std) == 2
    assert {one.method for one in record.evaluations[0].predictions} == {"lapwing", "networks averaged"}
    assert "between networks" in record.evaluations[0].method("lapwing").scores
    assert [one.method for one in record.evaluations[0].members] == ["network 1", "network 2"]
    assert sorted(path.name for path in out.glob("weights*")) == ["weights-0.safetensors", "weights-1.safetensors"]
    assert "between networks" in (out / "report.html").read_text()

    train, test = (data.read(str(stranger / f"{name}.csv")) for name in ("train", "test"))
    models = [network(str(stranger / "model.py:regression"), str(stranger / name), "cpu") for name in weights[1::2]]
    pair = torch.from_numpy(train.inputs), torch.from_numpy(train.targets).float()[:, None]
    expected = lw.fit(models, pair, lw.Gaussian(), progress=False).predict(torch.from_numpy(test.inputs))
    ours = record.evaluations[0].method("lapwing")
    observed = torch.from_numpy(test.targets).float()[:, None]
    np.testing.assert_allclose(ours.log_density, expected.log_prob(observed).numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.cdf, expected.distribution.cdf(observed).numpy(), rtol=1e-3, atol=1e-4)
    mean = np.mean([one.mean for one in record.evaluations[0].members], 0)
    np.testing.assert_allclose(mean, ours.mean, rtol=1e-5, atol=1e-6)
    table = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
    for name, value in (("std", expected.std), ("lower_90", expected.interval(0.9)[0])):
        ours = np.array([float(row[name]) for row in table])
        np.testing.assert_allclose(ours, value[:, 0].numpy(), rtol=1e-4, atol=1e-5)

    again = lapwing("predict", out, "test.csv", "--out", tmp_path / "again.csv")
    assert again.exit_code == 0, again.stdout
    rows = list(csv.DictReader((tmp_path / "again.csv").read_text().splitlines()))
    assert [row["std"] for row in rows] == [row["std"] for row in table]
    assert lapwing("evaluate", out, "test.csv").exit_code == 0


def test_every_file_must_be_there(lapwing, tmp_path):
    result = lapwing(
        "fit",
        "model.py:regression",
        "train.csv",
        "--weights",
        "regression.pt",
        "--weights",
        "none.pt",
        "--out",
        tmp_path,
    )
    assert result.exit_code != 0
    assert "there is no such file of weights" in result.stderr
