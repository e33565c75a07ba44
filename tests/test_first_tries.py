"""Forty fits as a newcomer makes them end with a posterior, and their generator keeps its protocol."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import first_tries  # noqa: E402
import tries_data  # noqa: E402
import tries_networks  # noqa: E402

QUICK = (
    23, 26, 45, 50, 56, 74, 78, 148, 81, 82, 83, 70, 86, 87, 92, 96, 405, 106, 471, 115, 117, 120, 134, 135, 137, 146, 166,
    459, 181, 183, 196, 199, 210, 212, 213, 219, 226, 43, 231, 235,
)  # fmt: skip


@pytest.fixture
def fewer_test_data(monkeypatch):
    """Sixty of five hundred: whether a try ends well is seen on them too, and predictions take longer than a fit."""
    whole = first_tries.data_of

    def cut(about: dict) -> tries_data.Data:
        data = whole(about)
        return replace(data, test=tuple(part[:60] for part in data.test))

    monkeypatch.setattr(first_tries, "data_of", cut)


@pytest.mark.usefixtures("fewer_test_data")
@pytest.mark.parametrize("number", QUICK)
def test_a_first_try_ends_well(number):
    found = first_tries.measure(number)
    assert found["outcome"] == "posterior", found["error"]
    scores = [value for name, value in found.items() if "nll" in name or name.startswith("minus_")]
    assert len(scores) > 3
    assert all(math.isfinite(score) for score in scores)
    assert 0 <= found.get("coverage", found.get("accuracy", 0)) <= 1


@pytest.mark.parametrize("number", [2111, 2359])
def test_held_out_data_never_choose_a_spread_that_is_round_off(number):
    """These chose precisions at which the spread was that of round-off in float32 features; draws had another."""
    assert first_tries.measure(number)["asked"] == {}


def test_forty_tries_are_of_every_kind():
    tries = [first_tries.describe(number) for number in QUICK]
    assert len(set(QUICK)) == 40
    assert set(QUICK) <= set(first_tries.DEVELOPMENT)
    assert {one["data"] for one in tries} == set(tries_data.KINDS)
    assert {one["form"] for one in tries} == FORMS
    assert {one["activation"] for one in tries} == set(tries_networks.ACTIVATIONS)


FORMS = {"mlp", "tied", "cnn", "lstm", "transformer", "embedding", "tied embedding"}


@pytest.mark.parametrize("numbers", [first_tries.DEVELOPMENT, first_tries.FINAL], ids=["development", "final"])
def test_every_part_is_drawn(numbers):
    tries = [first_tries.describe(number) for number in numbers]
    assert len(tries) == 500
    expected = {
        "data": set(tries_data.KINDS), "form": FORMS, "activation": set(tries_networks.ACTIVATIONS),
        "norm": {"none", "batch", "layer"}, "method": {"default", "KFAC", "Diagonal", "last layer"}, "layers": {1, 2, 3},
        "scaling": {"standardise", "minmax", "none"}, "given_as": {"tensors", "dataset", "loader"},
        "target": {"classes", "labels", "counts", "numbers", "spread numbers"},
    }  # fmt: skip
    assert {part: {one[part] for one in tries} for part in expected} == expected
    assert {one["form"] for one in tries if one["data"] == "sequences"} == {"lstm", "transformer"}
    for one in tries:
        small = one["data"] == "linnerud"
        assert (12 if small else 60) <= one["rows"] <= 300
        assert one["validation_rows"] == 0 or one["validation_rows"] >= (4 if small else 10)
        assert 10 <= one["units"] <= 100
        assert 60 <= one["epochs"] <= 500
        assert one["test_rows"] == 500 or tries_data.KINDS[one["data"]].available is not None
    assert 200 < sum(bool(one["validation_rows"]) for one in tries) < 300


@pytest.mark.parametrize("name", tries_data.KINDS)
def test_the_same_number_gives_the_same_try(name):
    number = next(number for number in range(500) if first_tries.describe(number)["data"] == name)
    one, again = ({**first_tries.describe(number), "epochs": 2} for _ in range(2))
    assert one == again
    first, second = first_tries.data_of(one), first_tries.data_of(again)
    for part in ("train", "test"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(first, part), getattr(second, part), strict=True))
    assert first.train[0].dtype in (torch.float32, torch.int64)
    assert len(first.train[0]) == one["rows"]
    assert len(first.test[0]) == one["test_rows"]
    models = [tries_networks.trained(tries_data.KINDS[name], data.train, one)[0] for data in (first, second)]
    weights = [torch.nn.utils.parameters_to_vector(model.parameters()) for model in models]
    assert torch.equal(*weights)


def test_constant_columns_stay_unscaled():
    found = tries_data.made("constant columns", 100, 20, "standardise", False, 3)
    x, test = found.train[0].numpy(), found.test[0].numpy()
    assert np.all(x[:, 5:] == 0)
    assert set(np.unique(test[:, 7])) == {0, 1}
    np.testing.assert_allclose(x[:, :5].std(0), 1, atol=1e-5)
    gap = tries_data.made("wave with a gap", 100, 20, "none", False, 3)
    known = torch.cat([gap.train[0], gap.validation[0]])
    assert not bool(((known > 0) & (known < 1.2)).any())
    assert bool(((gap.test[0] > 0) & (gap.test[0] < 1.2)).any())


def test_an_interrupted_run_goes_on_and_late_tries_are_ended(tmp_path):
    """In a process of its own, whose server of processes is not that of other tests."""
    path = tmp_path / "tries.jsonl"
    code = f"""
