"""BayesianLogisticRegression against dense references, quadrature and scikit-learn, and as an estimator among others."""

import pickle
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from scipy.special import expit, log_softmax
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import Tensor

from lapwing.bayes.fits import newton
from lapwing.bayes.fits import newton as newton_steps
from lapwing.bayes.fits.bound import Search
from lapwing.bayes.fits.loss import Loss, PerOutput
from lapwing.bayes.fits.newton import mode
from lapwing.bayes.likelihoods import Bernoulli, Categorical
from lapwing.bayes.likelihoods.categorical import softmax_hessian
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense, Diagonal, Sparse
from lapwing.linalg.solvers import NotConverged
from lapwing.linear import BayesianLogisticRegression, designs, logistic
from tests.properties import check_covariance, check_operator

INTERCEPT_PRECISION = 0.01
NOT_OURS = {
    "check_array_api_input",  # for estimators that claim it
}


def problem(n: int, d: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated features off the origin, classes from a softmax, uneven weights; every class present."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))) * np.linspace(0.5, 1.5, d) + 1.0
    logits = (x - 1) @ rng.normal(size=(d, classes)) * 1.5 / d**0.5 + np.linspace(0, 0.7, classes)
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    y[:classes] = range(classes)
    return x, y, rng.uniform(0.4, 1.6, n)


SHAPES = {"binary": (60, 4, 2), "multinomial": (70, 5, 3), "wide binary": (12, 21, 2), "wide multinomial": (13, 19, 3)}
PROBLEMS = {name: problem(*shape, seed=5) for name, shape in SHAPES.items()}


def laplace(**options) -> BayesianLogisticRegression:
    """Laplace's approximation at the mode."""
    return BayesianLogisticRegression(curvature="mode", **options)


@dataclass(frozen=True)
class Reference:
    """Laplace's approximation by automatic differentiation of the loss, over weights (columns of the design × c)."""

    design: Tensor  # (n, q), a last column of ones with an intercept
    mean: Tensor  # (q · c,)
    hessian: Tensor  # (q · c, q · c), prior included
    prior: Tensor  # (q · c,), precisions
    log_prob: float
    outputs: int

    @property
    def log_evidence(self) -> float:
        occam = torch.linalg.slogdet(self.hessian).logabsdet - self.prior.log().sum()
        return float(self.log_prob - 0.5 * (self.prior * self.mean**2).sum() - 0.5 * occam)

    @property
    def covariance(self) -> Tensor:  # (q · c, q · c)
        """Of the weights, and for several outputs of their differences to the mean over classes."""
        c = self.outputs
        centring = torch.eye(c).double() - (1 / c if c > 1 else 0)
        projection = torch.kron(torch.eye(self.design.shape[1]).double(), centring)
        return projection @ torch.linalg.inv(self.hessian) @ projection

    def logits(self, design: Tensor) -> tuple[Tensor, Tensor]:  # (n, c), (n, c)
        """Means and variances."""
        rows = torch.kron(design, torch.eye(self.outputs).double())
        variance = (rows @ self.covariance * rows).sum(1)
        return (rows @ self.mean).reshape(-1, self.outputs), variance.reshape(-1, self.outputs)


def centred_design(x: np.ndarray, centre: np.ndarray | None) -> Tensor:
    if centre is None:
        return torch.from_numpy(x)
    return torch.from_numpy(np.column_stack([x - centre, np.ones(len(x))]))


def reference(x, y, precision, weights=None, intercept=True) -> Reference:
    """Damped Newton from zero on the loss as it is written down, in the weights themselves."""
    w = np.ones(len(y)) if weights is None else weights
    design, classes = centred_design(x, w @ x / w.sum() if intercept else None), len(np.unique(y))
    c, q = (1 if classes == 2 else classes), design.shape[1]
    prior = torch.full((q, c), precision).double()
    if intercept:
        prior[-1] = INTERCEPT_PRECISION
    counts, prior = torch.from_numpy(w), prior.reshape(-1)

    def log_prob(theta: Tensor) -> Tensor:
        outputs = design @ theta.reshape(q, c)
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1) if c == 1 else outputs
        return (counts * outputs.log_softmax(1)[torch.arange(len(y)), torch.from_numpy(y)]).sum()

    def loss(theta: Tensor) -> Tensor:
        return 0.5 * (prior * theta**2).sum() - log_prob(theta)

    theta = torch.zeros(q * c).double()
    for _ in range(60):
        hessian, gradient = torch.autograd.functional.hessian(loss, theta), torch.func.grad(loss)(theta)
        step = torch.linalg.solve(hessian, gradient)
        while loss(theta - step) > loss(theta) + 1e-12 * loss(theta).abs():
            step = step / 2
        theta = theta - step
        if step.norm() < 1e-9 * (1 + theta.norm()):  # what is left after one more quadratic step is round-off
            break
    hessian = torch.autograd.functional.hessian(loss, theta)
    return Reference(design, theta, hessian, prior, float(log_prob(theta)), c)


CHECKS = {check.func.__name__: check for _, check in estimator_checks_generator(BayesianLogisticRegression())}


