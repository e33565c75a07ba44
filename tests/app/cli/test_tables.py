"""`lapwing fit table.csv --target y`: estimators of tables from the command line, and what is said of each column."""

import csv
import json
import re

import numpy as np
import pandas
import pytest

from lapwing import tabular
from lapwing.app import records
from lapwing.app.cli import columns
from lapwing.app.cli.columns import planned
from tests.app.cli.conftest import write

ROWS = 90
COLOURS = ("blue", "green", "red")


def cells(seed=0, rows=ROWS):
    """Columns: a counter, numbers with gaps, categories, dates, identifiers, a constant, numbers; and two targets."""
    rng = np.random.default_rng(seed)
    size, other = rng.normal(size=(2, rows))
    colour = rng.integers(3, size=rows)
    price = 10 + 3 * size + 2 * colour + 0.2 * rng.normal(size=rows)
    return {
        "number": [str(k) for k in range(1, rows + 1)],
        "size": ["" if k % 20 == 3 else f"{size[k]:.6f}" for k in range(rows)],
        "colour": [COLOURS[k] for k in colour],
        "day": [f"2021-{1 + k % 12:02d}-{1 + k % 28:02d}" for k in range(rows)],
        "name": [f"person {k}" for k in range(rows)],
        "unit": ["m"] * rows,
        "other": [f"{value:.6f}" for value in other],
        "price": [f"{value:.6f}" for value in price],
        "dear": ["yes" if value > 12 else "no" for value in price],
    }


def written(path, table, leave=()):
    names = [name for name in table if name not in leave]
    write(path, names, zip(*(table[name] for name in names), strict=True))
    return path


@pytest.fixture
def quick(monkeypatch):
    """Fewer and smaller networks than by default."""
    for cls in (tabular.BayesianMLPRegressor, tabular.BayesianMLPClassifier):
        before = cls.__init__
        defaults = dict(before.__kwdefaults__) | {"hidden_units": 4, "members": 2, "max_iter": 15}
        monkeypatch.setattr(before, "__kwdefaults__", defaults)


@pytest.fixture
def table(tmp_path, quick):
    return written(tmp_path / "table.csv", cells())


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_table_of_numbers(lapwing, tmp_path, table):
    out = tmp_path / "run"
    test = written(tmp_path / "test.csv", cells(1))
    result = lapwing(
        "fit",
        table,
        "--target",
        "price",
        "--inputs",
        "number,size,colour,day,name,unit,other",
        "--test",
        test,
        "--out",
        out,
    )
    assert result.exit_code == 0, result.stderr
    assert "estimator: BayesianMLPRegressor (the target has numbers, 90 different ones)" in result.stdout
    assert "column 'number': left out: it counts the rows" in result.stdout
    assert "column 'size': numbers, 5 missing ones filled with their mean and marked (relevance" in result.stdout
    assert "column 'colour': 3 categories (relevance" in result.stdout
    assert "column 'day': dates, as days since 2021-01-01" in result.stdout
    assert "column 'name': left out: text or identifiers, 90 different in 90 rows" in result.stdout
    assert "column 'unit': left out: always 'm'" in result.stdout
    record = records.load(out)
    assert record.task == "regression"
    assert record.data.sizes == {"train": 90, "test": 90}
    assert record.evaluations[0].method("lapwing").metrics["RMSE"].value < 1.5
    assert record.influence.leverage.shape == (90,)
    assert list(record.relevance) == ["size", "colour", "day", "other"]
    assert sum(record.relevance.values()) == pytest.approx(1.0)
    ours = record.evaluations[0].method("lapwing")
    assert record.evaluations[0].input_name == "size"
    inside = (ours.lower_90 < record.evaluations[0].targets) & (record.evaluations[0].targets < ours.upper_90)
    assert ours.metrics["coverage of 90 %"].value == pytest.approx(inside.mean())
    assert record.solve.tuned_by == "tuned by marginal likelihood"
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    found = rows_of(out / "predictions.csv")
    assert list(found[0]) == ["row", "mean", "std", "epistemic_std", "lower_90", "upper_90"]
    assert all(float(row["lower_90"]) < float(row["mean"]) < float(row["upper_90"]) for row in found)


