"""BayesianMLPClassifier as an estimator among others, its figures against dense formulas, and hard tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor, classifier, estimators, variational
from lapwing.tabular.classes import POINTS, ClassNetworks
from lapwing.tabular.columns import Table
from lapwing.tabular.labels import Labels, Softmax, root_of
from lapwing.tabular.variational import Priors, begin, train
from tests.tabular import reference

SMALL = {"hidden_units": 4, "members": 2, "max_iter": 20}
RANDOM = np.random.default_rng(5)
UNITS = [1.0, 20.0, 0.1, 3.0]
X = RANDOM.normal(size=(90, 4)) * UNITS + [0.0, 100.0, -2.0, 5.0]
Z = (X - X.mean(0)) / X.std(0)
NUMBERS = np.digitize(Z[:, 0] + 0.5 * np.sin(2 * Z[:, 1]) + 0.3 * RANDOM.normal(size=90), [-0.7, 0.7])
NAMES = np.array(["low", "middle", "top"])[NUMBERS]
NEW = RANDOM.normal(size=(9, 4)) * UNITS + [0.0, 100.0, -2.0, 5.0]


@pytest.fixture(scope="module")
def fitted():
    return BayesianMLPClassifier(**SMALL).fit(X, NAMES)


@pytest.mark.parametrize(
    "check", [pytest.param((estimator, check), id=check.func.__name__) for estimator, check in
              estimator_checks_generator(BayesianMLPClassifier(hidden_units=3, members=2, max_iter=10))
              if check.func.__name__ != "check_array_api_input"]
)  # fmt: skip
def test_scikit_learns_own_checks(check):
    """All but array-API input, which is checked for estimators that claim it."""
    estimator, test = check
    test(estimator)


@pytest.mark.parametrize("hidden", [3, 60], ids=["by weights", "by rows"])
def test_probabilities_are_those_of_the_dense_posterior(hidden):
    """The softmax over N(f(x), J Σ Jᵀ), averaged by the same points, with equal weights of the members."""
    model = BayesianMLPClassifier(**SMALL | {"hidden_units": hidden}).fit(X, NAMES)
    found = model._networks
    x, new = (torch.from_numpy((part - model._encoding.mean) / model._encoding.scale) for part in (X, NEW))
    shapes = [tuple(layer.shape[1:]) for layer in found.networks.of]
    softmax = Softmax.of(3, 256, seed=1)
    each = []
    for member, weights in enumerate(found.networks.flat()):
        layers = zip(found.known.variances, shapes, strict=True)
        prior = torch.cat([(1 / v[member])[None].expand(*shape).flatten() for v, shape in layers])
        J = reference.jacobian(weights, shapes, x).reshape(90, 2, -1)
        B = curvatures(model, member)
        covariance = torch.linalg.inv(prior.diag() + torch.einsum("nkp,nkl,nlq->pq", J, B, J))
        asked = reference.jacobian(weights, shapes, new).reshape(9, 2, -1)
        root = root_of(asked @ covariance @ asked.mT)
        logits = (reference.output(weights, shapes, new)[:, None] + softmax.points @ root.mT) @ softmax.contrasts.mT
        each.append(logits.softmax(2).mean(1))
    np.testing.assert_allclose(model.predict_proba(NEW), torch.stack(each).mean(0), rtol=1e-5, atol=1e-7)


def curvatures(model, member):
    """Of the training rows, from the posterior that the estimator keeps: RᵀR is all that it knows of them."""
    known = model._networks.known
    if hasattr(known, "rows"):
        rows = known.rows.of(torch.tensor([member]))
        left = rows.left[1][0].reshape(90, 2, 2)  # of the last layer, whose own slopes are one
        return left.mT @ left
    trained = []
    before = classifier.ClassNetworks.of

    def spy(state, data, priors):
        trained.append((state, data))
        return before(state, data, priors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier.ClassNetworks, "of", staticmethod(spy))
        clone(model).fit(X, NAMES)
    state, data = trained[0]
    values = torch.stack(
        [
            reference.output(w, [tuple(p.shape[1:]) for p in state.networks.of], data.inputs)
            for w in state.networks.flat()
        ]
    )
    return data.averages(values, state.roots).curvature[member]


def test_labels_of_any_kind():
    numbers = BayesianMLPClassifier(**SMALL).fit(X, NUMBERS)
    for labels in (
        NAMES,
        NAMES.astype(object),
        NUMBERS * 10 - 3,
        NUMBERS.astype(float),
        pd.Series(NAMES, dtype="category"),
    ):
        model = BayesianMLPClassifier(**SMALL).fit(X, labels)
        assert (model.predict_proba(NEW) == numbers.predict_proba(NEW)).all()
        assert set(model.predict(NEW)) <= set(labels)
    two = BayesianMLPClassifier(**SMALL).fit(X, NUMBERS > 0)
    assert two.classes_.tolist() == [False, True]
    assert two.predict(NEW).dtype == bool


def test_probabilities_predictions_and_scores_agree(fitted):
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    assert (fitted.predict(X) == fitted.classes_[probabilities.argmax(1)]).all()
    np.testing.assert_allclose(fitted.predict_log_proba(X), np.log(probabilities))
    assert fitted.score(X, NAMES) == np.mean(fitted.predict(X) == NAMES)
    assert fitted.score(X, NAMES) > 0.8


def test_the_bound_is_a_mean_over_members(fitted):
    assert fitted.log_evidences_.shape == (2,)
    assert fitted.log_evidence_ == fitted.log_evidences_.mean()
    assert -90 * np.log(3) < fitted.log_evidence_ < 0


def test_a_column_without_use_has_little_relevance():
    model = BayesianMLPClassifier(hidden_units=6, members=2, max_iter=40).fit(X[:, :3], Z[:, 0] + Z[:, 1] > 0)
    assert model.relevance_.sum() == pytest.approx(1)
    assert model.relevance_[2] < 0.1


@pytest.mark.parametrize("labels", [NAMES, NUMBERS > 0], ids=["three classes", "two"])
def test_each_row_is_predicted_as_by_the_others(monkeypatch, labels):
    """Refits without a row at the same precisions, which linearise anew, move little further."""
    model = BayesianMLPClassifier(hidden_units=3, members=1, max_iter=40).fit(X, labels)
    found = model.leave_one_out_
    assert found.probabilities.shape == (90, len(model.classes_))
    numbers = np.searchsorted(model.classes_, labels)
    own = np.log(model.predict_proba(X)[np.arange(90), numbers])
    assert found.log_probability.mean() < own.mean()
    rows = np.argsort(found.log_probability - own)[:8]  # those that say most about themselves
    monkeypatch.setattr(variational, "tuned", lambda state, known, priors: state)  # precisions stay
    refitted = [refitted_without(model, row, numbers) for row in rows]
    error = np.abs(found.log_probability[rows] - refitted)
    assert np.mean(error) < 0.5 * np.mean(np.abs(own[rows] - refitted))


def refitted_without(model, row, numbers):
    """The log probability of a row's label, by networks that were trained on with the others."""
    classes = len(model.classes_)
    inputs = torch.from_numpy(model._encoding.inputs(Table.of_numbers(X)))
    data = Labels(
        inputs, torch.from_numpy(numbers), torch.ones(90).double(), Softmax.of(classes, max(POINTS, 4 * classes))
    )
    others = data.part(torch.arange(90) != row)
    fitted = model._networks
    priors = Priors.of(torch.arange(4), (4, 3, classes - 1), model._lent())
    begun = begin(fitted.networks, others, priors, torch.ones(1).double())
    state = replace(begun, precision=fitted.precision)
    trained = train(state, others, priors, max_iter=200, tol=1e-4, report=lambda phase: None, first_look=0)
    again, _ = ClassNetworks.of(trained.state, others, priors)
    return float(again.predict(inputs[[row]])[0, 0, numbers[row]].log())


