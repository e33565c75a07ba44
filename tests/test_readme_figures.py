"""Figures of the README are those of the committed results."""

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
