"""Bayesian generalised linear models against a bound that is maximised by autodiff, and as estimators among others."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse
import scipy.stats
import torch
from sklearn.utils.estimator_checks import estimator_checks_generator

import lapwing as lw
from lapwing.linear import (
    BayesianBinomialRegressor,
    BayesianGammaRegressor,
    BayesianNegativeBinomialRegressor,
    BayesianOrdinalClassifier,
    BayesianPoissonRegressor,
    FormulaDesign,
    coefficients,
    generalised,
)
from lapwing.linear.coefficients import CoefficientTable

N, D = 60, 3
COEF = np.array([0.6, -0.4, 0.2])
NOT_OURS = {"check_array_api_input"}
MODELS = {
    "poisson": BayesianPoissonRegressor,
    "negative binomial": lambda **k: BayesianNegativeBinomialRegressor(dispersion=0.4, **k),
    "gamma": lambda **k: BayesianGammaRegressor(shape=2.5, **k),
    "binomial": BayesianBinomialRegressor,
}
LIKELIHOODS = {"poisson": lw.Poisson(), "negative binomial": lw.NegativeBinomial(0.4), "gamma": lw.Gamma(2.5)}
EACH = pytest.mark.parametrize("name", list(MODELS))


def problem(name: str, n: int = N, seed: int = 3):
    """Correlated columns off the origin, targets, weights, offsets and exposures."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)) @ (np.eye(D) + 0.3 * rng.normal(size=(D, D))) * [0.5, 1.0, 2.0] + 1
    offset, weights = 0.3 * rng.normal(size=n), rng.uniform(0.4, 1.6, n)
    trials = rng.integers(2, 9, n).astype(float)
    f = (x - 1) @ COEF + offset + 0.4
    y = {
        "poisson": lambda: rng.poisson(trials * np.exp(f)),
        "negative binomial": lambda: rng.poisson(rng.gamma(2.5, 0.4, n) * trials * np.exp(f)),
        "gamma": lambda: rng.gamma(2.5, 0.4, n) * np.exp(f),
        "binomial": lambda: rng.binomial(trials.astype(int), 1 / (1 + np.exp(-f))),
    }[name]().astype(float)
    return x, y, {"sample_weight": weights, "offset": offset, "exposure": None if name == "gamma" else trials}


def best_gaussian(name, x, y, known, precision):
    """Mean, covariance and bound over (coefficients, intercept), by gradients of the bound as it is written down."""
    w, exposure = known["sample_weight"], known["exposure"]
    every = w * exposure if name == "binomial" else w  # a trial counts as a row
    centre = every @ x / every.sum()
    scale = np.sqrt(every @ (x - centre) ** 2 / every.sum())
    design = torch.from_numpy(np.column_stack([(x - centre) / scale, np.ones(N)]))
    offset, counts, target = (torch.from_numpy(v) for v in (known["offset"], w, y))
    if name == "binomial":
        trials = torch.from_numpy(exposure)
        share = (w @ y + 0.5) / (w @ exposure + 1)
        base = np.log(share / (1 - share)) - (w * exposure) @ known["offset"] / (w @ exposure)
        constant = torch.from_numpy(
            scipy.special.gammaln(exposure + 1) - scipy.special.gammaln(y + 1) - scipy.special.gammaln(exposure - y + 1)
        )
        density = lambda f: target[:, None] * f - trials[:, None] * torch.nn.functional.softplus(f) + constant[:, None]  # noqa: E731
    else:
        offset = offset if exposure is None else offset + torch.from_numpy(np.log(exposure))
        base = np.log(w @ y) - np.log(w @ np.exp(offset.numpy()))
        density = lambda f: LIKELIHOODS[name].log_density(f, target[:, None].expand_as(f))  # noqa: E731
    prior = torch.tensor([precision] * D + [0.01]).double()
    z, share = np.polynomial.hermite_e.hermegauss(40)
    z, share = torch.from_numpy(z), torch.from_numpy(share / share.sum())
    size, lower = D + 1, torch.tril_indices(D + 1, D + 1)

    def bound(flat):
        mean, root = flat[:size], torch.zeros(size, size).double()
        root[lower[0], lower[1]] = flat[size:]
        std = (design @ root).square().sum(1).sqrt()
        f = (design @ mean + offset + base)[:, None] + std[:, None] * z
        covariance = root @ root.mT
        divergence = 0.5 * (
            (prior * (mean**2 + covariance.diagonal())).sum()
            - size
            - prior.log().sum()
            - 2 * root.diagonal().abs().log().sum()
        )
        return (counts * (density(f) @ share)).sum() - divergence

    def loss(flat):
        at = torch.from_numpy(flat).requires_grad_()
        value = -bound(at)
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    start = np.concatenate([np.zeros(size), 0.2 * np.eye(size)[lower[0], lower[1]]])
    found = scipy.optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    )
    root = np.zeros((size, size))
    root[lower[0], lower[1]] = found.x[size:]
    back = np.diag(np.append(1 / scale, 1.0))
    back[-1, :-1] = -centre / scale
    return back @ found.x[:size] + np.append(np.zeros(D), base), back @ root @ root.T @ back.T, -found.fun


