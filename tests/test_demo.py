"""The demo does its job: a page, and error bars that hold on pictures neither trained nor tuned on."""

import re

import pytest
import torch

from lapwing import demo, fit, metrics, records
from lapwing.bayes.likelihoods import Categorical


@pytest.fixture(scope="module")
def parts():
    data = demo.split()
    model = demo.trained(data)
    posterior = fit(model, data.train, Categorical(), validation=data.held_out)
    return data, model, posterior, demo.evaluations(posterior, data)


def test_sets_do_not_overlap(parts):
    data = parts[0]
    rows = torch.cat([data.train[0], data.held_out[0], data.test[0]])
    assert len(rows) == 1797
    assert len(data.train[0]) == demo.TRAINED


def test_the_posterior_keeps_the_network_and_is_no_worse_than_it(parts):
    upright, turned = (demo.probabilities(one) for one in parts[3])
    for found in (upright, turned):
        (ours, labels), (alone, _) = found[records.OURS], found["MAP"]
        assert abs(metrics.accuracy(ours, labels) - metrics.accuracy(alone, labels)) <= 0.01
        gap = metrics.paired(metrics.nll_each(ours, labels), metrics.nll_each(alone, labels))
        assert gap.mean <= 3 * gap.standard_error
    ours, labels = turned[records.OURS]
    alone, _ = turned["MAP"]
    gap = metrics.paired(metrics.nll_each(ours, labels), metrics.nll_each(alone, labels))
    assert gap.mean < -3 * gap.standard_error  # turned digits are where error bars are needed


def test_what_is_printed_is_what_was_found(parts):
    lines = demo.findings(parts[3], parts[2])
    ours, labels = demo.probabilities(parts[3][0])[records.OURS]
    assert f"{metrics.nll(ours, labels):.3f}" in lines[0]
    assert re.search(r"\d+% to \d+%", lines[2])


def test_the_demo_writes_its_page(parts, tmp_path, capsys, monkeypatch):
    data, model, posterior, sets = parts
    monkeypatch.setattr(demo, "split", lambda: data)
    monkeypatch.setattr(demo, "trained", lambda _data: model)
    monkeypatch.setattr(demo, "fit", lambda *_args, **_options: posterior)
    monkeypatch.setattr(demo, "evaluations", lambda *_args: sets)
    demo.main(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "temperature scaling" in page
    assert "Page: " in capsys.readouterr().out