@pytest.mark.parametrize(
    "given", [pytest.param({}, id="tuned", marks=pytest.mark.slow), pytest.param({"prior_precision": 1.0}, id="given")]
)
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in NOT_OURS])
def test_scikit_learns_own_checks(name, given):
    """Those that compare two fits need the optimum to the last digit, the others do not.

    What they ask of an estimator does not depend on how its precision is found; with all that is tuned they take long.
    """
    CHECKS[name](BayesianLogisticRegression(tol=None if "equivalence" in name else 1e-4, **given))


LIKELIHOODS = {
    "bernoulli": (Bernoulli(), (7,), torch.tensor([1.0, 0, 0, 1, 1, 0, 1]).double()),
    "labels": (Bernoulli(), (4, 3), torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]]).double()),
    "categorical": (Categorical(), (5, 4), torch.tensor([3, 0, 2, 1, 1])),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_of_the_likelihoods(name, weighted, generator):
    likelihood, shape, targets = LIKELIHOODS[name]
    outputs = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    weights = torch.linspace(0.3, 2, shape[0]).double() if weighted else None
    size = outputs.numel()

    def log_prob(f: Tensor) -> Tensor:
        return likelihood.log_prob(f, targets, weights)

    close = {"rtol": 1e-12, "atol": 1e-13}
    distribution = (
        torch.distributions.Categorical(logits=outputs)
        if name == "categorical"
        else torch.distributions.Bernoulli(logits=outputs)
    )
    counts = torch.ones(shape[0]).double() if weights is None else weights
    expected = (counts @ distribution.log_prob(targets).reshape(shape[0], -1)).sum()
    torch.testing.assert_close(log_prob(outputs), expected, **close)
    gradient = torch.func.grad(log_prob)(outputs)
    torch.testing.assert_close(likelihood.gradient(outputs, targets, weights), gradient, **close)
    hessian = -torch.func.hessian(log_prob)(outputs).reshape(size, size)
    torch.testing.assert_close(likelihood.hessian_diagonal(outputs, weights).reshape(-1), hessian.diagonal(), **close)
    units = torch.eye(size).double().reshape(*shape, size)
    product = likelihood.hessian_product(outputs, units, weights).reshape(size, size)
    torch.testing.assert_close(product, hessian, **close)
    root = likelihood.hessian_root(outputs, units, weights).reshape(size, size)
    torch.testing.assert_close(root @ root.mT, hessian, **close)
    adjoint = likelihood.hessian_root_adjoint(outputs, units, weights).reshape(size, size)
    torch.testing.assert_close(adjoint, root.mT, **close)


@pytest.mark.parametrize(("likelihood", "outputs"), [(Bernoulli(), (3, 1)), (Categorical(), (2, 4))])
def test_targets_never_broadcast_against_outputs(likelihood, outputs):
    with pytest.raises(ValueError, match=r"need targets of shape"):
        likelihood.log_prob(torch.zeros(outputs), torch.zeros(3, dtype=torch.long))


def test_new_operators_obey_the_laws(generator):
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    eye = torch.eye(3).double()
    constant = torch.cat([x, torch.ones(6, 1).double()], dim=1)
    check_operator(PerOutput(Dense(x), 3), torch.kron(x, eye), generator)
    check_operator(designs.WithConstant(Dense(x)), constant, generator)
    check_operator(designs.WithConstant(Sparse(scipy.sparse.csr_array(x.numpy()))), constant, generator)
    outputs, weights = torch.randn(6, 3, generator=generator).double(), torch.linspace(0.5, 2, 6).double()
    features = PerOutput(Dense(x) @ Diagonal(torch.linspace(1, 2, 4).double()), 3)
    root = Loss(features, Categorical(), torch.zeros(6).long(), weights).root(outputs)
    p = outputs.softmax(1)
    blocks = weights.sqrt()[:, None, None] * (torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :])
    check_operator(root, torch.block_diag(*blocks).mT @ features.dense(), generator)


def loss_of(name: str, precision: float) -> tuple[Loss, Reference]:
    x, y, w = PROBLEMS[name]
    expected = reference(x, y, precision, w, intercept=False)
    features = Dense(expected.design) @ Diagonal(torch.full((x.shape[1],), precision**-0.5).double())
    if expected.outputs > 1:
        return Loss(
            PerOutput(features, expected.outputs), Categorical(), torch.from_numpy(y), torch.from_numpy(w)
        ), expected
    return Loss(features, Bernoulli(), torch.from_numpy(y).double(), torch.from_numpy(w)), expected


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("precision", [0.02, 3.0])
@pytest.mark.parametrize("products_only", [False, True])
def test_the_mode_is_the_minimum_of_the_loss(name, precision, products_only, monkeypatch):
    """A gap of 1e-14 nats leaves weights 1.4e-7 posterior standard deviations, at most those of the prior, away."""
    monkeypatch.setattr(newton, "DENSE_SIZE", 0 if products_only else 1000)
    loss, expected = loss_of(name, precision)
    found = mode(loss).checked()
    torch.testing.assert_close(found.weights * precision**-0.5, expected.mean, rtol=0, atol=2e-7 * precision**-0.5)
    assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-5)
    assert found.gradient_norm <= (2e-14 * torch.linalg.norm(expected.hessian, 2) / precision) ** 0.5
    assert (found.factor is None) == products_only
    assert mode(loss, start=found.weights).steps == 0
    if found.factor is not None:
        torch.testing.assert_close(found.factor @ found.factor.mT, expected.hessian / precision, rtol=1e-6, atol=1e-6)


