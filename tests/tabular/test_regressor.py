"""BayesianMLPRegressor as an estimator among others, and its figures against dense formulas and refits."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from lapwing.tabular import BayesianMLPRegressor, estimators, mixtures, regressor, training
from lapwing.tabular.mixtures import Shape
from tests.tabular import reference

SMALL = {"hidden_units": 6, "members": 3, "max_iter": 40}
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(70, 4)) * [1.0, 20.0, 0.1, 3.0] + [0.0, 100.0, -2.0, 5.0]
Z = (X - X.mean(0)) / X.std(0)
Y = 10 * np.sin(2 * Z[:, 0]) + 5 * Z[:, 1] + RANDOM.normal(size=70) + 300
TWO = np.stack([Y, 0.01 * Z[:, 2] * Z[:, 3] + 0.001 * RANDOM.normal(size=70)], axis=1)
NEW = RANDOM.normal(size=(9, 4)) * [1.0, 20.0, 0.1, 3.0] + [0.0, 100.0, -2.0, 5.0]


@pytest.fixture(scope="module")
def fitted():
    return BayesianMLPRegressor(**SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def both():
    return BayesianMLPRegressor(**SMALL).fit(X, TWO)


@pytest.mark.parametrize(
    "check", [pytest.param((estimator, check), id=check.func.__name__) for estimator, check in
              estimator_checks_generator(BayesianMLPRegressor(hidden_units=8, members=2, max_iter=40))
              if check.func.__name__ != "check_array_api_input"]
)  # fmt: skip
def test_scikit_learns_own_checks(check):
    """All but array-API input, which is checked for estimators that claim it."""
    estimator, test = check
    test(estimator)


def posteriors(model, X, targets):
    """For each network: shapes, weights, covariance and noise variance, standardised, by the dense formulas."""
    found, encoding = model._networks, model._encoding
    x = torch.from_numpy((X - encoding.mean) / encoding.scale)
    shapes = [tuple(layer.shape[1:]) for layer in found.networks.of]
    d, h = X.shape[1], model.hidden_units
    for network, weights in enumerate(found.networks.flat()):
        alpha = found.precision[network]
        first = torch.cat([alpha[:d], alpha[d : d + 1]]).repeat(h)
        prior = torch.cat([first, alpha[d + 1].repeat(h), alpha[d + 2 :]])
        beta = found.noise_precision[network]
        H = reference.precision(
            weights, shapes, x, torch.ones(len(x)).double(), prior, beta, torch.ones(len(x)).double()
        )
        yield shapes, weights, x, prior, beta, torch.linalg.inv(H)


def test_predictions_are_those_of_the_dense_posterior(both):
    """Mixtures of N(f(x), φ H⁻¹ φᵀ + 1/β), in the targets' units."""
    new = torch.from_numpy((NEW - X.mean(0)) / X.std(0))
    means, variances = [], []
    for shapes, weights, _, _, beta, covariance in posteriors(both, X, TWO):
        J = reference.jacobian(weights, shapes, new)
        means.append(reference.output(weights, shapes, new)[:, 0])
        variances.append((J @ covariance @ J.T).diagonal() + 1 / beta)
    unit = TWO.std(0)
    means = torch.stack(means).reshape(2, 3, 9).permute(1, 2, 0).numpy() * unit + TWO.mean(0)
    variances = torch.stack(variances).reshape(2, 3, 9).permute(1, 2, 0).numpy() * unit**2
    mean, std = both.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, means.mean(0), rtol=1e-10)
    np.testing.assert_allclose(std**2, variances.mean(0) + means.var(0), rtol=1e-7)
    observed = mean + 0.5 * std
    density = np.log(shaped(both, norm.pdf, observed, means, variances))
    np.testing.assert_allclose(both.log_predictive_density(NEW, observed), density, rtol=1e-7, atol=1e-8)
    below = shaped(both, norm.cdf, observed, means, variances)
    np.testing.assert_allclose(both.cumulative_probability(NEW, observed), below, rtol=1e-7, atol=1e-12)
    low, high = both.interval(NEW, 0.8)
    np.testing.assert_allclose(shaped(both, norm.cdf, low, means, variances), 0.1, rtol=1e-6)
    np.testing.assert_allclose(shaped(both, norm.cdf, high, means, variances), 0.9, rtol=1e-6)


def shaped(model, of, values, means, variances):
    """A density or distribution function of members' Gaussians (members, ..., targets) with the errors' shape."""
    shape = model._networks.shape
    parts = [
        share.numpy() * of(values, means, factor.numpy() * np.sqrt(variances)).mean(0)
        for factor, share in zip(shape.factors, shape.shares, strict=True)
    ]
    return sum(parts)