def test_a_table_of_classes_and_new_rows(lapwing, tmp_path, table):
    out = tmp_path / "run"
    result = lapwing("fit", table, "--inputs", "size,colour,other", "--hold-out", 0.3, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["task"] == "classification"
    assert found["metrics"]["test"]["lapwing"]["accuracy"]["value"] > 0.7
    assert {
        "what": "estimator",
        "value": "BayesianMLPClassifier",
        "why": "the target has words, 2 different ones",
    } in found["choices"]
    assert records.load(out).data.sizes == {"train": 63, "test": 27}
    held_out = np.sort(np.random.default_rng(0).permutation(90)[:27])
    shown = rows_of(out / "predictions.csv")
    assert [int(row["row"]) for row in shown] == held_out.tolist()  # places in the file
    assert records.load(out).evaluations[0].places.tolist() == held_out.tolist()
    targets = np.array(cells()["dear"])[held_out]
    assert np.mean([row["prediction"] for row in shown] == targets) > 0.7
    new = written(tmp_path / "new.csv", cells(2, rows=7), leave=("dear", "price", "number"))
    assert "7 predictions" in lapwing("predict", out, new).stdout
    predicted = rows_of(out / "predictions-new.csv")
    assert list(predicted[0]) == ["row", "prediction", "confidence", "entropy", "prob_no", "prob_yes"]
    model = tabular.BayesianMLPClassifier.load(out / "model.safetensors")
    wanted = cells(2, rows=7)
    frame = columns.table(columns.load(out), wanted, 7)
    np.testing.assert_allclose(
        [float(row["prob_yes"]) for row in predicted], model.predict_proba(frame)[:, 1], rtol=1e-6
    )


@pytest.mark.parametrize("target", ["price", "dear"])
def test_without_test_rows_each_training_row_is_predicted_from_the_others(lapwing, tmp_path, table, target):
    out = tmp_path / "run"
    result = lapwing("fit", table, "--target", target, "--inputs", "size,colour,other", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "Each training row was predicted from the others" in result.stdout
    assert "--validation" not in result.stdout
    (found,) = records.load(out).evaluations
    assert found.name == records.LEFT_OUT
    assert len(found.targets) == ROWS
    model = tabular.BayesianMLPRegressor if target == "price" else tabular.BayesianMLPClassifier
    left = (
        model().fit(pandas.read_csv(table)[["size", "colour", "other"]], pandas.read_csv(table)[target]).leave_one_out_
    )
    ours = found.method("lapwing")
    if target == "price":
        np.testing.assert_allclose(ours.log_density[:, 0], left.log_density, rtol=1e-6)
        np.testing.assert_allclose(ours.cdf[:, 0], left.cdf, rtol=1e-6, atol=1e-9)
    else:
        np.testing.assert_allclose(ours.probs, left.probabilities, rtol=1e-5, atol=1e-6)


def test_a_run_is_checked_on_further_rows(lapwing, tmp_path, table):
    out = tmp_path / "run"
    lapwing("fit", table, "--inputs", "size,colour,other", "--out", out)
    further = written(tmp_path / "further.csv", cells(3))
    result = lapwing("evaluate", out, further, "--ood", written(tmp_path / "far.csv", cells(4), leave=("dear",)))
    assert result.exit_code == 0, result.stderr
    record = records.load(out)
    assert [one.name for one in record.evaluations] == ["further.csv", "far.csv (out of distribution)"]
    assert record.evaluations[0].method("lapwing").metrics["accuracy"].value > 0.7


def test_the_library_says_the_same(lapwing, tmp_path, table):
    """As from a data frame with the same columns."""
    out = tmp_path / "run"
    lapwing("fit", table, "--target", "price", "--inputs", "size,colour,other", "--out", out)
    frame = pandas.read_csv(table)[["size", "colour", "other"]]
    model = tabular.BayesianMLPRegressor().fit(frame, pandas.read_csv(table)["price"])
    mean, std = model.predict(frame, return_std=True)
    found = rows_of(out / "predictions.csv")
    np.testing.assert_allclose([float(row["mean"]) for row in found], mean, rtol=1e-5)
    np.testing.assert_allclose([float(row["std"]) for row in found], std, rtol=1e-5)


def test_parquet_with_dates_and_gaps(lapwing, tmp_path, quick):
    frame = pandas.DataFrame(cells()).drop(columns=["number", "name", "unit", "dear"])
    frame["day"] = pandas.to_datetime(frame["day"])
    frame["size"] = pandas.to_numeric(frame["size"])
    frame["other"] = frame["other"].astype(float)
    frame["price"] = frame["price"].astype(float)
    frame.to_parquet(tmp_path / "table.parquet")
    result = lapwing("fit", tmp_path / "table.parquet", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert "column 'day': dates, as days since 2021-01-01" in result.stdout
    assert "5 missing ones filled" in result.stdout


def test_whole_numbers_are_classes_or_numbers_as_asked(lapwing, tmp_path, quick):
    table = {"a": [str(k % 7 + 0.5) for k in range(60)], "rooms": [str(k % 3) for k in range(60)]}
    path = written(tmp_path / "rooms.csv", table)
    assert (
        "BayesianMLPClassifier (the target has whole numbers, 3 different ones"
        in lapwing("fit", path, "--out", tmp_path / "1").stdout
    )
    assert (
        "BayesianMLPRegressor (as asked)"
        in lapwing("fit", path, "--likelihood", "gaussian", "--out", tmp_path / "2").stdout
    )


@pytest.mark.parametrize(
    ("cells", "kind", "said"),
    [
        (["1", "2.5", "?", "-3"], "number", "numbers, 1 missing"),
        (["1", "2", "3", "4"], "left out", "counts the rows"),
        (["1", "2", "4", "3"], "number", "numbers"),
        (["", "NA", "", ""], "left out", "left out: empty"),
        (["x", "x", "x", ""], "left out", "always 'x'"),
        (["x", "y", "x", "y"], "category", "2 categories"),
        (["x", "y", "z", "y"], "left out", "text or identifiers, 3 different in 4 rows"),
        (["2020-02-01 12:00", "2020-02-03", "", "2020-01-31"], "date", "days since 2020-01-31, 1 missing"),
    ],
    ids=["numbers", "counter", "other numbers", "empty", "constant", "categories", "identifiers", "dates"],
)
def test_what_is_done_with_a_column(cells, kind, said):
    found = planned("this", cells)
    assert found.kind == kind
    assert said in found.said


def test_dates_are_days_since_the_first():
    cells = {"day": ["2020-02-01T12:00", "", "2020-01-31"]}
    plan = [planned("day", cells["day"])]
    np.testing.assert_array_equal(columns.table(plan, cells, 3).numbers[:, 0], [1.5, np.nan, 0])
    np.testing.assert_array_equal(columns.table(plan, {"day": ["2020-02-10"]}, 1).numbers[:, 0], [10])


def test_what_cannot_be_fitted_is_said(lapwing, tmp_path, quick):
    table = cells()
    path = written(tmp_path / "table.csv", table)
    for arguments, message in (
        (("--target", "prise"), "there is no column 'prise'"),
        (("--target", "price", "--validation", path), "--validation is for networks that you bring.*as --test"),
        (("--weights", "weights.pt"), "--weights is for networks that you bring"),
        (("--inputs", "name,unit"), "no column is left to learn from.*'name': left out.*'unit': left out"),
        (("--inputs", "size,sighs"), "columns 'sighs' are missing"),
        (("--hold-out", "2"), "--hold-out is a share"),
        (("--target", "price", "--likelihood", "poisson"), "expected gaussian, categorical or bernoulli"),
        (("--target", "colour", "--likelihood", "gaussian"), "are not numbers"),
        (("--target", "unit"), "one class only"),
    ):
        result = lapwing("fit", path, *arguments, "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert re.search(message, result.stderr), result.stderr
    mixed = written(tmp_path / "mixed.csv", table | {"other": [*table["other"][:-1], "much"]})
    assert "column 'other' holds numbers, but 'much' too" in lapwing("fit", mixed, "--out", tmp_path / "run").stderr
    assert "there is no such file" in lapwing("fit", "nowhere.csv", "--target", "y", "--out", tmp_path / "run").stderr


def test_new_rows_that_do_not_fit_are_refused(lapwing, tmp_path, table):
    out = tmp_path / "run"
    lapwing("fit", table, "--inputs", "size,colour,other", "--out", out)
    new = cells(5, rows=6)
    lacking = written(tmp_path / "lacking.csv", new, leave=("colour",))
    assert "columns 'colour' are missing" in lapwing("predict", out, lacking).stderr
    words = written(tmp_path / "words.csv", new | {"other": ["many"] * 6})
    assert (
        "column 'other' holds 'many' in row 0, counted from 0, and numbers in training"
        in lapwing("predict", out, words).stderr
    )
    unseen = written(tmp_path / "unseen.csv", new | {"dear": ["perhaps"] * 6})
    assert "classes that were not in the training data: 'perhaps'" in lapwing("evaluate", out, unseen).stderr
    (out / "columns.json").write_text("[3]")
    assert "does not hold what it should" in lapwing("predict", out, table).stderr
    (out / "columns.json").unlink()
    assert "columns.json is missing" in lapwing("predict", out, table).stderr