def test_the_diagonal_is_that_of_the_hessian():
    loss, _ = loss_of("multinomial", 0.3)
    found = mode(loss)
    dense = loss.hessian(found.outputs).dense()
    torch.testing.assert_close(loss.diagonal(found.outputs), dense.diagonal(), rtol=1e-12, atol=0)


def test_confident_data_lose_no_digits_in_the_hessian():
    """π (1 − π) to full relative accuracy, with π within 1e-15 of one."""
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 0.3]]).double()
    outputs = torch.tensor([[36.0, 0, 1], [0, 1, 35], [-1, 37, 0]]).double()
    total = softmax_hessian(Dense(x), outputs.softmax(1), torch.ones(3).double())
    p = np.exp(outputs.numpy().astype(np.longdouble))
    p = p / p.sum(1, keepdims=True)
    others = p.sum(1, keepdims=True) - p
    others[p > 0.5] = [sum(p[i, k] for k in range(3) if p[i, k] < 0.5) for i in range(3)]
    for k in range(3):
        own = (x.numpy().T * (p * others)[:, k]) @ x.numpy()
        np.testing.assert_allclose(total[k::3, k::3].numpy(), own.astype(float), rtol=1e-13)


def test_a_mode_that_was_not_found_says_so():
    loss, _ = loss_of("multinomial", 0.02)
    found = mode(loss, max_steps=2)
    assert not found.converged
    with pytest.raises(NotConverged, match=r"not found in 2 Newton steps: one more would lower the loss by .* nats"):
        found.checked()
    x, y, _ = PROBLEMS["multinomial"]
    with pytest.raises(NotConverged, match="allow more steps"):
        laplace(max_iter=1).fit(x, y)


