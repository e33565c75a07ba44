"""`lapwing acquire`: rows of a table and of a network's inputs, and what is refused."""

import csv
import json

import numpy as np
import pytest
from sklearn.datasets import load_iris
from typer.testing import CliRunner

from lapwing.app.cli.commands import app


def called(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def tables(tmp_path):
    rows, numbers = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    parts = {"train": order[:40], "pool": order[40:]}
    for name, part in parts.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "c", "d", *(["kind"] if name == "train" else [])])
            kinds = [[f"kind {numbers[row]}"] if name == "train" else [] for row in part]
            writer.writerows([*rows[row], *kind] for row, kind in zip(part, kinds, strict=True))
    return tmp_path


def test_rows_of_a_table_and_what_is_refused(tables):
    fitted = called("fit", tables / "train.csv", "--target", "kind", "--out", tables / "run", "--quiet")
    assert fitted.exit_code == 0, fitted.output
    out = tables / "next.csv"
    found = called("acquire", tables / "run", tables / "pool.csv", "--count", 4, "--out", out, "--json")
    assert found.exit_code == 0, found.output
    values = json.loads(found.output)
    assert values["score"] == "batchbald"
    assert len(set(values["rows"])) == 4
    with out.open() as file:
        assert [int(row["row"]) for row in csv.DictReader(file)] == values["rows"]
    refused = called("acquire", tables / "run", tables / "pool.csv", "--score", "variance", "--out", out)
    assert refused.exit_code != 0
    assert "for labels expected one of batchbald, bald, entropy" in " ".join(refused.output.split())


def test_inputs_of_a_network(tables):
    (tables / "own_pool.py").write_text(
        "import torch\n\ndef make():\n    with torch.random.fork_rng():\n        torch.manual_seed(0)\n"
        "        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))\n"
    )
    fitted = called("fit", f"{tables / 'own_pool.py'}:make", tables / "train.csv", "--out", tables / "run", "--quiet")
    assert fitted.exit_code == 0, fitted.output
    found = called(
        "acquire", tables / "run", tables / "pool.csv", "--score", "bald", "--count", 3, "--out", tables / "n.csv"
    )
    assert found.exit_code == 0, found.output
    assert "3 rows to label next, by bald" in found.output