@EACH
def test_posterior_and_evidence_are_those_of_the_best_gaussian(name):
    """The gradient of 1e-9 leaves about 1e-6 of a standard deviation; the bound is flat there, to 1e-8."""
    x, y, known = problem(name)
    model = MODELS[name](prior_precision=1.7).fit(x, y, **known)
    mean, covariance, bound = best_gaussian(name, x, y, known, 1.7)
    assert model.log_evidence_ == pytest.approx(bound, abs=1e-6)
    table = model.summary()
    std = np.sqrt(np.diag(covariance))
    order = [D, *range(D)]
    np.testing.assert_allclose(table["mean"], mean[order], atol=1e-4 * std.min())
    np.testing.assert_allclose(table["std"], std[order], rtol=1e-4)
    np.testing.assert_allclose(table["sign"], scipy.stats.norm.cdf(np.abs(mean[order]) / std[order]), rtol=1e-4)
    new = np.random.default_rng(1).normal(size=(4, D))
    predictor, spread = model.linear_predictor(new, return_std=True)
    rows = np.column_stack([new, np.ones(4)])
    np.testing.assert_allclose(predictor, rows @ mean, atol=1e-4)
    np.testing.assert_allclose(spread, np.sqrt(np.einsum("ij,jk,ik->i", rows, covariance, rows)), rtol=1e-4)


@EACH
def test_the_tuned_precision_has_the_largest_bound(name):
    x, y, known = problem(name)
    model = MODELS[name]().fit(x, y, **known)
    (precision,) = model.precisions_.values()
    for factor in (0.8, 1.25):
        other = MODELS[name](prior_precision=precision * factor).fit(x, y, **known)
        assert other.log_evidence_ < model.log_evidence_


@pytest.mark.parametrize(
    ("estimator", "attribute", "name"),
    [
        (BayesianNegativeBinomialRegressor, "dispersion", "negative binomial"),
        (BayesianGammaRegressor, "shape", "gamma"),
    ],
)
def test_a_tuned_parameter_of_the_likelihood_has_the_largest_bound(estimator, attribute, name):
    """It is found to 1e-3 of its size, where the bound is flat: a change of 10 % costs more than that leaves."""
    x, y, known = problem(name, 300)
    model = estimator().fit(x, y, **known)
    found = getattr(model, attribute + "_")
    for factor in (0.9, 1.1):
        assert estimator(**{attribute: found * factor}).fit(x, y, **known).log_evidence_ < model.log_evidence_
    assert found == pytest.approx(0.4 if attribute == "dispersion" else 2.5, rel=0.3)