def test_a_best_gaussian_that_was_not_found_says_so():
    x, y, _ = PROBLEMS["multinomial"]
    with pytest.warns(
        ConvergenceWarning, match="not found in 1 steps: one more would gain .* nats; allow more with max_"
    ):
        short = BayesianLogisticRegression(max_iter=1).fit(x, y)
    assert short.log_evidence_.value < BayesianLogisticRegression().fit(x, y).log_evidence_.value


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("precision", [0.1, 2.0])
def test_without_intercept_the_mode_is_that_of_scikit_learn(name, precision):
    x, y, w = PROBLEMS[name]
    ours = laplace(prior_precision=precision, fit_intercept=False).fit(x, y, sample_weight=w)
    theirs = LogisticRegression(C=1 / precision, fit_intercept=False, tol=1e-10, solver="newton-cholesky").fit(x, y, w)
    assert ours.lambda_ == precision
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.intercept_.shape == theirs.intercept_.shape
    # a gap of 1e-14 nats leaves ours 1.4e-7 / √precision away, a gradient of 1e-10 · Σw theirs 1e-10 · Σw / precision
    tolerance = 1.4e-7 * precision**-0.5 + 1e-10 * w.sum() / precision
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=tolerance)
    lengths = np.abs(x).sum(1).max()
    np.testing.assert_allclose(ours.logits(x), theirs.decision_function(x), rtol=0, atol=lengths * tolerance)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_everything_is_that_of_a_dense_computation(name, intercept, weighted):
    x, y, w = PROBLEMS[name]
    w = w if weighted else np.ones(len(y))
    model = laplace(prior_precision=0.4, fit_intercept=intercept).fit(x, y, sample_weight=w)
    expected = reference(x, y, 0.4, w, intercept)
    c, d = expected.outputs, x.shape[1]
    weights = expected.mean.reshape(-1, c).numpy()
    np.testing.assert_allclose(model.coef_.T, weights[:d], rtol=0, atol=1e-6)
    centre = w @ x / w.sum() if intercept else np.zeros(d)
    np.testing.assert_allclose(model.intercept_ + model.coef_ @ centre, weights[d:].sum(0), rtol=0, atol=1e-6)
    assert model.log_evidence_.value == pytest.approx(expected.log_evidence, abs=1e-6)
    determined = len(expected.mean) - (torch.linalg.inv(expected.hessian).diagonal() * expected.prior).sum()
    assert model.effective_dimension_.value == pytest.approx(float(determined), abs=1e-6)
    assert model.log_evidence_.standard_error == model.effective_dimension_.standard_error == 0
    new = problem(9, d, 3, seed=8)[0] * 2
    mean, variance = expected.logits(centred_design(new, centre if intercept else None))
    ours, std = model.logits(new, return_std=True)
    np.testing.assert_allclose(ours.reshape(9, c), mean, rtol=0, atol=1e-5)
    np.testing.assert_allclose(std.reshape(9, c) ** 2, variance, rtol=1e-6)
    moderated = (mean / (1 + np.pi / 8 * variance).sqrt()).numpy()
    moderated = np.column_stack([np.zeros(9), moderated]) if c == 1 else moderated
    np.testing.assert_allclose(model.predict_log_proba(new), log_softmax(moderated, 1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(new).sum(1), 1, rtol=1e-12)
    assert np.array_equal(model.predict(new), moderated.argmax(1))
    assert np.array_equal(model.logits(new), ours)


def test_the_evidence_of_two_weights_is_that_of_quadrature():
    """Laplace against a dense grid over the plane; and exact at a prior so narrow that all is Gaussian."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 2))
    y = (x @ [1.0, -0.5] + rng.logistic(size=50) > 0).astype(int)
    for precision, tolerance in ((1.0, 0.1), (1e5, 1e-4)):
        model = laplace(prior_precision=precision, fit_intercept=False).fit(x, y)
        gradient = x.T @ (expit(x @ model.coef_[0]) - y) + precision * model.coef_[0]
        assert np.linalg.norm(gradient) < 1e-6
        axis = np.linspace(-9, 9, 301) * precision**-0.5  # prior standard deviations
        grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        log_joint = -np.logaddexp(0, -(grid @ x.T) * (2 * y - 1)).sum(1) - 0.5 * precision * (grid**2).sum(1)
        cell = (axis[1] - axis[0]) ** 2 * precision / (2 * np.pi)
        exact = np.log(np.exp(log_joint - log_joint.max()).sum() * cell) + log_joint.max()
        assert abs(model.log_evidence_.value - exact) < tolerance
        below = BayesianLogisticRegression(prior_precision=precision, fit_intercept=False).fit(x, y).log_evidence_.value
        assert exact - tolerance < below < exact + 1e-9


@pytest.mark.parametrize("name", ["binary", "multinomial", "wide binary"])
def test_the_tuned_precision_has_the_largest_evidence(name):
    x, y, _ = PROBLEMS[name]
    model = laplace().fit(x, y)
    logs = np.log(model.lambda_) + np.concatenate([np.linspace(-6, 6, 7), np.linspace(-0.05, 0.05, 11)])
    evidence = np.array([reference(x, y, np.exp(log)).log_evidence for log in logs])
    # the search ends within 1e-3 of the best log precision, the fine grid has steps of 1e-2
    assert abs(logs[evidence.argmax()] - np.log(model.lambda_)) <= 0.0051
    assert model.log_evidence_.value >= evidence.max() - 1e-6


@pytest.mark.parametrize("name", ["binary", "multinomial", "wide binary"])
def test_the_tuned_precision_has_the_largest_bound(name):
    x, y, _ = PROBLEMS[name]
    model = BayesianLogisticRegression().fit(x, y)
    logs = np.log(model.lambda_) + np.concatenate([np.linspace(-6, 6, 7), np.linspace(-0.05, 0.05, 11)])
    fits = [BayesianLogisticRegression(prior_precision=np.exp(log)).fit(x, y) for log in logs]
    bounds = np.array([one.log_evidence_.value for one in fits])
    assert abs(logs[bounds.argmax()] - np.log(model.lambda_)) <= 0.0051
    assert model.log_evidence_.value >= bounds.max() - 1e-6


@pytest.mark.parametrize("curvature", ["expected", "mode"])
def test_labels_that_ignore_the_features_prune_them(curvature):
    """Every row has the same labels, three of one class and two of the other."""
    x, y = np.repeat(np.random.default_rng(1).normal(size=(16, 3)), 5, axis=0), np.tile([0, 1, 0, 1, 1], 16)
    model = BayesianLogisticRegression(curvature=curvature).fit(x, y)
    assert model.lambda_ == np.inf
    assert not model.coef_.any()
    mean, std = model.logits(x, return_std=True)
    if curvature == "mode":
        # the intercept's prior adds 0.01 to a precision of 80 · 0.24, and pulls by a hundredth of that of the logit
        np.testing.assert_allclose(mean, np.log(1.5), rtol=0.01 / 19.2)
        np.testing.assert_allclose(std, 19.2**-0.5, rtol=1e-3)
        assert model.effective_dimension_.value == pytest.approx(19.2 / 19.21, abs=1e-5)
    else:
        # 80 · (0.6 − E σ) is the pull of the intercept's prior, and its precision is 80 · E σ′ beside it
        nodes, quadrature = np.polynomial.hermite_e.hermegauss(60)
        sigma = expit(mean[0] + std[0] * nodes)
        average, slope = (np.stack([sigma, sigma * (1 - sigma)]) @ quadrature) / quadrature.sum()
        assert 80 * (0.6 - average) == pytest.approx(INTERCEPT_PRECISION * mean[0], abs=1e-6)
        np.testing.assert_allclose(std**-2.0, 80 * slope + INTERCEPT_PRECISION, rtol=1e-6)
        np.testing.assert_allclose(model.predict_proba(x)[:, 1], average, rtol=1e-9)
        determined = 80 * slope / (80 * slope + INTERCEPT_PRECISION)
        assert model.effective_dimension_.value == pytest.approx(determined, abs=1e-5)
    assert not model.sample(3).any()


@pytest.mark.parametrize(("largest", "bound"), [(0.1, 6.5e-4), (1.0, 0.0046), (np.inf, 0.0177)])
def test_probabilities_are_within_the_known_error_of_the_probit_approximation(largest, bound):
    nodes, quadrature = np.polynomial.hermite_e.hermegauss(120)
    seen = 0
    for precision in (0.01, 0.3, 10.0, 100.0, 1000.0):
        x, y, _ = PROBLEMS["binary"]
        model = laplace(prior_precision=precision).fit(x, y)
        new = problem(50, 4, 3, seed=7)[0] * np.linspace(0.1, 4, 50)[:, None]
        mean, std = model.logits(new, return_std=True)
        exact = expit(mean[:, None] + std[:, None] * nodes) @ (quadrature / quadrature.sum())
        chosen = std**2 <= largest
        seen += chosen.sum()
        assert (np.abs(model.predict_proba(new)[:, 1] - exact)[chosen] <= bound + 1e-4).all()  # and of the quadrature
    assert seen > 20


@pytest.mark.parametrize("name", PROBLEMS)
def test_sparse_data_give_the_dense_answer(name):
    """Of any form; they are put into that of rows first, which one problem is enough to see."""
    x, y, _ = PROBLEMS[name]
    x = np.where(np.abs(x - 1) > 0.5, x, 0)
    dense = BayesianLogisticRegression().fit(x, y)
    for form in ("csr", "csc", "coo") if name == "binary" else ("csr",):
        sparse = BayesianLogisticRegression().fit(scipy.sparse.csr_array(x).asformat(form), y)
        assert sparse.lambda_ == pytest.approx(dense.lambda_, rel=1e-5)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-5, atol=1e-5 * np.abs(dense.coef_).max())
        for left, right in zip(
            sparse.logits(scipy.sparse.csr_array(x[:9]), return_std=True),
            dense.logits(x[:9], return_std=True),
            strict=True,
        ):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["binary", "multinomial", "wide multinomial"])
@pytest.mark.parametrize("sparse", [False, True])
def test_matrix_free_fits_agree_within_their_errors(name, sparse, monkeypatch):
    x, y, w = PROBLEMS[name]
    exact = laplace(prior_precision=0.5).fit(x, y, sample_weight=w)
    monkeypatch.setattr(logistic, "EXACT_SIZE", 0)
    monkeypatch.setattr(newton, "DENSE_SIZE", 0)
    data = scipy.sparse.csr_array(x) if sparse else x
    free = laplace(prior_precision=0.5).fit(data, y, sample_weight=w)
    np.testing.assert_allclose(free.coef_, exact.coef_, rtol=0, atol=1e-6)
    for ours, truth in (
        (free.log_evidence_, exact.log_evidence_),
        (free.effective_dimension_, exact.effective_dimension_),
    ):
        assert abs(ours.value - truth.value) <= 5 * ours.standard_error + 1e-4 * abs(truth.value)
    mean, std = free.logits(data, return_std=True)
    expected_mean, expected_std = exact.logits(x, return_std=True)
    np.testing.assert_allclose(mean, expected_mean, rtol=0, atol=1e-5)
    ratio = std**2 / expected_std**2  # of relative standard error √(2/32) each, and correlated
    assert np.abs(ratio - 1).max() <= 5 * (2 / 32) ** 0.5
    draws, intercepts = free.sample(32, return_intercept=True)
    functions = x @ draws.transpose(0, 2, 1) + intercepts[:, None, :]
    spread = (functions - mean.reshape(functions.shape[1:])).reshape(32, -1)
    np.testing.assert_allclose((spread**2).mean(0), std.reshape(-1) ** 2, rtol=1e-6)
    with pytest.raises(ValueError, match="holds 32 draws, and 33 were asked for"):
        free.sample(33)


def test_a_matrix_free_fit_tunes_to_the_same_precision(monkeypatch):
    """Where the space holds every direction its sums are exact, so only the width of the search remains."""
    x, y, _ = PROBLEMS["binary"]
    exact = laplace().fit(x, y)
    monkeypatch.setattr(logistic, "EXACT_SIZE", 0)
    free = laplace().fit(x, y)
    assert np.log(free.lambda_) == pytest.approx(np.log(exact.lambda_), abs=0.03)
    assert free.log_evidence_.value == pytest.approx(exact.log_evidence_.value, abs=1e-3)


def test_a_basis_too_large_to_store_is_done_without(monkeypatch):
    x, y, _ = PROBLEMS["wide binary"]
    exact = laplace(prior_precision=0.5).fit(x, y)
    monkeypatch.setattr(logistic, "BASIS_BYTES", 100)
    free = laplace(prior_precision=0.5).fit(x, y)
    assert free.sample(2).shape == (2, 1, 21)
    np.testing.assert_allclose(free.coef_, exact.coef_, rtol=0, atol=1e-6)


def test_a_space_too_large_for_memory_is_refused(monkeypatch):
    x, y, _ = PROBLEMS["multinomial"]
    monkeypatch.setattr(logistic, "EXACT_SIZE", 0)
    monkeypatch.setattr(logistic, "DRAWS", 2)
    monkeypatch.setattr(krylov, "available_bytes", lambda: 100)
    with pytest.raises(MemoryError, match="directions, and more do not fit in memory"):
        laplace(prior_precision=0.01).fit(x, y)


@pytest.mark.parametrize("name", PROBLEMS)
def test_draws_have_the_posterior_covariance(name):
    """With the intercept, and on wide data where most directions have none."""
    x, y, w = PROBLEMS[name]
    model = laplace(prior_precision=0.4).fit(x, y, sample_weight=w)
    expected = reference(x, y, 0.4, w)
    draws, intercepts = model.sample(20_000, return_intercept=True)
    constant = intercepts + draws @ (w @ x / w.sum())
    both = np.concatenate([draws, constant[:, :, None]], axis=2).transpose(2, 1, 0).reshape(-1, 20_000)
    check_covariance(torch.from_numpy(both) - expected.mean[:, None], expected.covariance)
    assert draws.shape == (20_000, *model.coef_.shape)
    if expected.outputs > 1:
        assert np.abs(draws[:50].sum(1)).max() < 1e-12
    np.testing.assert_allclose(model.sample(3), model.sample(5)[:3], rtol=1e-12)
    assert not np.allclose(model.sample(3), model.sample(3, seed=1))


def test_a_large_uncertain_logit_can_mean_a_smaller_probability():
    """Why the order of probabilities is not that of the logits, which one of scikit-learn's checks asks for."""
    x, y, _ = PROBLEMS["binary"]
    model = BayesianLogisticRegression().fit(x, y)
    mean, std = model.logits(x, return_std=True)
    probability = model.predict_proba(x)[:, 1]
    pairs = [(i, j) for i in range(60) for j in range(60) if mean[i] > mean[j] > 0 and probability[i] < probability[j]]
    assert pairs
    assert all(std[i] > std[j] for i, j in pairs)


def separable(classes: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(45) % classes
    return np.random.default_rng(0).normal(size=(45, 2)) * 0.1 + np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])[y], y