def test_the_shape_of_errors_is_that_of_rows_left_out(both):
    """Densities under each factor from the published mean and leverage of one member."""
    model = BayesianMLPRegressor(**SMALL | {"members": 1}).fit(X, TWO, sample_weight=np.arange(70) % 3 + 1.0)
    left = model.leave_one_out_
    factors = np.array(mixtures.FACTORS)[:, None, None]
    densities = norm.logpdf(TWO, left.mean, factors * left.std)
    found = Shape.of(torch.from_numpy(densities), torch.arange(70).double() % 3 + 1)
    torch.testing.assert_close(model._networks.shape.shares, found.shares, rtol=1e-7, atol=0)
    torch.testing.assert_close(model._networks.shape.factors, found.factors, rtol=1e-7, atol=0)
    own = shaped(both, norm.pdf, 1.0, np.zeros((1, 1, 2)), np.ones((1, 1, 2)))
    assert own.shape == (1, 2)
    assert (own[0, 0] != own[0, 1]).all()  # each target has its own


def test_the_evidence_is_of_the_targets_in_their_units(both):
    found = []
    for network, (shapes, weights, x, prior, beta, _) in enumerate(posteriors(both, X, TWO)):
        target = TWO[:, network // 3]
        ones = torch.ones(70).double()
        y = torch.from_numpy((target - target.mean()) / target.std())[:, None]
        value = reference.log_evidence(weights, shapes, x, y, ones, prior, beta, ones)
        found.append(float(value) - 70 * np.log(target.std()))
    np.testing.assert_allclose(both.log_evidences_, np.reshape(found, (2, 3)).T, rtol=1e-9)
    np.testing.assert_allclose(both.log_evidence_, both.log_evidences_.mean(0))


def test_leaving_a_row_out_is_refitting_the_linear_model_without_it():
    """Of networks trained to their mode, where the linear model's mean is the network."""
    model = BayesianMLPRegressor(hidden_units=3, members=2, max_iter=3000, tol=1e-11).fit(X, Y)
    assert model.converged_
    means, variances = np.empty((2, 70)), np.empty((2, 70))
    for member, (shapes, weights, x, prior, beta, _) in enumerate(posteriors(model, X, Y)):
        J = reference.jacobian(weights, shapes, x)
        y = torch.from_numpy((Y - Y.mean()) / Y.std())
        offset = reference.output(weights, shapes, x)[:, 0] - J @ weights
        for row in range(70):
            others = torch.arange(70) != row
            H = beta * J[others].T @ J[others] + prior.diag()
            mean = torch.linalg.solve(H, beta * J[others].T @ (y - offset)[others])
            means[member, row] = J[row] @ mean + offset[row]
            variances[member, row] = J[row] @ torch.linalg.solve(H, J[row]) + 1 / beta
    means, variances = means * Y.std() + Y.mean(), variances * Y.std() ** 2
    left = model.leave_one_out_
    # the gradient that is left moves means by at most √(2e-11) posterior standard deviations, over 1 − leverage
    slack = 1e-5 * np.sqrt(variances.max()) / (1 - left.leverage.max())
    np.testing.assert_allclose(left.mean, means.mean(0), rtol=0, atol=slack)
    np.testing.assert_allclose(left.residual, Y - left.mean, atol=1e-10)
    np.testing.assert_allclose(left.std**2, variances.mean(0) + means.var(0), rtol=1e-5)
    density = np.log(shaped(model, norm.pdf, Y, means, variances))
    np.testing.assert_allclose(left.log_density, density, rtol=0, atol=1e-4)


def test_draws_have_the_covariance_of_the_linear_model():
    for rows in (20, 70):  # fewer and more than the 25 weights
        model = BayesianMLPRegressor(hidden_units=4, members=1, max_iter=30).fit(X[:rows], Y[:rows])
        shapes, weights, _, _, beta, covariance = next(iter(posteriors(model, X[:rows], Y[:rows])))
        encoding = model._encoding
        J = reference.jacobian(weights, shapes, torch.from_numpy((NEW - encoding.mean) / encoding.scale))
        truth = (J @ covariance @ J.T + torch.eye(9) / beta) * Y[:rows].std() ** 2
        draws = model.sample_y(NEW, 20_000, random_state=1)
        away = torch.from_numpy(draws - model.predict(NEW)[:, None])
        # products of two have the mean square κ (2 C² + v vᵀ), where κ is the mean fourth power of the factor
        kurtosis = (model._networks.shape.shares * model._networks.shape.factors**4).sum()
        variance = truth.diagonal()
        squares = kurtosis * (2 * truth.square() + torch.outer(variance, variance)) - truth.square()
        assert ((away @ away.mT / 20_000 - truth).abs() <= 5 * (squares / 20_000).sqrt()).all()


def test_draws_of_several_members_have_the_moments_of_the_mixture(both):
    draws = both.sample_y(NEW, 20_000, random_state=2)
    mean, std = both.predict(NEW, return_std=True)
    assert draws.shape == (9, 2, 20_000)
    assert (np.abs(draws.mean(2) - mean) <= 5 * std / 20_000**0.5).all()
    squares = (draws - mean[:, :, None]) ** 2
    assert (np.abs(squares.mean(2) - std**2) <= 5 * squares.std(2) / 20_000**0.5).all()


def test_several_targets_are_several_models(fitted, both):
    """To round-off, enlarged by forty steps: other batch sizes are summed in another order."""
    alone = BayesianMLPRegressor(**SMALL).fit(X, TWO[:, 1])
    mean, std = both.predict(NEW, return_std=True)
    for column, model in enumerate((fitted, alone)):
        own_mean, own_std = model.predict(NEW, return_std=True)
        np.testing.assert_allclose(mean[:, column], own_mean, rtol=1e-5)
        np.testing.assert_allclose(std[:, column], own_std, rtol=1e-5)
        np.testing.assert_allclose(both.relevance_[column], model.relevance_, rtol=1e-4)
        assert both.noise_std_[column] == pytest.approx(model.noise_std_, rel=1e-5)
    assert both.leave_one_out_.mean.shape == (70, 2)
    assert both.interval(NEW)[0].shape == (9, 2)


def test_it_learns(fitted):
    assert fitted.score(X, Y) > 0.95
    assert 0.5 < fitted.noise_std_ < 1.6
    assert fitted.relevance_.sum() == pytest.approx(1)
    assert fitted.relevance_[:2].min() > 3 * fitted.relevance_[2:].max()


def test_intervals_hold_what_was_not_seen(fitted):
    new = np.random.default_rng(9).normal(size=(400, 4))
    truth = 10 * np.sin(2 * new[:, 0]) + 5 * new[:, 1] + np.random.default_rng(10).normal(size=400) + 300
    low, high = fitted.interval(new * X.std(0) + X.mean(0), 0.9)
    # 400 trials of probability 0.9 have a standard deviation of 0.015; the model itself may be off by a few hundredths
    assert 0.82 < np.mean((low < truth) & (truth < high)) < 0.98


def test_the_same_bits_again_and_global_states_untouched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002, the one that must not change
    first, again = (BayesianMLPRegressor(**SMALL, random_state=5).fit(X, Y) for _ in range(2))
    other = BayesianMLPRegressor(**SMALL, random_state=6).fit(X, Y)
    BayesianMLPRegressor(**SMALL | {"max_iter": 2}, random_state=None).fit(X, Y).sample_y(NEW, random_state=None)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert (first.predict(NEW) == again.predict(NEW)).all()
    assert (first.sample_y(NEW, 4, random_state=1) == again.sample_y(NEW, 4, random_state=1)).all()
    assert (first.predict(NEW) != other.predict(NEW)).all()


def test_units_of_columns_and_targets_do_not_matter(fitted):
    moved = BayesianMLPRegressor(**SMALL).fit(X * [1e3, 1e-3, 7, 1] + [0, 5, 0, 1e3], 1e4 * Y - 3)
    mean, std = moved.predict(NEW * [1e3, 1e-3, 7, 1] + [0, 5, 0, 1e3], return_std=True)
    own_mean, own_std = fitted.predict(NEW, return_std=True)
    np.testing.assert_allclose((mean + 3) / 1e4, own_mean, rtol=1e-5)
    np.testing.assert_allclose(std / 1e4, own_std, rtol=1e-4)


def test_sample_weights_count_rows():
    weights = np.tile([1, 2, 0, 1, 3], 14)
    weighted = BayesianMLPRegressor(**SMALL).fit(X, Y, sample_weight=weights)
    repeated = BayesianMLPRegressor(**SMALL).fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights))
    np.testing.assert_allclose(weighted.predict(NEW), repeated.predict(NEW), rtol=1e-6)
    assert weighted.log_evidence_ == pytest.approx(repeated.log_evidence_, rel=1e-6)