def levels(n: int = 400, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.array(["a", "b", "c"])[np.digitize(x @ [1.0, -0.6] + rng.logistic(size=n), [-1.0, 1.2])]


def test_levels_have_thresholds_of_the_largest_bound():
    x, y = levels()
    model = BayesianOrdinalClassifier(prior_precision=1.0).fit(x, y)
    assert model.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(model.thresholds_, [-1.0, 1.2], atol=0.4)
    number = np.searchsorted(model.classes_, y)

    def bound(gap: float) -> float:
        """With the thresholds further apart, what they share left to the intercept."""
        middle = np.mean(model._likelihood.thresholds)
        likelihood = lw.Ordinal(tuple(middle + gap * (np.array(model._likelihood.thresholds) - middle)))
        scaled = (x - x.mean(0)) / x.std(0)
        design = lw.LinearModel(np.column_stack([scaled, np.ones(len(x))]), number, likelihood)
        prior = lw.PerGroup({"slopes": [0, 1], "intercept": [2]}, {"slopes": 1.0, "intercept": 0.01})
        return float(lw.infer(design, prior=prior, draws=0, progress=False).log_evidence)

    assert bound(1.0) == pytest.approx(model.log_evidence_, abs=1e-6)
    assert max(bound(0.93), bound(1.07)) < model.log_evidence_
    probs = model.predict_proba(x)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    picked = np.log(probs[np.arange(len(y)), number])
    np.testing.assert_allclose(model.log_predictive_density(x, y), picked, atol=1e-9)


@EACH
def test_predictive_distributions_are_those_of_draws(name):
    """100,000 draws of the coefficients and of observations: means and probabilities to five standard errors."""
    x, y, known = problem(name)
    model, draws = MODELS[name]().fit(x, y, **known), 100_000
    exposure = None if name == "gamma" else np.array([4.0, 7.0])
    rng = np.random.default_rng(0)
    centre, spread = model.linear_predictor(x[:2], return_std=True)
    f = centre + spread * rng.normal(size=(draws, 2))
    scale = 1.0 if exposure is None else exposure
    seen = {
        "poisson": lambda: rng.poisson(scale * np.exp(f)),
        "negative binomial": lambda: rng.poisson(rng.gamma(2.5, 0.4, f.shape) * scale * np.exp(f)),
        "gamma": lambda: rng.gamma(2.5, 0.4, f.shape) * np.exp(f),
        "binomial": lambda: rng.binomial(np.broadcast_to(scale, f.shape).astype(int), 1 / (1 + np.exp(-f))),
    }[name]()
    mean, std = model.predict(x[:2], return_std=True, exposure=exposure)
    np.testing.assert_array_less(np.abs(mean - seen.mean(0)), 5 * seen.std(0) / draws**0.5)
    np.testing.assert_allclose(std, seen.std(0), rtol=0.05)
    at = np.quantile(seen, 0.7, axis=0)
    below = model.cumulative_probability(x[:2], at, exposure=exposure)
    np.testing.assert_allclose(below, (seen <= at).mean(0), atol=5 * 0.5 / draws**0.5)
    low, high = model.interval(x[:2], 0.8, exposure=exposure)
    assert ((seen < low).mean(0) <= 0.1 + 0.008).all()
    assert ((seen > high).mean(0) <= 0.1 + 0.008).all()
    if name != "gamma":
        count = np.floor(at)
        density = np.exp(model.log_predictive_density(x[:2], count, exposure=exposure))
        np.testing.assert_allclose(density, (seen == count).mean(0), atol=5 * 0.5 / draws**0.5)
    again = model.sample_y(x[:2], 5, exposure=exposure)
    assert again.shape == (2, 5)
    np.testing.assert_array_equal(again, model.sample_y(x[:2], 5, exposure=exposure))


def test_trials_one_by_one_are_the_same_posterior():
    """A row of successes among trials is as many rows of one trial; the evidence counts the orders of them."""
    x, y, known = problem("binomial")
    trials = known["exposure"].astype(int)
    model = BayesianBinomialRegressor(prior_precision=1.0, standardise=False).fit(x, y, exposure=trials)
    single = np.concatenate([np.r_[np.ones(int(k)), np.zeros(t - int(k))] for k, t in zip(y, trials, strict=True)])
    whole = BayesianBinomialRegressor(prior_precision=1.0, standardise=False).fit(np.repeat(x, trials, axis=0), single)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-6)
    orders = scipy.special.gammaln(trials + 1) - scipy.special.gammaln(y + 1) - scipy.special.gammaln(trials - y + 1)
    assert model.log_evidence_ == pytest.approx(whole.log_evidence_ + orders.sum(), abs=1e-6)


