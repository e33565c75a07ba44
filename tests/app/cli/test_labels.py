"""`lapwing labels`: suspects of a table and of a network's data, and what is refused."""

import csv
import json

import numpy as np
import pytest
from sklearn.datasets import load_iris
from typer.testing import CliRunner

from lapwing.app.cli.commands import app


@pytest.fixture
def table(tmp_path):
    rows, numbers = load_iris(return_X_y=True)
    kinds = np.array(["setosa", "versicolor", "virginica"])[numbers]
    kinds[7] = "virginica"
    path = tmp_path / "iris.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "d", "kind"])
        writer.writerows([*row, kind] for row, kind in zip(rows.tolist(), kinds, strict=True))
    return path


def called(*arguments):
    return CliRunner().invoke(app, ["labels", *map(str, arguments)])


def test_a_planted_label_of_a_table_is_listed_first(table, tmp_path):
    found = called(table, "--target", "kind", "--count", 3, "--out", tmp_path / "suspects.csv", "--json")
    assert found.exit_code == 0, found.output
    values = json.loads(found.output)
    assert values["suspects"][0] == 7
    assert len(values["suspects"]) == 3
    with (tmp_path / "suspects.csv").open() as file:
        first = next(csv.DictReader(file))
    assert (first["row"], first["given"], first["suggested"]) == ("7", "virginica", "setosa")


def test_a_network_and_its_data(table, tmp_path):
    (tmp_path / "own_labels.py").write_text(
        "import torch\n\ndef make():\n    with torch.random.fork_rng():\n        torch.manual_seed(0)\n"
        "        return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))\n"
    )
    found = called(
        f"{tmp_path / 'own_labels.py'}:make",
        table,
        "--classes",
        "setosa, versicolor, virginica",
        "--count",
        2,
        "--out",
        tmp_path / "suspects.csv",
        "--json",
    )
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["suspects"][0] == 7
    assert "virginica,setosa" in (tmp_path / "suspects.csv").read_text()


def test_what_has_no_labels_is_refused(table, tmp_path):
    numbers = called(table, "--target", "a", "--out", tmp_path / "x.csv")
    assert numbers.exit_code != 0
    assert "holds numbers" in numbers.output
    alone = called("model.py:make", "--out", tmp_path / "x.csv")
    assert alone.exit_code != 0
    assert "name its training data too" in alone.output
