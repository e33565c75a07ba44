"""Figures of the README, and of the page on several networks, are those of the committed results."""

import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def test_figures_of_the_readme_are_those_of_the_results_page():
    """Which a test of the benchmarks compares with the results."""
    page = (ROOT / "docs" / "results.md").read_text().splitlines()
    text = (ROOT / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 5  # the head and its line
    assert [row for row in rows if row not in page] == []


def results(name):
    return [json.loads(line) for line in (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()]


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