import first_tries, json, pathlib
path = pathlib.Path({str(path)!r})
first_tries.run([83, 84], path, 2, force=False)
whole = path.read_text()
lines = whole.splitlines()
path.write_text(lines[0] + chr(10) + lines[1][:40])
first_tries.TRAINING_SECONDS = 0.0
first_tries.run([83, 84], path, 1, force=False)
print(json.dumps([whole, path.read_text()]))
"""
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=120, check=True
    )  # fmt: skip
    lines, again = (text.splitlines() for text in json.loads(finished.stdout.splitlines()[-1]))
    assert [json.loads(line)["cell"] for line in lines] == ["83", "84"]
    assert {"commit", "command", "versions", "seconds", "arguments"} <= json.loads(lines[0]).keys()
    assert again[0] == lines[0]
    assert json.loads(again[1])["result"]["outcome"] == "timeout"


def test_the_summary_counts_by_hand():
    classes = {"target": "classes", "outcome": "posterior", "validation_rows": 9, "fit_seconds": 1.0}
    tries = [
        {**classes, "data": "iris", "nll": 1.0, "minus_ts": -0.2, "minus_ts_se": 0.05, "candidate": "raw", "asked": {}},
        {**classes, "data": "wine", "nll": 1.0, "minus_ts": 0.4, "minus_ts_se": 0.3, "asked": {"mean": "non-finite"}},
        {**classes, "data": "wine", "outcome": "crash", "error": "E"},
        {"target": "numbers", "outcome": "posterior", "validation_rows": 0, "data": "diabetes", "coverage": 0.7},
        {"target": "numbers", "outcome": "posterior", "validation_rows": 0, "data": "diabetes", "coverage": 0.8},
    ]
    told = first_tries.summary(tries)
    assert "| 20.0 % (crash 1, timeout 0, non-finite 0); 33.3 % of classes with validation |" in told
    assert "| +0.100 [-0.200, +0.400] / +0.370 / 1 : 0 of 2, 2 data sets |" in told
    assert "| 0.150 / 0.75 (diabetes) / 0.70 |" in told
    assert "| 1 of 2 tries, mean 1 |" in told
    assert "raw 1, None 1" in told


def test_committed_tries_are_those_of_their_numbers():
    for line in (BENCHMARKS / "results" / "first_tries.jsonl").read_text().splitlines():
        cell = json.loads(line)
        about = first_tries.describe(int(cell["cell"]))
        assert {part: cell["result"][part] for part in about} == about
