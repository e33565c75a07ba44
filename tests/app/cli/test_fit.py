"""`lapwing fit` and what it leaves behind."""

import csv
import io
import json

import numpy as np
import pandas
import pytest
import torch

import lapwing as lw
from lapwing.app import records
from lapwing.app.cli import console, data, targets
from lapwing.app.cli.models import network


@pytest.fixture
def run(lapwing, tmp_path):
    out = tmp_path / "run"
    arguments = (
        "fit",
        "model.py:regression",
        "train.csv",
        "--weights",
        "regression.pt",
        "--validation",
        "validation.csv",
        "--test",
        "test.csv",
        "--ood",
        "far.csv",
        "--out",
        out,
    )
    return out, lapwing(*arguments)


def test_fit_writes_a_record_a_page_and_predictions(run):
    out, result = run
    assert result.exit_code == 0
    assert "gaussian (targets are numbers, 1 for each input)" in result.stdout
    assert "column 'height' (the last column)" in result.stdout
    record = records.load(out)
    assert record.status == "finished"
    assert record.data.sizes == {"train": 150, "validation": 70, "test": 80, "ood": 40}
    assert [one.name for one in record.evaluations] == ["test", "far.csv"]
    assert record.evaluations[0].method("lapwing").metrics["RMSE"].value < 0.5
    assert sum(layer.share for layer in record.layers) == pytest.approx(1, abs=1e-5)
    assert [layer.name for layer in record.layers] == ["0 (Linear)", "2 (Linear)"]
    assert record.influence.leverage.sum() == pytest.approx(record.solve.effective_dimension.value, rel=1e-4)
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_fit_says_what_the_library_says(run, stranger):
    out, _ = run
    table = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
    train, held_out, test = (data.read(str(stranger / f"{name}.csv")) for name in ("train", "validation", "test"))
    model = network(str(stranger / "model.py:regression"), str(stranger / "regression.pt"), "cpu")
    pair = lambda part: (torch.from_numpy(part.inputs), torch.from_numpy(part.targets).float()[:, None])  # noqa: E731
    posterior = lw.fit(model, pair(train), lw.Gaussian(), validation=pair(held_out))
    expected = posterior.predict(torch.from_numpy(test.inputs))
    assert np.allclose([float(row["std"]) for row in table], expected.std[:, 0], rtol=1e-5)
    low, high = expected.interval(0.9)
    assert np.allclose([float(row["lower_90"]) for row in table], low[:, 0], atol=1e-5)
    assert np.allclose([float(row["upper_90"]) for row in table], high[:, 0], atol=1e-5)


def test_json_is_all_that_is_printed(lapwing, tmp_path):
    result = lapwing(
        "fit",
        "model.py:regression",
        "train.csv",
        "--weights",
        "regression.pt",
        "--hold-out",
        0.3,
        "--out",
        tmp_path / "r",
        "--json",
    )
    found = json.loads(result.stdout)
    assert found["task"] == "regression"
    assert found["metrics"]["test"]["lapwing"]["NLL"]["value"] < 1
    assert found["page"].endswith("report.html")
    assert records.load(tmp_path / "r").data.sizes == {"train": 106, "validation": 22, "test": 22}