def test_random_states_repeat_bits(fitted):
    again = BayesianMLPClassifier(**SMALL).fit(X, NAMES)
    assert (again.predict_proba(NEW) == fitted.predict_proba(NEW)).all()
    other = BayesianMLPClassifier(**SMALL, random_state=1).fit(X, NAMES)
    assert (other.predict_proba(NEW) != fitted.predict_proba(NEW)).any()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    BayesianMLPClassifier(**SMALL | {"max_iter": 2}, random_state=None).fit(X, NAMES)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_weights_count_rows():
    times = np.tile([1, 2, 0], 30)
    weighted = BayesianMLPClassifier(**SMALL).fit(X, NAMES, sample_weight=times)
    repeated = BayesianMLPClassifier(**SMALL).fit(np.repeat(X, times, axis=0), np.repeat(NAMES, times))
    np.testing.assert_allclose(weighted.predict_proba(NEW), repeated.predict_proba(NEW), rtol=1e-4, atol=1e-6)


def test_frames_with_names_categories_and_gaps():
    kinds = np.array(["a", "b", "c"])[np.arange(90) % 3]
    frame = pd.DataFrame({"size": X[:, 0], "kind": kinds, "weight": X[:, 1]})
    frame.loc[::9, "weight"] = np.nan
    model = BayesianMLPClassifier(**SMALL).fit(frame, np.where(kinds == "c", "yes", "no"))
    assert model.feature_names_in_.tolist() == ["size", "kind", "weight"]
    assert model.relevance_.argmax() == 1
    assert model.predict(frame.iloc[:3]).tolist() == ["no", "no", "yes"]
    with pytest.raises(ValueError, match="categorical columns and got ndarray"):
        model.predict(frame.to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"size": "length"}))