def test_groups_have_precisions_of_their_own_and_relevance_prunes():
    rng = np.random.default_rng(0)
    site = rng.integers(0, 12, 600)
    x = rng.normal(size=(600, 5))
    y = rng.poisson(np.exp(0.5 * x[:, 0] + 0.7 * rng.normal(size=12)[site] + 0.5))
    table = pd.concat(
        [pd.DataFrame(x, columns=list("abcde")), pd.get_dummies(site, prefix="site").astype(float)], axis=1
    )
    model = BayesianPoissonRegressor(groups={"site": "site_"}).fit(table, y)
    assert set(model.precisions_) == {"site", "slopes"}
    assert 0.25 < model.precisions_["site"] ** -0.5 < 1.4
    assert model.summary().index[:2].tolist() == ["intercept", "a"]
    each = BayesianPoissonRegressor(groups={"site": "site_"}, automatic_relevance=True).fit(table, y)
    assert each.log_evidence_ > model.log_evidence_
    assert each.precisions_["a"] < 10 < min(each.precisions_[name] for name in "bcde")
    shared = BayesianPoissonRegressor().fit(table, y)
    assert shared.log_evidence_ < each.log_evidence_


def test_units_of_a_column_do_not_count():
    x, y, _ = problem("poisson")
    one, other = BayesianPoissonRegressor().fit(x, y), BayesianPoissonRegressor().fit(x * [1, 1000, 1e-3] + 7, y)
    np.testing.assert_allclose(one.coef_, other.coef_ * [1, 1000, 1e-3], rtol=1e-5)
    assert one.log_evidence_ == pytest.approx(other.log_evidence_, abs=1e-6)


def test_more_rows_are_learnt_as_if_they_had_been_there():
    """A Gaussian for the first half is not quite its posterior: what it leaves of a mean, in standard deviations, falls
    with the root of the rows, and is 0.07 of 1,600."""
    x, y, _ = problem("poisson", 1600)
    both = BayesianPoissonRegressor(prior_precision=1.0, standardise=False).fit(x, y)
    parts = BayesianPoissonRegressor(prior_precision=1.0, standardise=False)
    for chosen in (slice(0, 800), slice(800, 1600)):
        parts.partial_fit(x[chosen], y[chosen])
    std = both.summary()["std"]
    np.testing.assert_array_less(np.abs(parts.summary()["mean"] - both.summary()["mean"]), 0.1 * std)
    np.testing.assert_allclose(parts.summary()["std"], std, rtol=0.03)
    assert parts.log_evidence_ == pytest.approx(both.log_evidence_, abs=0.5)


def test_levels_are_learnt_bit_by_bit():
    """The second half moves the probabilities towards those of all rows; a label that was not named is refused."""
    x, y = levels(600)
    both = BayesianOrdinalClassifier(prior_precision=1.0).fit(x, y).predict_proba(x)
    model = BayesianOrdinalClassifier(prior_precision=1.0).partial_fit(x[:300], y[:300], classes=["a", "b", "c"])
    half = model.predict_proba(x)
    model.partial_fit(x[300:], y[300:])
    assert np.abs(model.predict_proba(x) - both).mean() < np.abs(half - both).mean()
    with pytest.raises(ValueError, match="none of the classes"):
        model.partial_fit(x[:2], ["a", "z"])