@pytest.mark.xfail(raises=ConvergenceWarning, strict=True, reason="the search is slow under priors that wide")
def test_the_best_gaussian_of_separable_classes_under_a_wide_prior_is_found():
    BayesianLogisticRegression(prior_precision=1e-6).fit(*separable(3))


@pytest.mark.filterwarnings("ignore:the best Gaussian was not found")  # see above
@pytest.mark.parametrize("curvature", ["expected", "mode"])
@pytest.mark.parametrize("classes", [2, 3])
def test_separable_data_have_a_finite_answer(classes, curvature):
    x, y = separable(classes)
    for precision in (None, 1e-6):
        model = BayesianLogisticRegression(curvature=curvature, prior_precision=precision).fit(x, y)
        assert model.score(x, y) == 1
        assert np.isfinite(model.coef_).all()
        assert np.isfinite(model.log_evidence_.value)
        far = model.predict_proba(np.array([[100.0, -90.0], [-80.0, 100.0], [70.0, 70.0]]))
        assert np.isfinite(far).all()
    tuned = BayesianLogisticRegression(curvature=curvature).fit(x, y)
    # a point between the classes is uncertain, those of the data are not
    assert tuned.predict_proba([[1.0, 1.0]]).max() < tuned.predict_proba(x).max(1).min()


