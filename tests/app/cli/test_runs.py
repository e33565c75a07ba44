"""A run from fit to predictions, evaluation and page: classes by number and by name, two classes, pictures."""

import csv
import json

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.app import recording, records
from lapwing.app.cli import data
from lapwing.app.cli.models import network


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def fitted(lapwing, folder, model, suffix, *options):
    """A run of the stranger's data, fitted once."""
    if not (folder / "record.json").exists():
        data_ = [f"train{suffix}", "--validation", f"validation{suffix}", "--test", f"test{suffix}"]
        result = lapwing("fit", f"model.py:{model}", *data_, "--weights", f"{model}.pt", "--out", folder, *options)
        assert result.exit_code == 0, result.stderr
    return folder


def test_classes_by_number(lapwing, runs, stranger):
    folder = fitted(lapwing, runs / "numbers", "classifier", ".npz")
    record = records.load(folder)
    test = record.evaluations[0]
    assert [one.method for one in test.predictions] == ["lapwing", "raw network", "temperature scaling"]
    assert record.choices[0].value == "categorical"
    assert record.solve.temperature > 0
    assert record.curve.held_out is not None
    loaded = {name: data.read(str(stranger / f"{name}.npz")) for name in ("train", "validation", "test")}
    pairs = {name: (torch.from_numpy(part.inputs), torch.from_numpy(part.targets)) for name, part in loaded.items()}
    model = network(str(stranger / "model.py:classifier"), str(stranger / "classifier.pt"), "cpu")
    posterior = lw.fit(model, pairs["train"], lw.Categorical(), validation=pairs["validation"])
    expected = posterior.predict(pairs["test"][0])
    assert np.allclose(test.method("lapwing").probs, expected.probs.numpy(), atol=1e-5)
    with torch.no_grad():
        logits = model(pairs["test"][0])
    assert np.allclose(test.method("raw network").probs, logits.softmax(1).numpy(), atol=1e-6)
    scaled = (logits / posterior.diagnostics.temperature_scaling["temperature"]).softmax(1)
    assert np.allclose(test.method("temperature scaling").probs, scaled.numpy(), atol=1e-6)


def test_predict_gives_what_fit_gave(lapwing, runs):
    folder = fitted(lapwing, runs / "numbers", "classifier", ".npz")
    result = lapwing("predict", folder, "test.npz", "--out", folder / "p.csv")
    assert result.exit_code == 0
    assert table(folder / "p.csv") == table(folder / "predictions.csv")
    assert "mutual_information" in table(folder / "p.csv")[0]


def test_a_second_fit_keeps_the_run_before_it_with_its_predictions(lapwing, stranger, tmp_path):
    folder = fitted(lapwing, tmp_path / "run", "regression", ".csv")
    assert lapwing("predict", folder, "new.csv").exit_code == 0
    (folder / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "notes.txt"}
    again = ("fit", "model.py:regression", "train.csv", "--weights", "regression.pt", "--draws", 8, "--out", folder)
    found = lapwing(*again)
    assert (
        f"The run that was in {folder} before, with its predictions and page, is kept in {folder / 'before-1'}"
        in found.stdout
    )
    assert {path.name: path.read_bytes() for path in (folder / "before-1").iterdir()} == before
    assert "predictions-new.csv" in before
    assert not (folder / "predictions-new.csv").exists()
    assert (folder / "notes.txt").read_text() == "mine"
    assert lapwing("predict", folder / "before-1", "new.csv", "--out", tmp_path / "old.csv").exit_code == 0
    assert (tmp_path / "old.csv").read_bytes() == before["predictions-new.csv"]
    third = json.loads(lapwing(*again, "--json").stdout)
    assert third["run_before"] == str(folder / "before-2")


