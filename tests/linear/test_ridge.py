"""BayesianRidge against scikit-learn's, against dense formulas, and as an estimator among others."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn import linear_model
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from lapwing.linear import BayesianRidge
from lapwing.linear import ridge as module
from tests.problems import linear
from tests.properties import check_covariance

X, Y = load_diabetes(return_X_y=True)
HYPERPRIORS = {"alpha_1": 2.0, "alpha_2": 30.0, "lambda_1": 3.0, "lambda_2": 0.01}
CONVERGED = {"tol": 1e-10, "max_iter": 100_000}


def wide() -> tuple[np.ndarray, np.ndarray]:
    data = linear(25, 1, 40, noise_std=1.0, seed=6)
    return data.features.numpy(), data.targets.numpy()


@pytest.mark.parametrize(
    "check", [pytest.param((estimator, check), id=check.func.__name__) for estimator, check in
              estimator_checks_generator(BayesianRidge()) if check.func.__name__ != "check_array_api_input"]
)  # fmt: skip
def test_scikit_learns_own_checks(check):
    """All but array-API input, which is checked for estimators that claim it."""
    estimator, test = check
    test(estimator)


def without_mean(n: int) -> np.ndarray:
    """An orthonormal basis of the contrasts between n observations: (n − 1, n)."""
    return np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:].T


def skip_where_weights_do_not_count() -> None:
    """Rows of weight two are the same as rows given twice; scikit-learn 1.6 takes their number for that of weight one."""
    twice, weighted = linear_model.BayesianRidge(fit_intercept=False), linear_model.BayesianRidge(fit_intercept=False)
    twice.fit(np.repeat(X, 2, axis=0), np.repeat(Y, 2))
    weighted.fit(X, Y, sample_weight=np.full(len(Y), 2.0))
    if weighted.alpha_ != pytest.approx(twice.alpha_, rel=1e-3):
        pytest.skip("this scikit-learn counts every weighted row as one")


@pytest.mark.parametrize("data", ["diabetes", "wide"])
@pytest.mark.parametrize("hyperpriors", [{}, HYPERPRIORS], ids=["default", "strong"])
@pytest.mark.parametrize("kind", ["intercept", "no intercept", "no intercept, weighted"])
def test_results_are_those_of_scikit_learn(data, hyperpriors, kind):
    """An intercept is the same as fitting the n − 1 contrasts between observations, which scikit-learn is given."""
    if "weighted" in kind:
        skip_where_weights_do_not_count()
    x, y = (X, Y) if data == "diabetes" else wide()
    weights = np.random.default_rng(0).uniform(0.3, 1, len(y)) if "weighted" in kind else None
    contrasts = without_mean(len(y)) if kind == "intercept" else np.eye(len(y))
    ours = BayesianRidge(compute_score=True, fit_intercept=kind == "intercept", **hyperpriors)
    ours.fit(x, y, sample_weight=weights)
    start = {"alpha_init": 1.3 * ours.alpha_, "lambda_init": 0.7 * ours.lambda_}
    theirs = linear_model.BayesianRidge(compute_score=True, fit_intercept=False, **CONVERGED, **hyperpriors, **start)
    theirs.fit(contrasts @ x, contrasts @ y, sample_weight=weights)
    assert ours.alpha_ == pytest.approx(theirs.alpha_, rel=1e-5)
    assert ours.lambda_ == pytest.approx(theirs.lambda_, rel=1e-5)
    assert ours.scores_[-1] == pytest.approx(theirs.scores_[-1], rel=1e-9)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5, atol=1e-6 * np.abs(theirs.coef_).max())
    rows = contrasts @ x if weights is None else np.sqrt(weights)[:, None] * x
    sigma = np.linalg.inv(theirs.alpha_ * rows.T @ rows + theirs.lambda_ * np.eye(x.shape[1]))
    np.testing.assert_allclose(ours.sigma_, sigma, rtol=1e-4, atol=1e-5 * np.abs(sigma).max())
    offset = x.mean(0) if kind == "intercept" else np.zeros(x.shape[1])
    mean, std = ours.predict(x[:7], return_std=True)
    their_mean = theirs.predict(x[:7] - offset)
    their_std = (np.einsum("ij,jk,ik->i", x[:7] - offset, sigma, x[:7] - offset) + 1 / theirs.alpha_) ** 0.5
    np.testing.assert_allclose(std, their_std, rtol=1e-5)
    np.testing.assert_allclose(mean - (y.mean() if kind == "intercept" else 0), their_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.X_offset_, offset, rtol=1e-12, atol=1e-16)


def test_results_with_an_intercept_are_within_one_observation_of_scikit_learn():
    ours, theirs = BayesianRidge().fit(X, Y), linear_model.BayesianRidge(**CONVERGED).fit(X, Y)
    assert ours.alpha_ == pytest.approx(theirs.alpha_ * 432 / 433, rel=1e-3)
    assert ours.lambda_ == pytest.approx(theirs.lambda_, rel=1 / 433)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-9)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=np.abs(theirs.coef_).max() / 433)


def test_more_columns_than_rows_do_not_look_free_of_noise():
    """The noise is 1. Counting the intercept's observation drives scikit-learn's estimate to its hyperprior."""
    x, y = wide()
    assert linear_model.BayesianRidge(**CONVERGED).fit(x, y).alpha_ > 1e5
    assert 0.3 < BayesianRidge().fit(x, y).alpha_ ** -0.5 < 1.5


def test_of_two_optima_the_better_one_is_found():
    """Under this strong hyperprior scikit-learn's iteration ends 114 nats lower, unless it is started near ours."""
    strong = {**HYPERPRIORS, "lambda_2": 5.0, "compute_score": True}
    ours = BayesianRidge(**strong).fit(X, Y)
    theirs = linear_model.BayesianRidge(**strong, **CONVERGED).fit(X, Y)
    helped = linear_model.BayesianRidge(**strong, **CONVERGED, alpha_init=3e-4, lambda_init=1e-5).fit(X, Y)
    assert ours.scores_[-1] > theirs.scores_[-1] + 100
    assert ours.lambda_ == pytest.approx(helped.lambda_, rel=0.01)  # the intercept counts differently


