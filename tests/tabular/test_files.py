"""A saved estimator predicts to the bit what it did, and damaged or foreign files are refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from lapwing.tabular import BayesianMLPRegressor, files

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(50, 3))
Y = X[:, 0] ** 2 + X[:, 1] + 0.1 * RANDOM.normal(size=50)
FEW = {"members": 2, "max_iter": 5}


@pytest.mark.parametrize("hidden", [3, 30], ids=["by weights", "by rows"])
@pytest.mark.parametrize("targets", [Y, np.stack([Y, -Y, Y**2], axis=1)], ids=["one target", "three"])
def test_what_is_loaded_predicts_the_same_bits(tmp_path, hidden, targets):
    model = BayesianMLPRegressor(hidden_units=hidden, **FEW).fit(X, targets)
    model.save(tmp_path / "model.safetensors")
    again = BayesianMLPRegressor.load(tmp_path / "model.safetensors")
    for ours, theirs in zip(again.predict(X[:7], return_std=True), model.predict(X[:7], return_std=True), strict=True):
        assert (ours == theirs).all()
    assert (again.sample_y(X[:7], 3) == model.sample_y(X[:7], 3)).all()
    assert (again.interval(X[:7])[0] == model.interval(X[:7])[0]).all()
    assert again.get_params() == model.get_params()
    for name in ("n_features_in_", "n_iter_", "converged_", "log_evidence_", "noise_std_", "relevance_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))


def test_names_categories_and_gaps_are_kept(tmp_path):
    frame = pd.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > 0, "up", None), "b": X[:, 2]})
    frame.loc[3, "b"] = np.nan
    model = BayesianMLPRegressor(hidden_units=3, **FEW).fit(frame, Y)
    model.save(tmp_path / "model")
    again = BayesianMLPRegressor.load(tmp_path / "model")
    assert (again.predict(frame) == model.predict(frame)).all()
    assert again.feature_names_in_.tolist() == ["a", "kind", "b"]
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"a": "c"}))


def test_a_random_state_that_is_no_number_is_not_kept(tmp_path):
    model = BayesianMLPRegressor(hidden_units=3, random_state=np.random.RandomState(0), **FEW).fit(X, Y)
    model.save(tmp_path / "model")
    assert BayesianMLPRegressor.load(tmp_path / "model").random_state is None


def test_files_that_are_not_ours_are_refused(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(ValueError, match="there is no saved estimator here"):
        BayesianMLPRegressor.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a saved estimator"):
        BayesianMLPRegressor.load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="not a saved estimator"):
        BayesianMLPRegressor.load(path)
    save_file({"a": torch.zeros(2)}, path, metadata={"lapwing": '{"format": 3}'})
    with pytest.raises(ValueError, match="lapwing.load reads saved posteriors"):
        BayesianMLPRegressor.load(path)


def test_damaged_and_later_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "model"
    model = BayesianMLPRegressor(hidden_units=3, **FEW).fit(X, Y)
    model.save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="checksum"):
        BayesianMLPRegressor.load(path)
    monkeypatch.setattr(files, "FORMAT", 2)
    model.save(path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 2, this lapwing reads 1"):
        BayesianMLPRegressor.load(path)


def test_only_what_is_fitted_can_be_saved(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        BayesianMLPRegressor().save(tmp_path / "model")
