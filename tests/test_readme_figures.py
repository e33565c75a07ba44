"""Figures of the README, and of the page on several networks, are those of the committed results."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def tries():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import first_tries
    finally:
        sys.path.pop(0)
    lines = map(json.loads, (ROOT / "benchmarks" / "results" / "first_tries.jsonl").read_text().splitlines())
    classes = ("classes", "labels")
    return [
        line["result"]
        for line in lines
        if line["result"]["number"] in first_tries.FINAL and line["result"]["target"] in classes
    ]


@pytest.mark.parametrize(("validated", "rival"), [(True, "ts"), (False, "raw")])
def test_first_fits_of_classifiers(tries, validated, rival):
    chosen = [one for one in tries if bool(one["validation_rows"]) == validated and f"minus_{rival}" in one]
    found = np.array([one[f"minus_{rival}"] for one in chosen])
    beyond = 2 * np.array([one[f"minus_{rival}_se"] for one in chosen])
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {len(chosen)} ")]
    assert f"| {int((found > beyond).sum())} significantly better |" in row
    assert f"**{int((found < -beyond).sum())} significantly better**" in row
    assert f"{found.mean():.3f} on average".replace("-", "−") in row


def row_of(beginning):
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {beginning}")]
    return row


def results(name):
    return [json.loads(line) for line in (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()]


def test_tables():
    nll = {}
    for line in results("tabular"):
        asked = line["arguments"]
        named = asked["data"] in ("yacht", "boston", "energy", "concrete")
        if named and not asked.get("gap") and "a part" not in line["cell"]:
            for outcome in line["result"]["outcomes"]:
                nll.setdefault(asked["method"], {})[asked["data"], outcome["split"]] = outcome["scores"]["nll"]
    assert {len(nll[method]) for method in ("lapwing", "gp", "boosting", "mlp")} == {40}
    mean = {method: f"{np.mean(list(found.values())):.2f}" for method, found in nll.items()}
    row = row_of("`BayesianMLPRegressor`")
    rivals = f"Gaussian process {mean['gp']}, boosting {mean['boosting']}, cross-validated MLP {mean['mlp']}"
    assert f"| {rivals} | **{mean['lapwing']}** |" in row


def test_wrong_labels():
    (found,) = [line["result"] for line in results("label_errors") if line["cell"].endswith("500 digits, no decay")]
    ours, alone = found["precision_at_50_at_the_linear_mode"], found["precision_at_50_network_alone"]
    assert f"its training loss: {alone:.0%} | **{ours:.0%}** |" in row_of("Wrong labels among the 50")


@pytest.mark.parametrize("size", ["1,000 × 20,000", "400 × 30"])
def test_ridge(size):
    (found,) = [line["result"] for line in results("ridge") if line["cell"] == size]
    row = row_of(f"`BayesianRidge`, {size}")
    ours, theirs = np.median(found["our_seconds"]), np.median(found["their_seconds"])
    if ours > theirs:  # said so, in bold
        assert f"**{1000 * theirs:.0f} ms** | {1000 * ours:.0f} ms |" in row
        return
    their_memory, our_memory = (found[f"{whose}_peak_bytes"] / 1e9 for whose in ("their", "our"))
    assert f"{theirs:.0f} s, {their_memory:.1f} GB | **{ours:.1f} s, {our_memory:.1f} GB** |" in row


def test_resnet20():
    (found,) = [line["result"] for line in results("resnet20") if line["cell"] == "all weights, n = 300, averaged"]
    test, noise = (
        {name: found[part][name]["nll"] for name in ("lapwing", "temperature scaling")} for part in ("test", "noise")
    )
    for part in ("test", "noise"):  # neither is bold: the paired difference is within two standard errors
        ours = found[part]["lapwing"]
        assert abs(ours["nll_over_temperature_scaling"]) < 2 * ours["standard_error"]
    scaled = f"temperature scaling: {test['temperature scaling']:.3f} / {noise['temperature scaling']:.3f}"
    assert f"| {scaled} | {test['lapwing']:.3f} / {noise['lapwing']:.3f} |" in row_of("ResNet-20")


@pytest.mark.parametrize(
    ("told", "method"),
    [
        ("one network, validated", "one, validated"),
        ("five averaged", "five"),
        ("five, temperature scaling", "five, temperature"),
        ("mixture of three, validated", "mixture of three, validated"),
        ("mixture of five", "mixture of five"),
        ("mixture of five, validated", "mixture of five, validated"),
    ],
)
def test_several_networks(told, method):
    page = (ROOT / "docs" / "how_to" / "several_networks.md").read_text()
    cells = []
    for case in ("digits 200", "mnist 200", "mnist 1000"):
        found = [line["result"][method] for line in results("several_networks") if line["cell"].startswith(f"{case},")]
        assert len(found) == 5, case
        keys = ("nll", "nll_turned", "auroc_letters_mutual_information")
        nll, rotated, letters = (np.mean([one[key] for one in found]) for key in keys)
        cells.append(f"{nll:.3f} / {rotated:.2f} / {letters:.3f}")
    assert f"| {told} | {' | '.join(cells)} |\n" in page