def test_pipelines_grids_and_clones():
    model = BayesianMLPClassifier(**SMALL | {"max_iter": 8})
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {"bayesianmlpclassifier__hidden_units": [2, 5]},
        cv=2,
        scoring="neg_log_loss",
    )
    assert search.fit(X, NAMES).best_score_ > -0.8
    assert cross_val_score(clone(model), X, NAMES, cv=2).shape == (2,)


def test_max_iter_keeps_what_there_is():
    short = BayesianMLPClassifier(**SMALL | {"max_iter": 2}).fit(X, NAMES)
    assert short.n_iter_ == 2
    assert not short.converged_
    assert np.isfinite(short.predict_proba(NEW)).all()


def test_an_interrupt_keeps_what_there_is(monkeypatch):
    def impatient(phase: str) -> None:
        if phase.startswith("iteration 3"):
            raise KeyboardInterrupt

    monkeypatch.setattr(classifier, "reporter", lambda progress: impatient)
    stopped = BayesianMLPClassifier(**SMALL).fit(X, NAMES)
    assert stopped.n_iter_ == 3
    assert not stopped.converged_
    monkeypatch.setattr(classifier, "MANY_ROWS", 60)  # in the first part
    monkeypatch.setattr(classifier, "PART_ROWS", 50)
    assert BayesianMLPClassifier(**SMALL).fit(X, NAMES).n_iter_ == 3


def test_progress_is_shown_when_asked_for(capsys):
    BayesianMLPClassifier(**SMALL | {"max_iter": 2}, verbose=True).fit(X, NAMES)
    assert "iteration 1 of at most 2" in capsys.readouterr().err


def test_many_rows_begin_with_a_part(monkeypatch, fitted):
    monkeypatch.setattr(classifier, "MANY_ROWS", 60)
    monkeypatch.setattr(classifier, "PART_ROWS", 50)
    begun = BayesianMLPClassifier(**SMALL).fit(X, NAMES)
    assert begun.n_iter_ == SMALL["max_iter"] + classifier.FURTHER_STEPS
    assert begun.leave_one_out_.probabilities.shape == (90, 3)
    assert begun.log_evidence_ == pytest.approx(fitted.log_evidence_, abs=15)