def test_frames_with_names_categories_and_gaps():
    kinds = np.array(["a", "b", "c", "d", "e", "f", "g"])[np.arange(70) % 7]
    frame = pd.DataFrame({"size": X[:, 0], "kind": kinds, "weight": X[:, 1]})
    frame.loc[::9, "weight"] = np.nan
    y = Y + 30 * (kinds == "c")
    model = BayesianMLPRegressor(**SMALL).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["size", "kind", "weight"]
    assert model.relevance_.shape == (3,)
    asked = frame.iloc[[0, 0]].assign(kind=["c", "a"])
    high, low = model.predict(asked)
    assert 20 < high - low < 40
    assert model.log_predictive_density(frame, pd.Series(y)).shape == (70,)  # whose array cannot be written to
    with pytest.raises(ValueError, match="categorical columns and got ndarray"):
        model.predict(frame.to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="'weight' held numbers in training"):
        model.predict(frame.assign(weight="heavy"))


def test_pipelines_grids_and_clones():
    model = BayesianMLPRegressor(hidden_units=4, members=2, max_iter=15)
    search = GridSearchCV(make_pipeline(StandardScaler(), model), {"bayesianmlpregressor__hidden_units": [2, 5]}, cv=2)
    assert search.fit(X, Y).best_score_ > 0.5
    assert cross_val_score(clone(model), X, Y, cv=2).shape == (2,)


