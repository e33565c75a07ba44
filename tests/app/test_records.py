"""A record comes back as it was, and nothing but a record is read."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapwing.app import records


def example() -> records.Record:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), size=30)
    images = rng.normal(size=(30, 1, 5, 7))
    test = records.classification(
        "test", rng.integers(4, size=30), {"lapwing": probs, "MAP": probs}, scores={"lapwing": {"novelty": rng.random(30)}}, images=images,
    )  # fmt: skip
    curve = records.Curve(np.logspace(-2, 2, 9), 1.0, log_evidence=np.linspace(0, 1, 9), held_out=np.full(9, -np.inf))
    return records.Record(
        "digits <b>", "classification", (test,), seed=3, curve=curve,
        data=records.Data("x.npz", "ab", {"train": 10}, classes=("ü", "b", "c", "d")),
        choices=(records.Choice("likelihood", "Categorical", "whole numbers"),),
        solve=records.Solve(error_bound=float("inf"), log_evidence=records.Measured(-3.0, 0.5), residuals=np.ones(3)),
        layers=(records.Layer("fc", 12, 0.5),), influence=records.Influence(np.ones(10)), seconds={"fit": 1.5},
    )  # fmt: skip


def same(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, item.name), getattr(other, item.name)) for item in dataclasses.fields(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def test_a_record_comes_back_as_it_was(tmp_path):
    written = example()
    path = records.save(written, tmp_path / "new" / "run")
    assert same(written, records.load(path))
    assert same(written, records.load(path.parent))
    assert not same(written, dataclasses.replace(written, seed=4))


def test_writing_again_leaves_one_whole_record(tmp_path):
    records.save(example(), tmp_path)
    records.save(dataclasses.replace(example(), curve=None), tmp_path)
    assert records.load(tmp_path).curve is None
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_record(tmp_path, monkeypatch, call):
    records.save(example(), tmp_path)
    calls = []

    def fails(*arguments):
        calls.append(arguments)
        if len(calls) == 2:  # the arrays are there, the JSON is not
            raise OSError("disk full")
        return original(*arguments)

    original = getattr(os, call)
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="disk full"):
        records.save(dataclasses.replace(example(), name="second", curve=None), tmp_path)
    monkeypatch.undo()
    assert records.load(tmp_path).name == "digits <b>"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def changed(folder, **changes):
    path = records.save(example(), folder)
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "newer lapwing"),
        ({"format": 0}, "too old"),
        ({"format": "1"}, "no format number"),
        ({"task": "clustering"}, "one of"),
        ({"seed": "3"}, "a whole number"),
        ({"seed": True}, "a whole number"),
        ({"name": None}, "text"),
        ({"layers": {}}, "a list"),
        ({"layers": [{"name": "a"}]}, "missing"),
        ({"surprise": 1}, "unknown fields"),
        ({"arrays": "../../etc/passwd.npz"}, "not the name of a file"),
        ({"arrays": "arrays-none.npz"}, "missing"),
        ({"sha256": "00"}, "damaged"),
        ({"curve": {"precision": {"array": "nowhere"}, "chosen": 1.0}}, "the name of a stored array"),
        ({"seconds": {"fit": "soon"}}, "a number"),
    ],
)
def test_what_is_not_a_record_is_refused_with_a_reason(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        records.load(changed(tmp_path, **changes))
    assert "record.json" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"[" * 100_000])
def test_files_that_are_not_json_are_refused(tmp_path, content):
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(ValueError, match="not a lapwing record"):
        records.load(tmp_path)


def test_an_absent_record_is_said_so(tmp_path):
    with pytest.raises(ValueError, match="there is no record here"):
        records.load(tmp_path)


def replace_arrays(folder, content):
    path = records.save(example(), folder)
    body = json.loads(path.read_text())
    (folder / body["arrays"]).write_bytes(content)
    body["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(body))


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_pickles_are_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(
            "a.npy",
            b"\x93NUMPY\x01\x00v\x00"
            + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117)
            + b"\n"
            + pickle.dumps(Bomb()),
        )
    replace_arrays(tmp_path, buffer.getvalue())
    with pytest.raises(ValueError, match="record.json"):
        records.load(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_truncated_archive_and_a_zip_bomb_are_refused(tmp_path, monkeypatch):
    path = records.save(example(), tmp_path)
    whole = next(tmp_path.glob("arrays-*.npz")).read_bytes()
    replace_arrays(tmp_path, whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read"):
        records.load(path)
    replace_arrays(tmp_path, whole)
    monkeypatch.setattr("lapwing.app.records.files.LARGEST", 100)
    with pytest.raises(ValueError, match="more than the 0.00 GB that may be used"):
        records.load(path)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_is_a_clear_error_or_harmless(tmp_path_factory, place, value):
    folder = tmp_path_factory.mktemp("run")
    path = records.save(example(), folder)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    with contextlib.suppress(ValueError):  # nothing else may come out
        assert isinstance(records.load(folder), records.Record)


@pytest.mark.parametrize(
    ("targets", "probs", "message"),
    [
        ([0, 1], {}, "no method"),
        ([0, 1], {"a": [[0.5, 0.5]]}, "do not fit"),
        ([0, 2], {"a": [[0.5, 0.5], [1, 0]]}, "class numbers"),
        ([0.0, 1.0], {"a": [[0.5, 0.5], [1, 0]]}, "class numbers"),
        ([0, 1], {"a": [[0.5, 0.6], [1, 0]]}, "sum to one"),
        ([0, 1], {"a": [[np.nan, 0.6], [1, 0]]}, "finite"),
        ([0, 1], {"a": [[0.5, 0.5], [1, 0]], "b": [[1, 0, 0], [1, 0, 0]]}, "do not fit"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(targets, probs, message):
    with pytest.raises(ValueError, match=message):
        records.classification("test", targets, probs)


def test_pictures_are_those_of_the_most_and_the_least_certain():
    certainty = np.linspace(0.51, 0.99, 40)
    probs = np.stack([certainty, 1 - certainty], 1)
    found = records.classification("test", None, {"lapwing": probs}, images=np.arange(40 * 6).reshape(40, 2, 3))
    assert found.image_rows.tolist() == [*range(8), *range(32, 40)]
    assert found.images.shape == (16, 2, 3)
    assert found.images.dtype == np.uint8
    assert found.images[-1, -1, -1] == 255
    with pytest.raises(ValueError, match="images of shape"):
        records.classification("test", None, {"lapwing": probs}, images=np.zeros((40, 5)))


def test_regression_targets_are_never_broadcast():
    with pytest.raises(ValueError, match="shapes"):
        records.regression("test", np.zeros(5), {"lapwing": (np.zeros((5, 2)), np.ones((5, 2)))})
    found = records.regression("test", np.zeros(5), {"lapwing": (np.zeros((5, 1)), np.ones(5))})
    assert found.targets.shape == found.method("lapwing").std.shape == (5, 1)


def spoilt(**changes):
    """The example with something changed in its evaluation or in its main method."""
    record = example()
    (test,) = record.evaluations
    own = {key: value for key, value in changes.items() if hasattr(test.predictions[0], key)}
    methods = (dataclasses.replace(test.predictions[0], **own), *test.predictions[1:])
    rest = {key: value for key, value in changes.items() if key not in own}
    return dataclasses.replace(record, evaluations=(dataclasses.replace(test, predictions=methods, **rest),))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda: spoilt(probs=np.ones((30, 4))), "sum to one"),
        (lambda: spoilt(probs=np.ones((29, 4)) / 4), "as many predictions of every method"),
        (lambda: spoilt(probs=np.full((30, 4), np.nan)), "finite predictions"),
        (lambda: spoilt(probs=np.ones(30)), "expected probabilities"),
        (lambda: spoilt(probs=None), "expected probabilities"),
        (lambda: spoilt(scores={"novelty": np.ones(3)}), r"numbers of shape \(30,\)"),
        (lambda: spoilt(targets=np.full(30, 4)), "class numbers from 0 to 3"),
        (lambda: spoilt(targets=np.zeros((30, 1), int)), r"targets: expected numbers of shape \(30,\)"),
        (lambda: spoilt(images=np.zeros((3, 2, 2), np.uint8)), "with the row of each"),
        (lambda: spoilt(image_rows=np.arange(16) + 20), "with the row of each"),
        (lambda: spoilt(inputs=np.array(["a"] * 30)), "inputs: expected numbers"),
        (lambda: dataclasses.replace(example(), task="regression"), "expected means"),
        (lambda: dataclasses.replace(example(), curve=records.Curve(np.array([1.0, -1.0]), 1.0)), "positive numbers"),
        (lambda: dataclasses.replace(example(), curve=records.Curve(np.ones(2), 1.0, np.ones(3))), "log_evidence"),
        (lambda: dataclasses.replace(example(), influence=records.Influence(np.ones(2), np.ones(3))), "log_density"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path, monkeypatch, record, message):
    with pytest.raises(ValueError, match=message):
        records.save(record(), tmp_path / "never")
    monkeypatch.setattr("lapwing.app.records.files.check", lambda found: found)
    path = records.save(record(), tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=message) as caught:
        records.load(path)
    assert "record.json" in str(caught.value)
