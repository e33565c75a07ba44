"""The demo does its job: a page, and error bars that hold on pictures neither trained nor tuned on."""

import re

import pytest
import torch

from lapwing import fit, metrics
from lapwing.app import demo, records
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


def test_the_posterior_is_no_worse_than_the_network(parts):
    upright, turned = (demo.probabilities(one) for one in parts[3])
    for found in (upright, turned):
        (ours, labels), (alone, _) = found[records.OURS], found["MAP"]
        assert metrics.accuracy(ours, labels) >= metrics.accuracy(alone, labels) - 0.01
        gap = metrics.paired(metrics.nll_each(ours, labels), metrics.nll_each(alone, labels))
        assert gap.mean <= 3 * gap.standard_error
    ours, labels = turned[records.OURS]
    alone, _ = turned["MAP"]
    gap = metrics.paired(metrics.nll_each(ours, labels), metrics.nll_each(alone, labels))
    assert gap.mean < -3 * gap.standard_error  # turned digits are where error bars are needed


def test_what_is_printed_is_what_was_found(parts):
    lines = demo.findings(parts[3])
    assert len(lines) == 3
    assert all(len(line) <= 78 for line in lines)  # a terminal has eighty columns, two of them for the margin
    for line, found in zip(lines[:2], map(demo.probabilities, parts[3]), strict=True):
        nll = {method: metrics.nll(probs, labels) for method, (probs, labels) in found.items()}
        assert f": {nll[records.OURS]:.3f}," in line
        for words, method in (("alone", "MAP"), ("cooled", "temperature scaling")):
            size, more = re.search(rf"{words} (\S+) ± \S+ (more|less)", line).groups()
            assert float(size) * (1 if more == "more" else -1) == pytest.approx(
                nll[method] - nll[records.OURS], abs=6e-4
            )
    shares = [
        (metrics.confidence(probs), metrics.accuracy(probs, labels))
        for probs, labels in (demo.probabilities(one)[records.OURS] for one in parts[3])
    ]
    assert re.findall(r"\d+%", lines[2]) == [f"{share:.0%}" for pair in shares for share in pair]


def test_the_demo_writes_its_page(parts, tmp_path, capsys, monkeypatch):
    data, model, posterior, sets = parts
    monkeypatch.setattr(demo, "split", lambda: data)
    monkeypatch.setattr(demo, "trained", lambda _data, _progress: model)
    monkeypatch.setattr(demo, "fit", lambda *_args, **_options: posterior)
    monkeypatch.setattr(demo, "evaluations", lambda *_args: sets)
    demo.main(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "temperature scaling" in page
    assert "scikit-learn&#x27;s digits" in page or "scikit-learn's digits" in page
    *_, found, where, following = capsys.readouterr().out.split("\n\n")
    assert found.startswith("What it found")
    assert where.splitlines()[1].strip() == str(tmp_path / "report.html")
    assert following.startswith("What to try next")


def test_the_command_is_named_only_where_it_is_there(monkeypatch):
    monkeypatch.setattr(demo.shutil, "which", lambda _name: None)
    assert any("activate" in line for line in demo.suggestions(demo.Path("report.html")))
    monkeypatch.setattr(demo.shutil, "which", lambda name: f"/bin/{name}")
    assert not any("activate" in line for line in demo.suggestions(demo.Path("report.html")))