def test_max_iter_keeps_what_there_is(fitted):
    short = BayesianMLPRegressor(**SMALL | {"max_iter": 2}).fit(X, Y)
    assert short.n_iter_ == 2
    assert not short.converged_
    assert np.isfinite(short.predict(NEW)).all()


def test_an_interrupt_keeps_what_there_is(monkeypatch):
    def impatient(phase: str) -> None:
        if phase.startswith("iteration 3"):
            raise KeyboardInterrupt

    monkeypatch.setattr(regressor, "reporter", lambda progress: impatient)
    stopped = BayesianMLPRegressor(**SMALL).fit(X, Y)
    assert stopped.n_iter_ == 3
    assert not stopped.converged_


def test_progress_is_shown_when_asked_for(capsys):
    BayesianMLPRegressor(**SMALL | {"max_iter": 2}, verbose=True).fit(X, Y)
    assert "iteration 1 of at most 2" in capsys.readouterr().err


def test_further_rows_are_used_without_starting_over(fitted):
    """Fifteen rows leave most of the curve open; with the other fifty-five it is that of a fit to all."""
    part = BayesianMLPRegressor(**SMALL).fit(X[:15], Y[:15])
    before = np.sqrt(np.mean((part.predict(X) - fitted.predict(X)) ** 2))
    assert part.partial_fit(X[15:], Y[15:]) is part
    after = np.sqrt(np.mean((part.predict(X) - fitted.predict(X)) ** 2))
    assert after < 0.3 * before
    assert after < fitted.noise_std_
    assert part.n_iter_ <= regressor.PARTIAL_STEPS
    assert part.leave_one_out_.mean.shape == (70,)
    np.testing.assert_allclose(part.leave_one_out_.residual, Y - part.leave_one_out_.mean, atol=1e-9)


def test_many_rows_begin_with_a_part(monkeypatch, fitted):
    monkeypatch.setattr(regressor, "MANY_ROWS", 60)
    monkeypatch.setattr(regressor, "PART_ROWS", 50)
    monkeypatch.setattr(regressor, "FURTHER_STEPS", 20)
    begun = BayesianMLPRegressor(**SMALL).fit(X, Y)
    again = BayesianMLPRegressor(**SMALL).fit(X, Y)
    assert begun.n_iter_ == SMALL["max_iter"] + regressor.FURTHER_STEPS
    assert begun.leave_one_out_.mean.shape == (70,)
    assert (begun.predict(NEW) == again.predict(NEW)).all()
    assert begun.log_evidence_ == pytest.approx(fitted.log_evidence_, abs=15)
    assert begun.score(X, Y) > 0.95


def test_blocks_of_rows_do_not_matter(monkeypatch):
    """Nine rows a block, the last of which is smaller: all that is found, to round-off."""
    settings = {"hidden_units": 3, "members": 2, "max_iter": 8, "noise": "input"}
    whole = BayesianMLPRegressor(**settings).fit(X, Y)
    monkeypatch.setattr(training, "BLOCK_ELEMENTS", 9 * 2 * whole._networks.networks.weights)
    parts = BayesianMLPRegressor(**settings).fit(X, Y)
    assert len(list(parts._data.blocks(parts._networks.networks))) == 8
    for mine, theirs in zip(whole.predict(NEW, return_std=True), parts.predict(NEW, return_std=True), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7)
    np.testing.assert_allclose(whole.leave_one_out_.log_density, parts.leave_one_out_.log_density, rtol=1e-6)
    np.testing.assert_allclose(whole.relevance_, parts.relevance_, rtol=1e-6)