def test_text_labels_class_imbalance_and_order():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 3))
    rare = x @ [1.0, 0.5, 0.0] + rng.logistic(size=400) > 5
    assert 2 <= rare.sum() <= 12
    model = BayesianLogisticRegression().fit(x, np.where(rare, "rare", "common"))
    assert model.classes_.tolist() == ["common", "rare"]
    # at the mode the residuals sum to the pull of the intercept's prior
    at_mode = laplace().fit(x, rare)
    logits, constant = at_mode.logits(x), at_mode.intercept_[0] + at_mode.coef_[0] @ x.mean(0)
    assert (rare - expit(logits)).sum() == pytest.approx(INTERCEPT_PRECISION * constant, abs=1e-6)
    # and averaged over the best Gaussian those of its own probabilities do
    averaged, constant = model.predict_proba(x)[:, 1], model.intercept_[0] + model.coef_[0] @ x.mean(0)
    assert (rare - averaged).sum() == pytest.approx(INTERCEPT_PRECISION * constant, abs=1e-6)
    assert set(model.predict(x)) <= {"common", "rare"}
    x, y, _ = PROBLEMS["multinomial"]
    names = np.array(["b", "c", "a"])[y]
    named, numbered = laplace().fit(x, names), laplace().fit(x, y)
    np.testing.assert_allclose(named.predict_proba(x), numbered.predict_proba(x)[:, [2, 0, 1]], atol=1e-6)