def test_precisions_can_start_from_given_values():
    free = BayesianRidge().fit(X, Y)
    started = BayesianRidge(alpha_init=1e-2, lambda_init=1e-3).fit(X, Y)
    assert started.alpha_ == pytest.approx(free.alpha_, rel=1e-6)
    assert started.lambda_ == pytest.approx(free.lambda_, rel=1e-6)
    stopped = BayesianRidge(alpha_init=1e-2, lambda_init=1e-3, max_iter=1).fit(X, Y)
    assert stopped.n_iter_ == 1
    assert stopped.lambda_ != pytest.approx(free.lambda_, rel=1e-3)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_sparse_data_give_the_dense_answer(form):
    x = np.where(np.abs(X) > 0.03, X, 0)
    dense = BayesianRidge().fit(x, Y)
    sparse = BayesianRidge().fit(scipy.sparse.csr_array(x).asformat(form), Y)
    assert sparse.lambda_ == pytest.approx(dense.lambda_, rel=1e-8)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8)
    for left, right in zip(
        sparse.predict(scipy.sparse.csr_array(x[:9]), return_std=True),
        dense.predict(x[:9], return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, rtol=1e-9)


def test_large_offsets_are_centred_without_loss():
    far = BayesianRidge().fit(X + 1e6, Y)
    near = BayesianRidge().fit(X, Y)
    # centring X + 1e6 leaves X with an absolute error of eps · 1e6, a relative one of about 4e-9
    assert far.lambda_ == pytest.approx(near.lambda_, rel=1e-6)
    np.testing.assert_allclose(far.predict(X[:5] + 1e6), near.predict(X[:5]), rtol=1e-6)


def test_several_targets_are_several_models():
    targets = np.stack([Y, Y[::-1] + 3 * X[:, 2], np.log(Y)], axis=1)
    together = BayesianRidge(compute_score=True).fit(X, targets)
    mean, std = together.predict(X[:6], return_std=True)
    assert together.coef_.shape == (3, 10)
    assert together.sigma_.shape == (3, 10, 10)
    assert together.sample(5).shape == (5, 3, 10)
    for k in range(3):
        alone = BayesianRidge(compute_score=True).fit(X, targets[:, k])
        assert together.alpha_[k] == pytest.approx(alone.alpha_, rel=1e-7)
        assert together.scores_[k][-1] == pytest.approx(alone.scores_[-1], rel=1e-10)
        assert together.intercept_[k] == pytest.approx(alone.intercept_, rel=1e-9)
        their_mean, their_std = alone.predict(X[:6], return_std=True)
        np.testing.assert_allclose(mean[:, k], their_mean, rtol=1e-8)
        np.testing.assert_allclose(std[:, k], their_std, rtol=1e-8)
        np.testing.assert_allclose(together.leave_one_out_.residual[:, k], alone.leave_one_out_.residual, rtol=1e-7)
    np.testing.assert_allclose(together.log_predictive_density(X, targets).shape, targets.shape)


def test_coefficient_draws_have_the_posterior_covariance():
    import torch

    model = BayesianRidge().fit(X, Y)
    draws = torch.from_numpy(model.sample(20_000) - model.coef_).mT
    check_covariance(draws, torch.from_numpy(model.sigma_))
    np.testing.assert_allclose(model.sample(3), model.sample(5)[:3], rtol=1e-11, atol=1e-11)  # round-off alone differs
    assert not np.array_equal(model.sample(3), model.sample(3, seed=1))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_leave_one_out_equals_leaving_out(fit_intercept, weighted):
    """At the fitted precisions: rows left out of a dense ridge with a free intercept."""
    x, y = X[:30, :4], Y[:30]
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 30) if weighted else np.ones(30)
    model = BayesianRidge(fit_intercept=fit_intercept).fit(x, y, sample_weight=weights)
    design = np.column_stack([np.ones(30), x]) if fit_intercept else x
    prior = np.full(design.shape[1], model.lambda_)
    prior[: int(fit_intercept)] = 0
    for i in (0, 11, 29):
        rest = np.arange(30) != i
        precision = model.alpha_ * (design[rest].T * weights[rest]) @ design[rest] + np.diag(prior)
        coefficients = np.linalg.solve(precision, model.alpha_ * design[rest].T @ (weights[rest] * y[rest]))
        spread = np.sqrt(design[i] @ np.linalg.solve(precision, design[i]) + 1 / model.alpha_)
        assert model.leave_one_out_.mean[i] == pytest.approx(design[i] @ coefficients, rel=1e-8)
        assert model.leave_one_out_.std[i] == pytest.approx(spread, rel=1e-8)
        assert model.leave_one_out_.residual[i] == pytest.approx(y[i] - design[i] @ coefficients, rel=1e-7)