def test_rows_in_parts_are_the_rows_together():
    """Training on from the same networks: where rows come from does not matter, to round-off enlarged by twenty steps."""
    model = BayesianMLPRegressor(**SMALL | {"max_iter": 5}).fit(X[:40], Y[:40])
    twice = clone(model).fit(X[:40], Y[:40])
    model.partial_fit(np.repeat(X[40:50], 2, axis=0), np.repeat(Y[40:50], 2))
    twice.partial_fit(X[40:50], Y[40:50], sample_weight=np.full(10, 2.0))
    np.testing.assert_allclose(model.predict(NEW), twice.predict(NEW), rtol=1e-6)


def test_what_cannot_be_added_is_refused(tmp_path, both):
    model = BayesianMLPRegressor(**SMALL | {"max_iter": 3}, noise="input").partial_fit(X, Y)
    before = model.predict(NEW)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], Y)
    with pytest.raises(ValueError, match=r"y has shape \(70, 2\), and the estimator was fitted to 1 target"):
        model.partial_fit(X, TWO)
    with pytest.raises(
        ValueError, match=r"y has shape \(70,\), and the estimator was fitted to 2 target\(s\) in columns"
    ):
        both.partial_fit(X, Y)
    assert (model.predict(NEW) == before).all()
    model.partial_fit(X[:5], Y[:5])
    assert model.leave_one_out_.mean.shape == (75,)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="loaded from a file"):
        BayesianMLPRegressor.load(tmp_path / "model").partial_fit(X, Y)


# hard tables: a clear error or a right answer


def test_a_constant_target():
    mean, std = BayesianMLPRegressor(**SMALL).fit(X, np.full(70, 7.0)).predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, 7, atol=1e-3)
    assert (std < 1e-2).all()


def test_more_columns_than_rows():
    wide = np.random.default_rng(1).normal(size=(20, 60))
    y = wide[:, 0] + 0.1 * np.random.default_rng(2).normal(size=20)
    mean, std = BayesianMLPRegressor(**SMALL).fit(wide, y).predict(wide[:5] + 0.5, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0.01).all()


def test_duplicates_of_rows_and_columns():
    doubled = np.tile(np.concatenate([X, X], axis=1), (2, 1))
    model = BayesianMLPRegressor(**SMALL).fit(doubled, np.tile(Y, 2))
    assert model.score(doubled, np.tile(Y, 2)) > 0.95


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:1], Y[:1], "minimum of 2 is required"),
        (X, Y[:5], "inconsistent numbers of samples"),
        (np.where(X > 100, np.inf, X), Y, "infinity"),
        (X, np.where(Y > 300, np.nan, Y), "NaN"),
        (X.astype(str), np.full(70, "three"), "could not convert|Unable to convert"),
        (np.where(X > 1, "three", X.astype(str)), Y, "could not convert|Unable to convert"),
        (np.zeros((200_001, 2)), np.zeros(200_001), "200,001 rows.*at most 200,000.*random part"),
        (pd.DataFrame({"a": ["x"]}), [1.0], "at least two rows"),
    ],
    ids=[
        "one row",
        "lengths",
        "infinity",
        "missing targets",
        "text",
        "text among numbers",
        "too many rows",
        "one row of a frame",
    ],
)
def test_what_cannot_be_fitted_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        BayesianMLPRegressor(**SMALL).fit(x, y)


def test_too_little_memory_is_said_before_the_work(monkeypatch):
    monkeypatch.setattr(estimators, "available_bytes", lambda: 1e3)
    with pytest.raises(ValueError, match=r"3 networks of 37 weights on 70 rows need about .* GB.*hidden_units"):
        BayesianMLPRegressor(**SMALL).fit(X, Y)


def test_wrong_questions_are_refused(fitted):
    with pytest.raises(ValueError, match="level is 90: expected a probability"):
        fitted.interval(NEW, 90)
    with pytest.raises(ValueError, match="n_samples is 0"):
        fitted.sample_y(NEW, 0)
    with pytest.raises(ValueError, match=r"y has shape \(9, 1\)"):
        fitted.log_predictive_density(NEW, np.zeros((9, 1)))
    with pytest.raises(ValueError, match="at least one non-zero|every sample weight is zero"):
        BayesianMLPRegressor(**SMALL).fit(X, Y, sample_weight=np.zeros(70))


def test_an_error_leaves_the_estimator_as_it_was():
    model = BayesianMLPRegressor(**SMALL | {"max_iter": 3}).fit(X, Y)
    before = model.predict(NEW)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(X > 100, np.inf, X), Y)
    assert (model.predict(NEW) == before).all()