TABLES = {
    "semicolons": ("a;b, net;kind\n1;2.5;x\n-3;4;y\n", ";", ".", "';' between columns"),
    "decimal commas": (
        'a;b, net;kind\n1;2,5;"x, y"\n-3,25;4;y\n',
        ";",
        ",",
        "';' between columns, commas before decimals",
    ),
    "tabs": ("a\tb\tkind\n1\t2,5\tx\n-,5\t4\ty\n", "\t", ",", "tabs between columns, commas before decimals"),
    "commas": ("a,b,kind\n1,2.5,x;y\n-3,4,y\n", ",", ".", ""),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_with_the_marks_that_they_have(tmp_path, name):
    text, mark, point, told = TABLES[name]
    (tmp_path / "table.csv").write_text(text)
    found, truth = data.read(str(tmp_path / "table.csv")), pandas.read_csv(io.StringIO(text), sep=mark, decimal=point)
    assert found.read_as == told
    assert found.columns == tuple(truth.columns[:-1])
    np.testing.assert_array_equal(found.inputs, truth.iloc[:, :-1].to_numpy(np.float32))
    assert found.targets.tolist() == truth["kind"].tolist()


def test_a_table_with_semicolons_is_fitted_as_with_commas_and_the_run_says_so(lapwing, stranger, tmp_path):
    text = (stranger / "train.csv").read_text()
    (tmp_path / "train.csv").write_text(text.replace(",", ";").replace(".", ","))
    fitted = [
        lapwing("fit", "model.py:regression", path, "--weights", "regression.pt", "--quiet", "--out", tmp_path / out)
        for path, out in (("train.csv", "commas"), (tmp_path / "train.csv", "semicolons"))
    ]
    assert "table: ';' between columns, commas before decimals" in fitted[1].stdout
    assert "between columns" not in fitted[0].stdout
    tables = [(tmp_path / out / "predictions.csv").read_bytes() for out in ("commas", "semicolons")]
    assert tables[0] == tables[1]


def test_the_same_seed_gives_the_same_run(lapwing, tmp_path):
    for name in ("one", "two"):
        lapwing(
            "fit",
            "model.py:regression",
            "train.csv",
            "--weights",
            "regression.pt",
            "--hold-out",
            0.3,
            "--seed",
            5,
            "--out",
            tmp_path / name,
        )
    one, two = (records.load(tmp_path / name) for name in ("one", "two"))
    assert np.array_equal(one.evaluations[0].predictions[0].std, two.evaluations[0].predictions[0].std)
    assert one.data.fingerprint == two.data.fingerprint


def test_method_prior_and_weights_can_be_chosen(lapwing, tmp_path, stranger):
    words = ("fit", "model.py:regression", "train.csv", "--weights", "regression.pt", "--validation", "validation.csv")
    chosen = ("--method", "kfac", "--prior", "isotropic", "--select", "last-layer")
    result = lapwing(*words, "--test", "test.csv", *chosen, "--out", tmp_path / "chosen")
    assert result.exit_code == 0
    table = list(csv.DictReader((tmp_path / "chosen" / "predictions.csv").read_text().splitlines()))
    train, held_out, test = (data.read(str(stranger / f"{name}.csv")) for name in ("train", "validation", "test"))
    model = network(str(stranger / "model.py:regression"), str(stranger / "regression.pt"), "cpu")
    pair = lambda part: (torch.from_numpy(part.inputs), torch.from_numpy(part.targets).float()[:, None])  # noqa: E731
    posterior = lw.fit(
        model, pair(train), lw.Gaussian(), validation=pair(held_out), method=lw.KFAC(), prior=lw.Isotropic(),
        select=lambda name: name.startswith("2."),
    )  # fmt: skip
    expected = posterior.predict(torch.from_numpy(test.inputs))
    assert np.allclose([float(row["std"]) for row in table], expected.std[:, 0], rtol=1e-5)
    again = lapwing(*words, "--select", "2.", "--out", tmp_path / "by name")
    assert again.exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "magic"), "--method is 'magic', expected one of exact, krylov"),
        (("--prior", "flat"), "--prior is 'flat', expected one of g, isotropic"),
        (("--select", "head"), "--select has 'head', with which no weights begin: give last-layer, or"),
    ],
)
def test_choices_that_there_are_not(lapwing, tmp_path, words, message):
    result = lapwing("fit", "model.py:regression", "train.csv", "--weights", "regression.pt", "--out", tmp_path, *words)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def loaded(values, **options):
    return data.Loaded("x.csv", np.zeros((len(values), 2), np.float32), np.asarray(values), **options)


@pytest.mark.parametrize(
    ("values", "outputs", "likelihood", "classes"),
    [
        ([0, 1, 2, 1], 3, "categorical", ("0", "1", "2")),
        ([0, 1, 1, 0], 1, "bernoulli", ("0", "1")),
        ([0, 1, 1, 0], 2, "categorical", ("0", "1")),
        (["no", "yes", "no", "no"], 1, "bernoulli", ("no", "yes")),
        (["b", "a", "c", "a"], 3, "categorical", ("a", "b", "c")),
        ([0.5, 1.0, 2.0, 2.5], 1, "gaussian", ()),
        ([3, 7, 12, 5], 1, "gaussian", ()),
        (np.ones((4, 2)), 2, "gaussian", ()),
    ],
)
def test_the_likelihood_is_guessed_from_targets_and_outputs(values, outputs, likelihood, classes):
    found = targets.guess(loaded(values), outputs)
    assert (found.likelihood, found.classes) == (likelihood, classes)
    assert found.why