def test_code_of_a_run_made_elsewhere_is_not_run_unasked(lapwing, stranger, tmp_path, monkeypatch):
    folder = fitted(lapwing, tmp_path / "run", "regression", ".csv")
    assert lapwing("predict", folder, "new.csv").exit_code == 0
    settings = json.loads((folder / "run.json").read_text())
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')\n")
    (folder / "run.json").write_text(json.dumps(settings | {"model": f"{tmp_path / 'evil.py'}:make"}))
    result = lapwing("predict", folder, "new.csv")
    assert result.exit_code == 1
    assert "if you trust it, add --model" in result.stderr
    assert lapwing("predict", folder, "new.csv", "--model", "model.py:regression").exit_code == 0
    (folder / "run.json").write_text(json.dumps(settings | {"format": 9}))
    assert "format 9, this lapwing reads 1" in lapwing("predict", folder, "new.csv").stderr
    (folder / "run.json").write_text(json.dumps(settings))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "someone else"))
    assert lapwing("predict", folder, "new.csv").exit_code == 1


def test_new_tables_may_have_other_columns_in_any_order(lapwing, stranger, tmp_path):
    folder = fitted(lapwing, tmp_path / "run", "regression", ".csv")
    result = lapwing("predict", folder, "new.csv")
    assert result.exit_code == 0
    rows = table(folder / "predictions-new.csv")
    inputs = torch.from_numpy(data.read(str(stranger / "train.csv")).inputs[:7])
    with torch.no_grad():
        expected = network(str(stranger / "model.py:regression"), str(stranger / "regression.pt"), "cpu")(inputs)
    assert np.allclose([float(row["mean"]) for row in rows], expected[:, 0], atol=1e-5)
    (stranger / "few.csv").write_text("a,b\n1,2\n")
    assert "columns 'c' are missing" in lapwing("predict", folder, "few.csv").stderr
    np.savez(stranger / "wide.npz", x=np.zeros((3, 9)))
    assert "shape (9,), the network was fitted with (3,)" in lapwing("predict", folder, "wide.npz").stderr


