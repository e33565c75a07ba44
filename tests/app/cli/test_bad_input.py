"""What a stranger may get wrong: one line that says what to do, no traceback, nothing executed."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lapwing.app import records, report

FIT = ("fit", "model.py:regression", "train.csv", "--weights", "regression.pt")


def complaint(result):
    """The one line of standard error of a command that failed."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("lapwing: ")
    assert "Traceback" not in result.output
    return line


MODELS = {
    "nothing.py:make": "there is no such file",
    "model.py:nothing": "has no 'nothing'",
    "no_such_module:make": "there is no module 'no_such_module'",
    "model.py": "expected package.module:name",
    "train.csv": "for a table without a network there is `lapwing fit table.csv --target NAME`",
    "model.py:wrong": "returned a int",
    "model.py:number": "is a int",
    "model.py:breaks": "RuntimeError: no such luck",
    "broken.py:make": "line 1 does not import: SyntaxError",
    "raises.py:make": "does not import: NameError",
    "needs.py:make": "No module named 'not_installed'",
    "model.py:pictures": "cannot take inputs of 3",
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_cannot_be_had(lapwing, stranger, tmp_path, model):
    (stranger / "broken.py").write_text("def make(:\n")
    (stranger / "raises.py").write_text("make = undefined\n")
    (stranger / "needs.py").write_text("import not_installed\n\nmake = not_installed.make\n")
    assert MODELS[model] in complaint(lapwing("fit", model, "train.csv", "--out", tmp_path / "run"))


SOURCES = {
    "model.py:regresion": "it has regression, classifier, binary, pictures, wrong, breaks; is it 'regression'?",
    "nothing.py:make": "there is no such file",
    "no_such_module:make": "there is no module 'no_such_module'",
}


def test_a_name_that_is_not_there_is_refused_without_running_or_importing_anything(stranger, tmp_path):
    """One fresh process for all names: what the first imports would be there for the others to be blamed for."""
    code = f"""
import sys
from lapwing.app.cli import main
for model in {list(SOURCES)}:
    sys.argv = ["lapwing", "fit", model, "train.csv", "--out", {str(tmp_path / "run")!r}]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, [name for name in ("torch", "lapwing_user_model") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=stranger)
    assert found.stdout.splitlines() == ["1 []"] * len(SOURCES)
    assert all(message in found.stderr for message in SOURCES.values())
    assert not (tmp_path / "run").exists()


def test_a_name_that_only_running_the_file_makes_is_looked_for(lapwing, stranger, tmp_path):
    (stranger / "starred.py").write_text("from model import *\n")
    assert "has no 'nowhere'" in complaint(lapwing("fit", "starred.py:nowhere", "train.csv", "--out", tmp_path / "a"))
    found = lapwing("fit", "starred.py:regression", "train.csv", "--quiet", "--out", tmp_path / "b")
    assert found.exit_code == 0, found.stderr


def bad_files(folder):
    """Files that look like data and are none."""

    def write(name, content):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    write("empty.csv", "")
    write("header.csv", "a,b,c,height\n")
    write("uneven.csv", "a,b,c,height\n1,2,3,4\n1,2\n")
    write("text.csv", "a,b,c,height\n1,2,3,4\n1,x,3,4\n")
    write("gap.csv", "a,b,c,height\n1,2,3,4\n1,,3,4\n")
    write("nan.csv", "a,b,c,height\n1,2,3,4\n1,nan,3,4\n")
    write("nans.csv", "a,b,c,height\n1,2,3,nan\n1,2,3,4\n1,2,3,nan\n")
    write("unknown.csv", "a,b,c,height\n1,2,3,4.5\n1,2,3,\n")
    write("marked.csv", "a,b,c,height\n1,2,3,4.5\n1,2,3,2.5\n1,2,3,1.5\n1,2,3,N/A\n")
    write("thousands.csv", "a;b;c;height\n1;2;3;4\n1;1,234;3;4\n")
    write("alone.csv", "height\n1\n")
    write("twice.csv", "a,a,c,height\n1,2,3,4\n")
    write("binary.csv", b"\xff\xfe\x00\x01\x80")
    write("not.npz", "this is no archive")
    write("not.parquet", "this is no table")
    write("data.xlsx", "this is no table")
    np.savez(folder / "names.npz", left=np.zeros(3), right=np.zeros(3))
    np.savez(folder / "objects.npz", x=np.array([{}, 1], dtype=object), y=np.zeros(2))
    np.savez(folder / "lengths.npz", x=np.zeros((4, 3)), y=np.zeros(5))
    (folder / "no_images").mkdir(exist_ok=True)
    (folder / "bad_images" / "one").mkdir(parents=True, exist_ok=True)
    write("bad_images/one/a.png", "this is no picture")


FILES = {
    "missing.csv": "there is no such file",
    "empty.csv": "expected a line of column names",
    "header.csv": "at least one row",
    "uneven.csv": "row 1 has 2 values, the header 4 names",
    "text.csv": "column 'b' holds 'x' in row 1, not a number",
    "gap.csv": "column 'b' is empty in row 1, counted from 0: fill it in",
    "unknown.csv": "the target 'height' is empty in row 1, counted from 0",
    "marked.csv": "most targets are numbers, but 'N/A' is not",
    "thousands.csv": "column 'b' holds '1,234' in row 1, not a number",
    "alone.csv": "there is no column but the target 'height'",
    "nan.csv": "inputs are NaN or infinite in row 1:",
    "nans.csv": "targets are NaN or infinite in 2 rows (0, 2):",
    "twice.csv": "same name",
    "binary.csv": "not a text table",
    "not.npz": "not a file of plain arrays",
    "not.parquet": "Parquet",
    "data.xlsx": "files of type '.xlsx' cannot be read",
    "names.npz": "name them x and y",
    "objects.npz": "not a file of plain arrays",
    "lengths.npz": "4 inputs and 5 targets",
    "no_images": "expected one folder per class",
    "bad_images": "not an image",
    "model.py:number": "cannot read data of type int",
    "gone": "there is no such file",
}


@pytest.mark.parametrize("name", FILES)
def test_data_that_cannot_be_read(lapwing, stranger, tmp_path, name):
    bad_files(stranger)
    assert FILES[name] in complaint(lapwing("fit", "model.py:regression", name, "--out", tmp_path / "run"))


def test_a_network_without_data_is_told_from_a_table_without_a_network(lapwing, stranger):
    line = complaint(lapwing("fit", "model.py:regression"))
    assert "'model.py:regression' alone: expected a network and the data" in line
    assert "`lapwing fit table.csv --target NAME`" in line


def test_missing_columns_are_named(lapwing, stranger, tmp_path):
    line = complaint(lapwing(*FIT, "--target", "width", "--out", tmp_path / "run"))
    assert "there is no column 'width'; its columns are 'a', 'b', 'c', 'height'" in line
    assert complaint(lapwing(*FIT, "--target", "heigth", "--out", tmp_path / "run")).endswith("; is it 'height'?")
    line = complaint(lapwing(*FIT, "--inputs", "a,b,z", "--out", tmp_path / "run"))
    assert "columns 'z' are missing" in line
    (stranger / "less.csv").write_text("a,b,height\n1,2,3\n")
    assert "columns 'c' are missing" in complaint(lapwing(*FIT, "--test", "less.csv", "--out", tmp_path / "run"))


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


WEIGHTS = {
    "none.pt": "there is no such file of weights",
    "whole.pt": "holds more than weights",
    "bomb.pt": "holds more than weights",
    "classifier.pt": "size mismatch",
    "other.pt": "does not fit this network: it lacks 0.weight",
    "list.pt": "expected a state dict",
    "text.safetensors": "not a file of weights",
    "text.pt": "not a file of weights|holds more than weights",
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_cannot_be_had(lapwing, stranger, tmp_path, name):
    import re

    torch.save(torch.optim.Adam, stranger / "whole.pt")
    (stranger / "bomb.pt").write_bytes(pickle.dumps(Bomb()))
    torch.save({"elsewhere": torch.zeros(2)}, stranger / "other.pt")
    torch.save([1, 2], stranger / "list.pt")
    for text in ("text.safetensors", "text.pt"):
        (stranger / text).write_text("these are no weights")
    line = complaint(lapwing("fit", "model.py:regression", "train.csv", "--weights", name, "--out", tmp_path / "run"))
    assert re.search(WEIGHTS[name], line)
    assert not (stranger / "exploded").exists()


def test_wrong_options_are_said(lapwing, tmp_path):
    out = ("--out", tmp_path / "run")
    assert "unknown likelihood 'cauchy'" in complaint(lapwing(*FIT, "--likelihood", "cauchy", *out))
    assert "between 0 and 0.9" in complaint(lapwing(*FIT, "--hold-out", 1.5, *out))
    assert "csv or parquet" in complaint(lapwing(*FIT, "--table", "xlsx", *out))
    assert "device 'abacus' cannot be used" in complaint(lapwing(*FIT, "--device", "abacus", *out))
    assert lapwing("fit", "--nonsense").exit_code == 2


def test_output_that_cannot_be_written_is_said_before_any_work(lapwing, tmp_path):
    (tmp_path / "file").write_text("")
    started = time.perf_counter()
    assert "cannot be written" in complaint(lapwing(*FIT, "--out", tmp_path / "file" / "run"))
    assert time.perf_counter() - started < 30
    records.save(records.Record("a", "regression"), tmp_path / "run")
    assert complaint(lapwing("report", tmp_path / "run", "--out", tmp_path / "file" / "page.html"))


def test_a_failed_run_leaves_a_record_and_a_page(lapwing, stranger, tmp_path):
    (stranger / "constant.csv").write_text("a,b,c,height\n" + "1,2,3,0\n" * 20)
    (stranger / "nan.py").write_text(
        "import torch\nfrom torch import nn\n\ndef make():\n    model = nn.Linear(3, 1)\n    model.weight.data[:] = torch.nan\n    return model\n"
    )
    line = complaint(lapwing("fit", "nan.py:make", "train.csv", "--out", tmp_path / "run"))
    assert "NaN" in line
    record = records.load(tmp_path / "run")
    assert record.status == "failed"
    assert record.error in line
    result = lapwing("report", tmp_path / "run")
    assert result.exit_code == 0
    assert "This run failed" in result.stdout
    assert "This run failed" in (tmp_path / "run" / "report.html").read_text()


def test_a_failed_fit_leaves_the_run_before_it_alone(lapwing, tmp_path):
    assert lapwing(*FIT, "--quiet", "--out", tmp_path / "run").exit_code == 0
    before = records.load(tmp_path / "run")
    complaint(lapwing(*FIT, "--target", "width", "--out", tmp_path / "run"))
    assert records.load(tmp_path / "run").status == before.status != "failed"


def test_one_hot_labels_are_said(lapwing, stranger, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(stranger / "one_hot.npz", x=rng.normal(size=(9, 3)), y=np.eye(4)[rng.integers(4, size=9)])
    line = complaint(lapwing("fit", "model.py:classifier", "one_hot.npz", "--out", tmp_path / "run"))
    assert "targets are one-hot: give class numbers" in line


def test_a_network_without_its_weights_is_said(lapwing, stranger, tmp_path):
    rng = np.random.default_rng(1)
    np.savez(stranger / "far.npz", x=rng.normal(size=(40, 3)), y=100 + rng.normal(size=40))
    run = ("fit", "model.py:regression", "far.npz", "--test", "far.npz", "--prior", "isotropic", "--quiet")
    words = lapwing(*run, "--out", tmp_path / "run").stdout
    assert "predictions are worse than a constant" in words
    assert "Recommendation: Find out why" in words
    assert "weights: as model.py:regression made them (no --weights were given)" in words
    assert "prior: isotropic, one precision (as asked)" in words


def test_records_of_other_versions_and_other_files_are_refused(lapwing, tmp_path):
    path = records.save(records.Record("a", "regression"), tmp_path / "run")
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"format": 7}))
    assert "newer lapwing (format 7" in complaint(lapwing("report", tmp_path / "run"))
    path.write_text("{}")
    assert "not a lapwing record" in complaint(lapwing("report", path))
    assert "there is no record here" in complaint(lapwing("report", tmp_path))
    assert "not a run folder" in complaint(lapwing("predict", tmp_path, "new.csv"))


def test_a_header_that_is_a_script_does_not_run(lapwing, stranger, tmp_path):
    evil = "<script>window.hacked=1</script>"
    rows = (stranger / "train.csv").read_text().splitlines()
    (stranger / "evil.csv").write_text("\n".join([f"a,b,c,{evil}", *rows[1:]]))
    result = lapwing(
        "fit",
        "model.py:regression",
        "evil.csv",
        "--weights",
        "regression.pt",
        "--hold-out",
        0.3,
        "--name",
        evil,
        "--out",
        tmp_path / "run",
    )
    assert result.exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert evil not in page
    assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in page
    assert report.page([records.load(tmp_path / "run")]) == page


def test_a_traceback_is_shown_only_on_request(lapwing, tmp_path):
    result = lapwing("fit", "model.py:breaks", "train.csv", "--out", tmp_path / "run", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "no such luck" in result.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['lapwing', '--help']\nfrom lapwing.app.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'rich.progress') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip().endswith("[]")
    assert "lapwing fit model.py:make train.csv" in " ".join(found.split())


def test_interrupting_is_an_exit_code(lapwing, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lapwing.app.cli.fitting.fit", interrupted)
    result = lapwing(*FIT, "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert result.stderr == "lapwing: interrupted\n"
    monkeypatch.setattr("lapwing.app.cli.fitting.fit", lambda *_: 1 / 0)
    result = lapwing(*FIT, "--out", Path(tmp_path) / "run")
    assert result.exit_code == 3
    assert "unexpected ZeroDivisionError" in result.stderr