def test_log_predictive_density_is_that_of_the_normal():
    from scipy.stats import norm

    model = BayesianRidge().fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(model.log_predictive_density(X, Y), norm(mean, std).logpdf(Y), rtol=1e-12)
    with pytest.raises(ValueError, match="y has shape"):
        model.log_predictive_density(X, Y[:5])


def test_it_works_in_pipelines_searches_and_with_pandas():
    frame = pd.DataFrame(X, columns=list("abcdefghij"))
    model = BayesianRidge().fit(frame, pd.Series(Y))
    assert list(model.feature_names_in_) == list("abcdefghij")
    np.testing.assert_allclose(model.predict(frame[:3]), BayesianRidge().fit(X, Y).predict(X[:3]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))
    pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(2), BayesianRidge())
    search = GridSearchCV(pipeline, {"polynomialfeatures__degree": [1, 2]}, cv=3).fit(X, Y)
    assert search.best_score_ > 0.4
    _, std = pipeline.fit(X, Y).predict(X[:3], return_std=True)
    assert std.shape == (3,)


@pytest.mark.filterwarnings("ignore:You are using `torch.load`:FutureWarning")  # torch's own, before 2.6
def test_a_fitted_model_survives_pickling():
    model = BayesianRidge().fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])


def test_rows_left_out_are_in_the_file_though_the_data_are_not():
    model = BayesianRidge().fit(X, Y)
    expected = BayesianRidge().fit(X, Y).leave_one_out_
    again = pickle.loads(pickle.dumps(model))
    assert again._training is None
    np.testing.assert_array_equal(again.leave_one_out_.mean, expected.mean)


@pytest.mark.parametrize("columns", [10, 40])
def test_the_short_way_is_that_of_the_linear_model(columns, monkeypatch):
    """The same fit by `find`, which the estimator takes where the closed form needs more care."""
    x, y = (X, Y) if columns == 10 else wide()
    short = BayesianRidge(compute_score=True).fit(x, y)
    monkeypatch.setattr(module, "decomposed_fits", lambda *_: None)
    long = BayesianRidge(compute_score=True).fit(x, y)
    assert short.alpha_ == pytest.approx(long.alpha_, rel=1e-7)
    assert short.lambda_ == pytest.approx(long.lambda_, rel=1e-7)
    assert short.scores_[-1] == pytest.approx(long.scores_[-1], rel=1e-12)
    np.testing.assert_allclose(short.coef_, long.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(short.sigma_, long.sigma_, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(short.sample(4), long.sample(4), rtol=1e-6, atol=1e-7)


def test_float32_stays_float32_and_is_close():
    model = BayesianRidge().fit(X.astype(np.float32), Y.astype(np.float32))
    assert model.coef_.dtype == np.float32
    assert model.predict(X.astype(np.float32)).dtype == np.float32
    assert model.lambda_ == pytest.approx(BayesianRidge().fit(X, Y).lambda_, rel=1e-4)


def test_an_interrupted_fit_leaves_the_estimator_as_it_was(monkeypatch):
    model, fresh = BayesianRidge().fit(X, Y), BayesianRidge()
    before = dict(vars(model))

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "decomposed_fits", interrupt)
    for estimator in (model, fresh):
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(X[:, :4], Y)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)
    assert not hasattr(fresh, "n_features_in_")