def test_other_names_of_classes_move_the_best_gaussian_by_less_than_its_points_can_tell():
    """Averages over three classes are by 512 points, which lie otherwise under other names: 5 of their standard errors."""
    x, y, _ = PROBLEMS["multinomial"]
    names = np.array(["b", "c", "a"])[y]
    named, numbered = BayesianLogisticRegression().fit(x, names), BayesianLogisticRegression().fit(x, y)
    one, other = named.predict_proba(x), numbered.predict_proba(x)[:, [2, 0, 1]]
    mean, std = numbered.logits(x, return_std=True)
    rng = np.random.default_rng(0)
    drawn = np.exp(log_softmax(mean[None] + std[None] * rng.normal(size=(512, *mean.shape)), axis=2))
    assert (np.abs(one - other) <= 5 * drawn.std(0)[:, [2, 0, 1]] / 512**0.5).all()


@pytest.mark.parametrize("curvature", ["expected", "mode"])
@pytest.mark.parametrize("name", ["binary", "multinomial"])
def test_weights_count_rows(name, curvature):
    x, y, _ = PROBLEMS[name]
    counts = np.arange(len(y)) % 4
    counts[: len(np.unique(y))] = 1
    counted = BayesianLogisticRegression(curvature=curvature).fit(x, y, sample_weight=counts)
    repeated = BayesianLogisticRegression(curvature=curvature).fit(np.repeat(x, counts, axis=0), np.repeat(y, counts))
    assert counted.lambda_ == pytest.approx(repeated.lambda_, rel=1e-6)
    assert counted.log_evidence_.value == pytest.approx(repeated.log_evidence_.value, abs=1e-8)
    np.testing.assert_allclose(counted.coef_, repeated.coef_, rtol=0, atol=1e-6)


def test_a_class_without_weight_keeps_its_place():
    x, y, _ = PROBLEMS["multinomial"]
    model = BayesianLogisticRegression(prior_precision=1.0).fit(x, y, sample_weight=(y != 2).astype(float))
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.predict_proba(x)[:, 2].max() < 0.1


@pytest.mark.parametrize("curvature", ["expected", "mode"])
def test_constant_columns_and_offsets_change_nothing(curvature):
    x, y, _ = PROBLEMS["binary"]
    base = BayesianLogisticRegression(curvature=curvature).fit(x, y)
    extra = BayesianLogisticRegression(curvature=curvature).fit(np.column_stack([x, np.full(len(x), 7.0)]), y)
    assert extra.coef_[0, -1] == pytest.approx(0, abs=1e-9)
    assert extra.log_evidence_.value == pytest.approx(base.log_evidence_.value, abs=1e-6)
    moved = np.column_stack([x[:4], np.full(4, 7.0)])
    np.testing.assert_allclose(extra.predict_proba(moved), base.predict_proba(x[:4]), rtol=1e-5)
    # centring x + 1e6 leaves an absolute error of eps · 1e6, about 1e-10 of x
    far = BayesianLogisticRegression(curvature=curvature).fit(x + 1e6, y)
    assert far.lambda_ == pytest.approx(base.lambda_, rel=1e-5)
    np.testing.assert_allclose(far.predict_proba(x[:4] + 1e6), base.predict_proba(x[:4]), rtol=1e-5)
    nothing = BayesianLogisticRegression(curvature=curvature).fit(np.full((len(y), 3), 2.0), y)
    assert nothing.lambda_ == np.inf
    np.testing.assert_allclose(nothing.predict_proba([[2.0, 2.0, 2.0]])[0, 1], y.mean(), rtol=1e-2)


def changed(array, index, value):
    array = array.astype(float)
    array[index] = value
    return array


X, Y, _ = PROBLEMS["binary"]


@pytest.mark.parametrize(
    ("x", "y", "weights", "message"),
    [
        (changed(X, (2, 3), np.nan), Y, None, "NaN"),
        (changed(X, (2, 3), np.inf), Y, None, "infinity"),
        (X, changed(Y, 4, np.nan), None, "NaN"),
        (X, np.zeros(60), None, r"y holds 1 class\(es\) with data of positive weight, \[0.0\]: .* needs at least 2"),
        (X, Y, (Y == 1).astype(float), r"y holds 1 class\(es\) with data of positive weight, \[1\]"),
        (X, Y, np.zeros(60), "at least one non-zero"),
        (X, Y, -np.ones(60), "Negative values"),
        (X, Y + 0.5 * X[:, 0], None, "Unknown label type"),
        (X, Y[:-1], None, "inconsistent numbers of samples"),
        (X[0], Y, None, "Expected 2D array"),
        (X * 1e160, Y, None, "its square leaves the range"),
    ],
)
def test_bad_input_gets_a_clear_error(x, y, weights, message):
    with pytest.raises(ValueError, match=message):
        BayesianLogisticRegression().fit(x, y, sample_weight=weights)


@pytest.mark.parametrize(
    "options", [{"prior_precision": 0.0}, {"prior_precision": -1.0}, {"tol": 0.0}, {"max_iter": 0}]
)
def test_bad_parameters_get_a_clear_error(options):
    with pytest.raises(ValueError, match="must be"):
        BayesianLogisticRegression(**options).fit(X, Y)