def test_wide_data_keep_the_prior_where_there_are_no_data():
    """Fewer rows than columns: the same as without the short cut by the span of the rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 14)) + 0.5
    y = rng.poisson(np.exp(0.3 * x[:, 0]) + 1)
    model = BayesianPoissonRegressor(prior_precision=2.0).fit(x, y)
    dense = BayesianPoissonRegressor(prior_precision=2.0, groups={"first": [0]}).fit(x, y)
    assert model._weights.basis is not None
    assert dense._weights.basis is None
    again = BayesianPoissonRegressor(prior_precision=2.0, groups={"first": [0]}, standardise=False)
    scaled = (x - x.mean(0)) / x.std(0)
    same = again.fit(scaled, y)
    whole = BayesianPoissonRegressor(prior_precision=2.0).fit(scaled, y)
    np.testing.assert_allclose(whole.summary()["mean"], same.summary()["mean"], atol=1e-6)
    np.testing.assert_allclose(whole.summary()["std"], same.summary()["std"], rtol=1e-6)
    for one in (whole, same):
        one.partial_fit(scaled[:5] + 0.1, y[:5])
    np.testing.assert_allclose(whole.summary()["std"], same.summary()["std"], rtol=1e-5)


def test_products_alone_find_the_same_coefficients(monkeypatch):
    """Laplace's approximation by products: the mode of the dense one to 1e-4, standard deviations from 32 draws."""
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(120, 40, 0.2, format="csr", random_state=0)
    y = rng.poisson(np.exp(x @ rng.normal(size=40)))
    dense = BayesianPoissonRegressor(curvature="mode", prior_precision=1.5).fit(x, y)
    monkeypatch.setattr(generalised, "EXACT_SIZE", 10)
    free = BayesianPoissonRegressor(prior_precision=1.5).fit(x, y)
    assert free.curvature_ == "mode"
    np.testing.assert_allclose(free.coef_, dense.coef_, atol=1e-4 * dense.summary()["std"].min())
    ratio = free.summary()["std"] / dense.summary()["std"]
    assert 0.5 < ratio.min() < ratio.max() < 1.7  # 32 draws: a relative error of 1/8, five of them
    with pytest.raises(ValueError, match="too many"):
        free.partial_fit(x, y)


def test_a_table_without_pandas(monkeypatch):
    monkeypatch.setattr(coefficients, "find_spec", lambda name: None)
    x, y, _ = problem("poisson")
    table = BayesianPoissonRegressor().fit(x, y).summary()
    assert isinstance(table, CoefficientTable)
    assert str(table).splitlines()[1].startswith("intercept")
    assert len(str(table).splitlines()) == 2 + D
    assert table["std"].shape == (1 + D,)


@pytest.mark.parametrize(
    ("model", "y", "known", "match"),
    [
        (BayesianPoissonRegressor(), [-1.0, 2, 3], {}, "counts"),
        (BayesianPoissonRegressor(), [0.0, 0, 0], {}, "every target is zero"),
        (BayesianPoissonRegressor(), [1.0, 2, 3], {"exposure": [1, 0, 2]}, "must be positive"),
        (BayesianPoissonRegressor(), [1.0, 2, 3], {"offset": [1, 2]}, "one for each row"),
        (BayesianPoissonRegressor(groups={"a": "b"}), [1.0, 2, 3], {}, "begins with"),
        (BayesianPoissonRegressor(groups={"a": [0], "b": [0]}), [1.0, 2, 3], {}, "two groups"),
        (BayesianGammaRegressor(), [0.0, 2, 3], {}, "positive numbers"),
        (BayesianGammaRegressor(), [1.0, 2, 3], {"exposure": [1, 1, 1]}, "no exposure"),
        (BayesianBinomialRegressor(), [1.0, 2, 0], {}, "2 successes among 1 trials"),
        (BayesianOrdinalClassifier(), [1, 1, 1], {}, "at least 2"),
    ],
)
def test_what_cannot_be_used_is_refused(model, y, known, match):
    with pytest.raises(ValueError, match=match):
        model.fit([[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]], y, **known)


def test_pickles():
    x, y, known = problem("poisson")
    model = BayesianPoissonRegressor().fit(x, y, **known)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict(x), again.predict(x))


def test_formulas():
    pytest.importorskip("formulaic")
    table = pd.DataFrame({"age": [20.0, 30.0, 40.0, 50.0] * 5, "sex": ["f", "m", "m", "f"] * 5})
    design = FormulaDesign("age + C(sex)").fit(table)
    assert design.get_feature_names_out().tolist() == ["age", "C(sex)[T.m]"]
    assert design.transform(table[:2]).to_numpy().tolist() == [[20.0, 0.0], [30.0, 1.0]]
    with pytest.raises(ValueError, match="right-hand side"):
        FormulaDesign("y ~ age").fit(table)


ESTIMATORS = [
    BayesianPoissonRegressor(), BayesianBinomialRegressor(trials=1000), BayesianNegativeBinomialRegressor(),
    BayesianGammaRegressor(), BayesianOrdinalClassifier(),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_scikit_learn_has_no_objection(estimator):
    for instance, check in estimator_checks_generator(estimator):
        if check.func.__name__ not in NOT_OURS:
            check(instance)