@pytest.mark.parametrize(
    ("values", "outputs", "asked", "message"),
    [
        ([0, 1, 5], 3, None, "run from 0 to 5, the network has 3 outputs"),
        (["a", "b", "c"], 2, None, "3 different names of classes, but the network has 2 outputs"),
        ([0.5, 1.0], 3, None, r"1 number\(s\) per target, but the network has 3 outputs"),
        ([0.5, 1.0], 3, "categorical", "whole numbers or names"),
        ([0, 1], 1, "categorical", "one output for each"),
        ([0, 2], 1, "bernoulli", "0 or 1"),
        (["a", "b"], 1, "gaussian", "not numbers"),
        ([0, 1], 2, "poisson", "unknown likelihood 'poisson'"),
    ],
)
def test_targets_that_do_not_fit_are_refused(values, outputs, asked, message):
    with pytest.raises(ValueError, match=message):
        targets.guess(loaded(values), outputs, asked)


def test_names_of_classes_in_another_order_than_the_outputs_are_refused():
    """A network whose outputs are ok, worn, broken, and targets that are words."""
    rng = np.random.default_rng(0)
    truth = rng.choice(3, 400, p=[0.5, 0.3, 0.2])
    words = np.array(["ok", "worn", "broken"])[truth]
    logits = 3 * np.eye(3)[truth] + rng.normal(size=(400, 3))
    rows = data.Loaded("train.csv", np.zeros((400, 2)), words)
    alphabetical = targets.guess(rows, 3)
    with pytest.raises(ValueError, match="Say --classes ok,worn,broken if that is their order") as refused:
        targets.check_order("train.csv", alphabetical, logits, targets.numbers(rows, alphabetical))
    right = targets.numbers(rows, alphabetical) == logits.argmax(1)
    assert f"gives {right.mean():.0%} of the training rows" in str(refused.value)
    named = targets.guess(rows, 3, order=("ok", "worn", "broken"))
    assert (targets.numbers(rows, named) == truth).all()
    targets.check_order("train.csv", named, logits, truth)
    untrained = rng.normal(size=(400, 3)) + np.array([0.0, 0.0, 5.0])  # says one class of all
    targets.check_order("train.csv", alphabetical, untrained, targets.numbers(rows, alphabetical))
    absent = targets.guess(
        data.Loaded("some.csv", np.zeros((9, 2)), words[:9]), 4, order=("ok", "worn", "new", "broken")
    )
    assert absent.classes == ("ok", "worn", "new", "broken")
    with pytest.raises(ValueError, match="name each class once"):
        targets.guess(rows, 3, order=("ok", "worn", "worn"))


def test_doctor_tests_itself(lapwing):
    result = lapwing("doctor", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["self-test"].startswith("passed")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_sentences_are_broken_between_words_on_a_terminal_only(monkeypatch, capsys):
    words = ["short", "  " + "word " * 20 + "end", "| a table |\n" + "| --- |" * 20]
    console.answer(words, {}, False)
    assert capsys.readouterr().out == "\n".join(words) + "\n"
    monkeypatch.setattr(console.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    console.answer(words, {}, False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "short"
    assert lines[-2:] == words[2].splitlines()
    assert all(len(line) <= 40 for line in lines[1:-2])
    assert [len(line) - len(line.lstrip()) for line in lines[1:-2]] == [2] + [4] * (len(lines) - 4)
    assert " ".join(" ".join(lines[1:-2]).split()) == words[1].strip()


def test_progress_is_shown_on_a_terminal_only(monkeypatch):
    for shown in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", shown)
        with console.progress(quiet=False) as tell:
            tell("reading", None)
            tell("predicting", 0.25)
            tell("predicting", 1.0)
        assert ("predicting" in shown.getvalue()) == shown.isatty()
    with console.progress(quiet=True) as tell:
        tell("reading", None)