def test_priors_too_wide_for_the_arithmetic_are_refused_when_given_and_passed_over_when_tuned():
    x = np.column_stack([X, X @ [1.0, 2.0, -1.0, 0.5], X.sum(1)])
    with pytest.raises(FloatingPointError, match="Hessian of 6 directions is numerically singular"):
        laplace(prior_precision=1e-25, fit_intercept=False).fit(x, Y)
    with pytest.warns(ConvergenceWarning, match="the best Gaussian was not found"):
        BayesianLogisticRegression(prior_precision=1e-25, fit_intercept=False).fit(x, Y)
    for model in (laplace(), BayesianLogisticRegression()):
        assert 0 < model.fit(x, Y).lambda_ < np.inf


@pytest.mark.parametrize("curvature", ["expected", "mode"])
def test_an_interrupted_fit_leaves_the_estimator_as_it_was(curvature, monkeypatch):
    fresh = BayesianLogisticRegression(curvature=curvature)
    model = BayesianLogisticRegression(curvature=curvature).fit(X, Y)
    before = dict(vars(model))

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(newton_steps, "mode", interrupt)
    monkeypatch.setattr(Search, "ascend", interrupt)
    for estimator in (model, fresh):
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(X[:, :3], Y)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)
    assert not hasattr(fresh, "n_features_in_")


def test_it_works_in_pipelines_searches_and_with_pandas():
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = BayesianLogisticRegression().fit(frame, pd.Series(np.where(Y == 1, "yes", "no")))
    assert list(model.feature_names_in_) == list("abcd")
    np.testing.assert_allclose(
        model.predict_proba(frame[:3]), BayesianLogisticRegression().fit(X, Y).predict_proba(X[:3])
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))
    pipeline = make_pipeline(StandardScaler(), BayesianLogisticRegression())
    grid = {"bayesianlogisticregression__prior_precision": [None, 100.0]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, Y)
    assert search.best_score_ > -np.log(2)
    assert pipeline.fit(X, Y).predict_proba(X[:3]).shape == (3, 2)


def test_a_fitted_model_survives_pickling():
    for name in ("multinomial", "wide binary"):
        x, y, _ = PROBLEMS[name]
        model = BayesianLogisticRegression().fit(x, y)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict_proba(x), model.predict_proba(x))
        assert again.log_evidence_ == model.log_evidence_


def test_float32_stays_float32_and_is_computed_in_double():
    single = X.astype(np.float32)
    model, double = (
        BayesianLogisticRegression().fit(single, Y),
        BayesianLogisticRegression().fit(single.astype(float), Y),
    )
    assert model.coef_.dtype == model.predict_proba(single).dtype == np.float32
    assert model.lambda_ == double.lambda_
    assert np.array_equal(model.coef_, double.coef_.astype(np.float32))


def test_verbose_fits_report_only_to_a_terminal(capsys):
    BayesianLogisticRegression(verbose=True).fit(X, Y)
    assert capsys.readouterr().out == ""


def held_out_nll(model, x, y):
    return -model.predict_log_proba(x)[np.arange(len(y)), y]


def test_breast_cancer():
    """Five folds, pooled: 0.081 nats against 0.074 of scikit-learn's default, a difference of 0.007 ± 0.003.

    Its penalty of 1 happens to suit these data: even exact draws from the posterior (by Hamiltonian Monte Carlo, at
    the tuned precision or at 1) do not beat it on most splits. What is asked here is to stay close to it.
    """
    x, y = load_breast_cancer(return_X_y=True)
    losses = []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        scaler = StandardScaler().fit(x[train])
        inputs, new = scaler.transform(x[train]), scaler.transform(x[test])
        models = BayesianLogisticRegression().fit(inputs, y[train]), LogisticRegression().fit(inputs, y[train])
        losses.append([held_out_nll(model, new, y[test]) for model in models])
    ours, theirs = np.concatenate(losses, axis=1)
    difference = ours - theirs
    assert ours.mean() < 0.09
    assert difference.mean() <= 3 * difference.std() / len(difference) ** 0.5


@pytest.mark.slow
def test_digits():
    """650 weights in a few seconds. At the mode the held-out NLL is scikit-learn's; averaged it is 0.34 against 0.11.

    The features separate these classes, so Laplace's approximation is far too wide; exact draws from the same posterior
    have 0.13.
    """
    x, y = load_digits(return_X_y=True)
    x, new, y, targets = train_test_split(x, y, random_state=0, stratify=y)
    scaler = StandardScaler().fit(x)
    x, new = scaler.transform(x), scaler.transform(new)
    model = laplace().fit(x, y)
    theirs = LogisticRegression(C=1 / model.lambda_, max_iter=2000).fit(x, y)
    assert model.coef_.shape == (10, 64)
    assert model.score(new, targets) > 0.95
    at_mode = -log_softmax(model.logits(new), 1)[np.arange(len(targets)), targets].mean()
    assert at_mode == pytest.approx(held_out_nll(theirs, new, targets).mean(), abs=2e-3)
    assert at_mode < held_out_nll(model, new, targets).mean() < 0.36