@pytest.mark.parametrize("hidden", [3, 60], ids=["by weights", "by rows"])
@pytest.mark.parametrize(
    "labels",
    [NAMES, NUMBERS - 1, NUMBERS > 0, NAMES.astype(object), NUMBERS * 2.0],
    ids=["text", "integers", "booleans", "objects", "floats"],
)
def test_what_is_loaded_predicts_the_same_bits(tmp_path, hidden, labels):
    model = BayesianMLPClassifier(**SMALL | {"hidden_units": hidden, "max_iter": 6}).fit(X, labels)
    model.save(tmp_path / "model.safetensors")
    again = BayesianMLPClassifier.load(tmp_path / "model.safetensors")
    assert (again.predict_proba(NEW) == model.predict_proba(NEW)).all()
    assert again.classes_.dtype == model.classes_.dtype
    assert (again.predict(NEW) == model.predict(NEW)).all()
    assert again.get_params() == model.get_params()
    for name in ("n_features_in_", "n_iter_", "converged_", "log_evidence_", "relevance_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    with pytest.raises(ValueError, match="holds a BayesianMLPClassifier, load it with that class"):
        BayesianMLPRegressor.load(tmp_path / "model.safetensors")


def test_the_prior_with_the_higher_bound_is_trained_on(monkeypatch):
    seen = []

    def recorded(*arguments, **settings):
        seen.append(train(*arguments, **settings))
        return seen[-1]

    monkeypatch.setattr(classifier, "train", recorded)
    monkeypatch.setattr(classifier, "CHOOSING_STEPS", 9)  # the last of which looks at the bound
    model = BayesianMLPClassifier(hidden_units=4, members=3, max_iter=9).fit(X, NAMES)
    narrow, wide = seen[0].state.log_evidence.reshape(2, 3)
    assert ((narrow - wide).abs() > 0.1).all()
    better = torch.arange(3) + torch.where(narrow > wide, 0, 3)
    torch.testing.assert_close(model._networks.networks.flat(), seen[0].state.networks.flat()[better], rtol=0, atol=0)


def test_networks_do_not_stay_linear():
    """On half-moons a line is right for 87 % of the rows."""
    random = np.random.default_rng(0)
    side = random.integers(2, size=150)
    angle = random.uniform(0, np.pi, 150) + np.pi * side
    moons = np.stack([np.cos(angle) + side, np.sin(angle) + side / 2], axis=1) + 0.1 * random.normal(size=(150, 2))
    model = BayesianMLPClassifier(hidden_units=10, members=2, max_iter=40).fit(moons, side)
    assert model.score(moons, side) > 0.97


# hard tables: a clear error or a right answer


def test_constant_columns_and_duplicates():
    doubled = np.tile(np.concatenate([X, X, np.full((90, 2), 7.0)], axis=1), (2, 1))
    model = BayesianMLPClassifier(**SMALL).fit(doubled, np.tile(NAMES, 2))
    assert model.score(doubled, np.tile(NAMES, 2)) > 0.8
    assert model.relevance_[8:].max() < 0.02


def test_more_columns_than_rows():
    wide = np.random.default_rng(1).normal(size=(24, 70))
    labels = wide[:, 0] > 0
    probabilities = BayesianMLPClassifier(**SMALL).fit(wide, labels).predict_proba(wide + 0.3)
    assert np.isfinite(probabilities).all()
    assert probabilities.max() < 0.9999  # not sure of what 24 rows cannot say


def test_rare_classes():
    """One row of a class is enough for it to be known, and too little to be sure of it."""
    labels = NAMES.copy()
    labels[17] = "single"
    model = BayesianMLPClassifier(**SMALL).fit(X, labels)
    assert model.classes_.tolist() == ["low", "middle", "single", "top"]
    share = model.predict_proba(X)[:, 2]
    assert 0 < share.mean() < 0.1


def test_separable_classes_are_not_certain_everywhere():
    labels = Z[:, 0] > 0
    probabilities = BayesianMLPClassifier(**SMALL).fit(X, labels).predict_proba(X)
    assert (probabilities.argmax(1) == labels).mean() > 0.97
    assert 0.5 < probabilities.max(1).min() < 0.95


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:1], NAMES[:1], "minimum of 2 is required"),
        (X, np.full(90, "same"), "one class only, .*same.*at least two"),
        (X, NAMES[:5], "inconsistent numbers of samples"),
        (np.where(X > 100, np.inf, X), NAMES, "infinity"),
        (X, np.where(Z[:, 0] > 1, np.nan, NUMBERS), r"of 90 labels in y are missing"),
        (X, np.where(Z[:, 0] > 1, None, NAMES), r"of 90 labels in y are missing"),
        (X, Z[:, 0], "Unknown label type: continuous"),
        (
            np.tile(X, (3, 1)),
            np.arange(270) % 130,
            "y has 130 different values in 270 rows, and at most 100 classes.*Regressor",
        ),
        (np.full((90, 2), "three"), NAMES, "could not convert|Unable to convert"),
        (np.zeros((200_001, 2)), np.arange(200_001) % 2, "200,001 rows.*at most 200,000"),
        (pd.DataFrame({"a": ["x"]}), ["yes"], "at least two rows"),
    ],
    ids=[
        "one row",
        "one class",
        "lengths",
        "infinity",
        "missing numbers",
        "missing names",
        "continuous",
        "too many classes",
        "text",
        "too many rows",
        "one row of a frame",
    ],
)
def test_what_cannot_be_fitted_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        BayesianMLPClassifier(**SMALL).fit(x, y)


def test_too_little_memory_is_said_before_the_work(monkeypatch):
    monkeypatch.setattr(estimators, "available_bytes", lambda: 1e3)
    with pytest.raises(ValueError, match=r"2 networks of 30 weights on 90 rows need about .* GB.*hidden_units"):
        BayesianMLPClassifier(**SMALL).fit(X, NAMES)


def test_many_rows_need_memory_of_their_own(monkeypatch):
    """317 kB, of which the matrices of the weights are 58."""
    monkeypatch.setattr(estimators, "available_bytes", lambda: 2e5)
    with pytest.raises(ValueError, match=r"2 networks of 30 weights on 90 rows need about .* GB.*or rows"):
        BayesianMLPClassifier(**SMALL).fit(X, NAMES)
    monkeypatch.setattr(estimators, "available_bytes", lambda: 4e5)
    BayesianMLPClassifier(**SMALL | {"max_iter": 1}).fit(X, NAMES)


def test_an_error_leaves_the_estimator_as_it_was():
    model = BayesianMLPClassifier(**SMALL | {"max_iter": 3}).fit(X, NAMES)
    before = model.predict_proba(NEW)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(X > 100, np.inf, X), NAMES)
    assert (model.predict_proba(NEW) == before).all()