def test_covariances_too_large_to_make_are_refused(monkeypatch):
    model = BayesianRidge().fit(X, Y)
    monkeypatch.setattr(module, "SIGMA_BYTES", 100)
    with pytest.raises(AttributeError, match=r"sigma_ would take .* for 10 features: use predict"):
        _ = model.sigma_


def test_targets_without_noise_keep_their_digits():
    """A Gram matrix would lose them: 15 decades lie between the data and the noise that the hyperprior allows."""
    truth = np.linspace(-1, 2, 10)
    model = BayesianRidge().fit(X * 1e4, X @ truth * 1e4)
    np.testing.assert_allclose(model.coef_, truth, rtol=1e-7, atol=1e-9)


def test_large_problems_are_fitted_without_decompositions(monkeypatch):
    """The same data by the matrix-free road: precisions within the error of 32 probes, the mean to its tolerance."""
    exact = BayesianRidge(compute_score=True).fit(*wide())
    monkeypatch.setattr(module, "EXACT_SIZE", 5)
    x, y = wide()
    model = BayesianRidge(compute_score=True).fit(x, y)
    assert model.lambda_ == pytest.approx(
        exact.lambda_, rel=1e-6
    )  # the space is complete here, so nothing is estimated
    np.testing.assert_allclose(model.coef_, exact.coef_, atol=1e-3 * np.abs(exact.coef_).max())
    ours, theirs = model.predict(x, return_std=True)[1], exact.predict(x, return_std=True)[1]
    epistemic = theirs**2 - 1 / exact.alpha_
    assert (np.abs(ours**2 - theirs**2) <= 5 * (2 / module.DRAWS) ** 0.5 * epistemic + 1e-6).all()
    assert model.sample(7).shape == (7, 40)
    both = BayesianRidge().fit(scipy.sparse.csr_array(x), np.stack([y, y[::-1]], axis=1))
    assert both.lambda_[0] == pytest.approx(exact.lambda_, rel=1e-6)
    with pytest.raises(ValueError, match="holds 32 draws, and 33 were asked for"):
        model.sample(33)
    with pytest.raises(AttributeError, match="sigma_ would take"):
        _ = model.sigma_
    assert len(pickle.dumps(model)) < 1e6


def constant(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (constant(X, (2, 3), np.nan), Y, "NaN"),
        (constant(X, (2, 3), np.inf), Y, "infinity"),
        (X, constant(Y, 4, np.nan), "NaN"),
        (X[:0], Y[:0], "minimum of 2 is required"),
        (X[:1], Y[:1], "minimum of 2 is required"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:, :0], Y, "0 feature"),
        (np.array([["a", "b"], ["c", "d"]]), np.array([1.0, 2.0]), "could not convert string"),
        (X * 1e160, Y, "its square leaves the range"),
        (X, Y * 1e-250, "its square leaves the range"),
        (X[0], Y, "Expected 2D array"),
        (X, Y + 1j, "Complex data not supported"),
    ],
)
def test_bad_input_gets_a_clear_error(x, y, message):
    with pytest.raises(ValueError, match=message):
        BayesianRidge().fit(x, y)


def test_data_far_beyond_memory_are_refused_with_the_numbers(monkeypatch):
    from lapwing.runtime import memory

    monkeypatch.setattr(memory, "available_bytes", lambda: 10_000)
    with pytest.raises(MemoryError, match=r"442 observations and 60 weights needs 130 kB, and 10 kB are available"):
        BayesianRidge().fit(np.tile(X, 6), Y)


def test_half_precision_is_computed_in_double():
    """scikit-learn's validation turns float16 into float64 before we see it."""
    half = X.astype(np.float16)
    assert BayesianRidge().fit(half, Y).lambda_ == pytest.approx(
        BayesianRidge().fit(half.astype(float), Y).lambda_, rel=1e-12
    )


def test_constant_columns_duplicate_rows_and_constant_targets():
    base = BayesianRidge().fit(X, Y)
    extra = BayesianRidge().fit(np.column_stack([X, np.full(len(X), 7.0)]), Y)
    assert extra.coef_[-1] == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(extra.predict(np.column_stack([X[:4], np.full(4, 7.0)])), base.predict(X[:4]), rtol=1e-8)
    twice = BayesianRidge().fit(np.vstack([X, X]), np.concatenate([Y, Y]))
    counted = BayesianRidge().fit(X, Y, sample_weight=np.full(len(Y), 2.0))
    np.testing.assert_allclose(twice.coef_, counted.coef_, rtol=1e-6)
    flat = BayesianRidge().fit(X, np.full(len(Y), 5.0))
    mean, std = flat.predict(X[:3], return_std=True)
    np.testing.assert_allclose(mean, 5, rtol=1e-9)
    assert (std < 1e-3).all()
    assert np.isfinite(std).all()