def test_evaluate_judges_on_new_data(lapwing, stranger, tmp_path):
    folder = fitted(lapwing, tmp_path / "run", "regression", ".csv")
    result = lapwing("evaluate", folder, "validation.csv", "--ood", "far.csv", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert list(found["metrics"]) == ["validation.csv", "far.csv (out of distribution)"]
    record = records.load(folder)
    assert record.evaluations[1].targets is None
    assert record.data.sizes["test"] == 70
    novelty = [one.method("lapwing").scores["novelty"].mean() for one in record.evaluations]
    assert novelty[1] > novelty[0]
    assert "Does it recognise out-of-distribution inputs?" in (folder / "report.html").read_text()
    assert "there is no column 'height'" in lapwing("evaluate", folder, "far.csv").stderr


def test_classes_by_name(lapwing, runs, stranger):
    folder = fitted(lapwing, runs / "words", "classifier", "_words.csv", "--target", "kind")
    record = records.load(folder)
    assert record.data.classes == ("ant", "bee", "cat", "dog")
    assert record.evaluations[0].method("lapwing").metrics["accuracy"].value > 0.6
    rows = table(folder / "predictions.csv")
    assert {row["prediction"] for row in rows} <= set(record.data.classes)
    assert sum(float(rows[0][f"prob_{name}"]) for name in record.data.classes) == pytest.approx(1, abs=1e-5)
    text = (stranger / "test_words.csv").read_text().replace("ant", "emu")
    (stranger / "unseen.csv").write_text(text)
    result = lapwing("evaluate", folder, "unseen.csv")
    assert result.exit_code == 1
    assert "classes that were not in the training data: 'emu'" in result.stderr


def test_two_classes_with_one_output(lapwing, runs):
    folder = fitted(lapwing, runs / "binary", "binary", "_binary.npz")
    record = records.load(folder)
    assert record.choices[0].value == "bernoulli"
    assert record.evaluations[0].method("lapwing").probs.shape == (80, 2)
    assert record.evaluations[0].method("raw network").metrics["accuracy"].value > 0.7
    result = lapwing("predict", folder, "test_binary.npz", "--out", folder / "p.csv")
    assert result.exit_code == 0
    assert table(folder / "p.csv") == table(folder / "predictions.csv")


def test_several_runs_on_one_page(lapwing, runs, tmp_path):
    folders = [
        fitted(lapwing, runs / "numbers", "classifier", ".npz"),
        fitted(lapwing, runs / "binary", "binary", "_binary.npz"),
    ]
    result = lapwing("report", *folders, "--out", tmp_path / "page.html", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["runs"]) == 2
    assert "2 runs compared" in (tmp_path / "page.html").read_text()


def test_pictures_in_folders(lapwing, stranger, tmp_path):
    from PIL import Image as image  # comes with matplotlib and scikit-image

    rng = np.random.default_rng(0)
    for name, mean in (("dark", 60), ("light", 190)):
        (stranger / "pictures" / name).mkdir(parents=True, exist_ok=True)
        for number in range(30):
            pixels = np.clip(rng.normal(mean, 40, size=(4, 4, 3)), 0, 255).astype(np.uint8)
            image.fromarray(pixels).save(stranger / "pictures" / name / f"{number}.png")
    loaded = data.read(str(stranger / "pictures"))
    assert loaded.inputs.shape == (60, 3, 4, 4)
    assert 0 <= loaded.inputs.min() < loaded.inputs.max() <= 1
    result = lapwing("fit", "model.py:pictures", "pictures", "--hold-out", 0.5, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    record = records.load(tmp_path / "run")
    assert record.data.classes == ("dark", "light")
    assert record.evaluations[0].images.shape[1:] == (4, 4, 3)


def test_data_sets_from_code(lapwing, stranger, tmp_path):
    (stranger / "sets.py").write_text(
        "import numpy as np\nrng = np.random.default_rng(0)\nx = rng.normal(size=(50, 3)).astype('float32')\n"
        "pair = (x, x.sum(1))\n\ndef later():\n    return pair\n"
    )
    for name in ("pair", "later"):
        found = data.read(f"{stranger / 'sets.py'}:{name}")
        assert found.inputs.shape == (50, 3)
    assert (
        lapwing("fit", "model.py:regression", "sets.py:later", "--hold-out", 0.4, "--out", tmp_path / "run").exit_code
        == 0
    )


def test_parquet_in_and_out(lapwing, stranger, tmp_path):
    import pandas

    for name in ("train", "test"):
        pandas.read_csv(stranger / f"{name}.csv").to_parquet(stranger / f"{name}.parquet")
    result = lapwing(
        "fit",
        "model.py:regression",
        "train.parquet",
        "--weights",
        "regression.pt",
        "--test",
        "test.parquet",
        "--table",
        "parquet",
        "--out",
        tmp_path / "run",
    )
    assert result.exit_code == 0, result.stderr
    found = pandas.read_parquet(tmp_path / "run" / "predictions.parquet")
    assert list(found.columns)[:2] == ["mean", "std"]
    assert len(found) == 80


def test_a_network_that_interpolates_gets_error_bars(lapwing, stranger, tmp_path):
    (stranger / "sure.py").write_text(
        "from torch import nn\n\ndef make():\n    model = nn.Linear(3, 2)\n    model.weight.data[:] = 0\n    model.weight.data[1, 0] = 900\n    model.bias.data[:] = 0\n    return model\n"
    )
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(stranger / "sure.npz", x=x, y=(x[:, 0] > 0).astype(int))
    result = lapwing("fit", "sure.py:make", "sure.npz", "--out", tmp_path / "run")
    assert result.exit_code == 0
    record = records.load(tmp_path / "run")
    assert record.solve.tuned_by == "tuned by marginal likelihood"
    assert 0 < record.solve.effective_dimension.value < 8


def test_softened_logits_are_softmax_at_a_temperature():
    logits = np.random.default_rng(0).normal(size=(5, 3)) * 300
    expected = (torch.from_numpy(logits) / 2.5).softmax(1)
    assert np.allclose(recording.softened(logits, 2.5), expected)
    one = recording.softened(logits[:, :1], 2.5)
    assert np.allclose(one[:, 1], (torch.from_numpy(logits[:, 0]) / 2.5).sigmoid())
