"""Bayesian logistic regression, binary and multinomial, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log, pi
from numbers import Integral, Real
from typing import Any, final

import numpy as np
import scipy.optimize
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapwing.bayes.inference import EXACT_SIZE
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Curved
from lapwing.bayes.linear_model import check_finite
from lapwing.bayes.modes.loss import Loss, PerOutput
from lapwing.bayes.modes.newton import Mode, Rooted, mode
from lapwing.bayes.noise import DATA, PRIOR, SAMPLE, Noise
from lapwing.bayes.statistics import Ritz, from_space
from lapwing.linalg import krylov
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, as_operator, row_blocks
from lapwing.linalg.progress import Report, reporter
from lapwing.linalg.solvers import NotConverged
from lapwing.linalg.spectral import cutoff
from lapwing.linear.fitting import centre, fitted_whole, row_weights

INTERCEPT_STD = 10.0  # of the logit at the mean of the features
DRAWS = 32  # of a matrix-free fit
KRYLOV_RTOL = 1e-2
BASIS_BYTES = 1e9  # a basis of the rows of wide features is stored up to this size
STEP = 2.0  # of the scan over the log precision
LOWEST, HIGHEST = -14, 8  # steps from the start of the scan: prior logits of std 2e6 and 7e-4


@final
@dataclass(frozen=True, eq=False)
class WithConstant(LinearOperator):
    """Features and after them a column of ones."""

    inner: LinearOperator  # (n, d)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.inner.shape[0], self.inner.shape[1] + 1)

    @property
    def like(self) -> Tensor:
        return self.inner.like

    def matmat(self, x: Tensor) -> Tensor:
        return self.inner.matmat(x[:-1]) + x[-1]

    def rmatmat(self, y: Tensor) -> Tensor:
        return torch.cat([self.inner.rmatmat(y), y.sum(0, keepdim=True)])

    def rows(self, start: int, stop: int) -> Tensor:
        inner = self.inner.rows(start, stop)
        return torch.cat([inner, torch.ones_like(inner[:, :1])], dim=1)

    def row_squares(self, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return self.inner.row_squares() + 1
        return self.inner.row_squares(weights[:-1]) + weights[-1]

    def column_squares(self, weights: Tensor | None = None) -> Tensor:
        total = self.like.new_tensor([self.shape[0]]) if weights is None else weights.sum().reshape(1).to(self.like)
        return torch.cat([self.inner.column_squares(weights), total])


@final
@dataclass(frozen=True, eq=False)
class _Problem:
    """Everything but the prior precision."""

    features: LinearOperator  # (n, q), centred where there is an intercept
    likelihood: Curved
    targets: Tensor  # (n,)
    weights: Tensor  # (n,)
    outputs: int  # one logit of two classes, or one a class
    intercept: bool
    block: krylov.Block | None  # the noise of a matrix-free fit; None where it is exact
    tol: float
    max_steps: int
    report: Report

    def std(self, precision: float) -> Tensor:  # (q,), or (q + 1,) with the intercept last
        """The prior standard deviations of the weights of one output."""
        slopes = torch.full((self.features.shape[1],), precision**-0.5, dtype=torch.float64)
        return torch.cat([slopes, slopes.new_tensor([INTERCEPT_STD])]) if self.intercept else slopes

    def loss(self, precision: float) -> Loss:
        """The loss over whitened weights."""
        features = _design(self.features, self.intercept) @ Diagonal(self.std(precision))
        features = PerOutput(features, self.outputs) if self.outputs > 1 else features
        return Loss(features, self.likelihood, self.targets, self.weights)


@final
@dataclass(frozen=True, eq=False)
class _Laplace:
    """The Gaussian at the mode at one prior precision; M is the Hessian of −log p over whitened weights."""

    precision: float
    std: Tensor  # (p,), of the prior
    mode: Mode
    log_det: Estimate  # log det(I + M)
    determined: Estimate  # tr M (I + M)⁻¹
    root: Tensor  # (p, p), W with W Wᵀ = (I + M)⁻¹; or (p, draws), where that holds on average over draws

    @property
    def log_evidence(self) -> Estimate:
        """log p(y | θ⋆) − ½‖z⋆‖² − ½ log det(I + M)."""
        energy = self.mode.log_prob - 0.5 * float(self.mode.weights.square().sum())
        return Estimate(energy - 0.5 * self.log_det.value, 0.5 * self.log_det.standard_error)


def _laplace(problem: _Problem, precision: float, near: _Laplace | None) -> _Laplace:
    """The approximation at a precision, its mode started from that of another."""
    loss, std = problem.loss(precision), problem.std(precision).repeat_interleave(problem.outputs)
    start = preconditioner = None
    if near is not None:
        start = torch.where(std > 0, near.std * near.mode.weights / torch.where(std > 0, std, 1), 0)
        preconditioner = Rooted(near.root) if problem.block is None else None
    found = mode(
        loss, start=start, preconditioner=preconditioner, tol=problem.tol, max_steps=problem.max_steps
    ).checked()
    if problem.block is None:
        return _Laplace(precision, std, found, *_exact(loss, found))
    return _Laplace(precision, std, found, *_sampled(loss, found, problem.block, problem.report))


def _exact(loss: Loss, found: Mode) -> tuple[Estimate, Estimate, Tensor]:
    """The log-determinant, the effective dimension and a root of the covariance."""
    factor = loss.factor(found.outputs) if found.factor is None else found.factor
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)
    log_det, determined = 2 * factor.diagonal().log().sum(), len(factor) - inverse.square().sum()
    return Estimate(float(log_det)), Estimate(float(determined)), inverse.mT


def _sampled(loss: Loss, found: Mode, block: krylov.Block, report: Report) -> tuple[Estimate, Estimate, Tensor]:
    """The same from the shared Krylov space at the mode."""
    root, diagonal = loss.root(found.outputs), loss.likelihood.hessian_diagonal(found.outputs, loss.weights)
    space = krylov.build(root, block, alpha=1.0, rtol=KRYLOV_RTOL, report=report)
    if space.limited_by == "memory":
        raise MemoryError(
            f"the Krylov space of this fit holds {len(space.ritz):,} directions, and more do not fit in memory: "
            "use a larger prior_precision, or fewer features"
        )
    trace = float(loss.features.row_squares() @ diagonal.reshape(-1))
    statistics = from_space(space, Ritz(space, root, KRYLOV_RTOL, trace), count=0.0, log_weight=0.0)
    draws = krylov.draws_and_mean(space, alpha=1.0, operator=root)[0]
    determined = statistics.trace_of(lambda k: k / (1 + k))
    return statistics.trace_of(torch.log1p), determined, draws / draws.shape[1] ** 0.5


def _tuned(problem: _Problem) -> tuple[_Laplace, int]:
    """The approximation at the precision of largest evidence, and the Newton steps of the search.

    A scan downwards from priors too narrow, then Brent's method between the neighbours of the best. A precision of
    infinity means that the data are likelier without any features.
    """
    scale = float(problem.weights @ problem.features.row_squares()) / float(problem.weights.sum())
    if not scale > 0:
        return (only := _laplace(problem, inf, None)), only.mode.steps
    scores: dict[float, float] = {}
    near: _Laplace | None = None
    steps = 0

    def score(x: float) -> float:
        nonlocal near, steps
        try:
            near = _laplace(problem, exp(x), near)
        except (FloatingPointError, NotConverged):  # a prior this wide cannot be worked with
            return scores.setdefault(x, -inf)
        steps += near.mode.steps
        scores[x] = near.log_evidence.value
        problem.report(f"prior precision {near.precision:.3g}: log evidence {scores[x]:.6g}")
        return scores[x]

    score(inf)
    best = _scan(score, log(scale / 4))
    if scores[best] > scores[inf] and min(scores) < best < max(x for x in scores if x < inf):
        width = 2e-2 if problem.block else 1e-3
        scipy.optimize.minimize_scalar(
            lambda x: -score(x), bounds=(best - STEP, best + STEP), method="bounded", options={"xatol": width}
        )
    top = _laplace(problem, exp(max(scores, key=scores.__getitem__)), near)
    return top, steps + top.mode.steps


def _scan(score: Callable[[float], float], middle: float) -> float:
    """The best of a grid of log precisions, extended as long as that lies at its end."""
    grid = {k: score(middle + STEP * k) for k in (1, 0, -1)}
    while (best := max(grid, key=grid.__getitem__)) in (min(grid), max(grid)) and LOWEST < best < HIGHEST:
        further = best - 1 if best == min(grid) else best + 1
        grid[further] = score(middle + STEP * further)
    return middle + STEP * best


@final
@dataclass(frozen=True, eq=False)
class _Posterior:
    """What prediction needs of a fit; weights of several outputs sum to zero, and those of features come first."""

    precision: float
    basis: Tensor | None  # (d, q), the directions of weight space that have data; None where all have
    mean: Tensor  # (q, c), or (q + 1, c) with an intercept
    root: Tensor  # (q or q + 1, c, k), W with W Wᵀ the covariance
    roots: Tensor  # (c, q or q + 1, smaller k), the same of every output for itself
    intercept: bool
    exact: bool

    def slopes(self, weights: Tensor) -> Tensor:  # (q or q + 1, ...) -> (d, ...)
        """The weights of features, of given weights."""
        slopes = weights[: len(weights) - self.intercept]
        if self.basis is None:
            return slopes
        return (self.basis @ slopes.reshape(len(slopes), -1)).reshape(-1, *slopes.shape[1:])

    def constant(self, weights: Tensor) -> Tensor:  # (q or q + 1, ...) -> (...)
        """The logits at the centre of the features, zero without an intercept."""
        return weights[len(weights) - self.intercept :].sum(0)

    def variances(self, features: LinearOperator) -> Tensor:  # (n, c)
        """The variance of every logit at centred features."""
        inside = features if self.basis is None else Dense(features @ self.basis)
        design = _design(inside, self.intercept)
        if not self.exact:  # products only: rows may be very long
            return torch.stack([(design @ root).square().sum(1) for root in self.roots], dim=1)
        parts = [torch.stack([(rows @ root).square().sum(1) for root in self.roots], 1) for rows in row_blocks(design)]
        if self.basis is None:
            return torch.cat(parts)
        outside = (features.row_squares() - inside.row_squares()).clamp_min(0)[:, None]
        return torch.cat(parts) + outside * (_share(len(self.roots)) / self.precision)

    def draws(self, n: int, noise: Noise) -> tuple[Tensor, Tensor]:  # (d, c, n), (c, n)
        """Draws of the weights of features, and of the logits at their centre."""
        _, c, k = self.root.shape
        if not self.exact and n > k:
            raise ValueError(f"a matrix-free fit of this size holds {k} draws, and {n} were asked for")
        normals = noise.rows(0, k, n) if self.exact else k**0.5 * torch.eye(k, n, dtype=torch.float64)
        weights = self.mean[:, :, None] + self.root @ normals
        slopes = self.slopes(weights)
        if self.basis is not None:  # where there are no data, the prior
            d = len(self.basis)
            free = _centred(noise.rows(k, k + d * c, n).reshape(d, c, n)).reshape(d, c * n)
            free = free - self.basis @ (self.basis.mT @ free)
            slopes = slopes + self.precision**-0.5 * free.reshape(d, c, n)
        return slopes, self.constant(weights)


def _posterior(problem: _Problem, found: _Laplace, basis: Tensor | None) -> _Posterior:
    std, c = problem.std(found.precision), problem.outputs
    mean = std[:, None] * found.mode.weights.reshape(-1, c)
    root = std[:, None, None] * _centred(found.root.reshape(len(std), c, -1))
    roots = root.permute(1, 0, 2)
    if roots.shape[2] > roots.shape[1]:
        roots = torch.linalg.qr(roots.mT, mode="r")[1].mT
    return _Posterior(found.precision, basis, mean, root, roots, problem.intercept, problem.block is None)


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression with a posterior over its coefficients, the prior's width found from the data.

    Coefficients have the prior N(0, 1/λ), where λ is `prior_precision` or, if that is None, the maximum of the evidence
    under Laplace's approximation at the mode. The mode is that of `sklearn.linear_model.LogisticRegression(C=1/λ)`,
    but that the intercept has a prior too: a standard deviation of 10 for the logit at the mean of the features. As
    with any penalty, features should have comparable scales.

    Two classes have one logit; more have one each, and a softmax. What these share changes no probability, so the
    logits and coefficients of a multinomial model, draws included, sum to zero over the classes.

    Probabilities are averaged over the posterior by MacKay's probit approximation: logits are divided by
    √(1 + π/8 · variance), so that they need not be in the order of the logits. Where features separate the classes,
    Laplace's approximation is wider than the posterior and these probabilities are too cautious; `logits`
    has the logits without it.

    Fits of up to 1,500 weights, or as many rows times classes, are exact. Larger ones use matrix products only and take
    variances from 32 draws; `log_evidence_` and `effective_dimension_` then carry standard errors. A `lambda_` of
    infinity says that the data are likelier without the features. `tol` bounds the gap of the loss to its minimum, in
    nats; `n_iter_` counts the Newton steps of the whole search.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesianLogisticRegression().fit(X, y)
    >>> model.predict_proba(X[[0, 60, 120]]).round(2)
    array([[0.87, 0.13, 0.  ],
           [0.02, 0.97, 0.  ],
           [0.  , 0.08, 0.92]])
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "prior_precision": [None, Interval(Real, 0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "verbose": ["verbose"],
    }

    def __init__(
        self, *, prior_precision: float | None = None, fit_intercept: bool = True, tol: float = 1e-14,
        max_iter: int = 100, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.prior_precision = prior_precision
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianLogisticRegression:
        """Fit coefficients and prior; an interrupted fit leaves the estimator as it was.

        X may be dense or sparse and is not changed. `sample_weight` counts each row that often.
        """
        return fitted_whole(self, X, y, sample_weight)

    def logits(self, X: Any, return_std: bool = False) -> Any:
        """The logits at the mode, and with `return_std` their standard deviations: (n,), or (n, classes)."""
        mean, variance = self._logits(X, return_std)
        return (mean, np.sqrt(variance)) if return_std else mean

    def decision_function(self, X: Any) -> np.ndarray:
        """The logits of `predict_proba`: those at the mode, drawn towards zero where they are uncertain."""
        mean, variance = self._logits(X, True)
        return mean / np.sqrt(1 + pi / 8 * variance)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`, without loss for small probabilities."""
        logits = torch.from_numpy(self.decision_function(X))
        logits = torch.stack([-logits / 2, logits / 2], dim=1) if logits.ndim == 1 else logits
        return logits.log_softmax(1).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, averaged over the posterior: (n, classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The class of largest probability."""
        largest = self.predict_log_proba(X).argmax(1)
        return self.classes_[largest]

    def sample(self, n: int = 1, seed: int = 0, return_intercept: bool = False) -> Any:
        """Posterior draws in the shape of `coef_`: (n, 1 or classes, features); and of `intercept_`, if asked for."""
        check_is_fitted(self)
        slopes, constant = self._posterior.draws(n, Noise(seed, SAMPLE))
        coefficients = slopes.permute(2, 1, 0).numpy()
        intercepts = constant.mT.numpy() - coefficients @ self._offset
        return (coefficients, intercepts) if return_intercept else coefficients

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        weights = torch.from_numpy(row_weights(X, sample_weight))
        labels = torch.from_numpy(numbers.reshape(-1))
        self._check_classes(labels, weights)
        features = as_operator(X.astype(np.float64, copy=False))
        check_finite("features", features)
        self._offset = np.zeros(X.shape[1])
        if self.fit_intercept:
            self._offset = ((features.T @ weights) / weights.sum()).numpy()
        problem, basis = self._problem(centre(features, torch.from_numpy(self._offset)), labels, weights)
        found, steps = self._solve(problem)
        problem.report("")
        self._set_attributes(_posterior(problem, found, basis), found, steps, X.dtype)

    def _check_classes(self, labels: Tensor, weights: Tensor) -> None:
        present = torch.zeros(len(self.classes_), dtype=torch.float64).index_add_(0, labels, weights) > 0
        if int(present.sum()) < 2:
            raise ValueError(
                f"y holds {int(present.sum())} class(es) with data of positive weight, "
                f"{self.classes_[present.numpy()].tolist()}: a classifier needs at least 2"
            )

    def _problem(self, features: LinearOperator, labels: Tensor, weights: Tensor) -> tuple[_Problem, Tensor | None]:
        """The problem in the directions that have data, where these are fewer than features."""
        (n, d), classes = features.shape, len(self.classes_)
        likelihood: Curved = Bernoulli() if classes == 2 else Categorical()
        outputs, targets = (1, labels.double()) if classes == 2 else (classes, labels)
        basis, block, d_all = None, None, d + self.fit_intercept
        if min(n, d) * outputs > EXACT_SIZE or (d > n and 8.0 * n * d > BASIS_BYTES):
            noise = Noise(0, PRIOR).rows(0, d_all * outputs, DRAWS), Noise(0, DATA).rows(0, n * outputs, DRAWS)
            block = krylov.Block(*noise, torch.zeros_like(noise[1][:, :1]))  # a space has targets; here none matter
        elif d > n:
            basis = _span(features)
            features = Dense(features @ basis)
        return _Problem(
            features, likelihood, targets, weights, outputs, self.fit_intercept, block, self.tol, self.max_iter,
            reporter(None if self.verbose else False),
        ), basis  # fmt: skip

    def _solve(self, problem: _Problem) -> tuple[_Laplace, int]:
        if self.prior_precision is None:
            return _tuned(problem)
        found = _laplace(problem, float(self.prior_precision), None)
        return found, found.mode.steps

    def _set_attributes(self, posterior: _Posterior, found: _Laplace, steps: int, dtype: Any) -> None:
        self._posterior, self._slopes = posterior, posterior.slopes(posterior.mean)
        coef = self._slopes.mT.numpy()
        self.coef_ = coef.astype(dtype)
        self.intercept_ = (posterior.constant(posterior.mean).numpy() - coef @ self._offset).astype(dtype)
        self.lambda_ = found.precision
        self.log_evidence_ = found.log_evidence
        self.effective_dimension_ = found.determined
        self.n_iter_ = np.array([max(1, steps)], dtype=np.int32)

    def _logits(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        features = centre(as_operator(X.astype(np.float64, copy=False)), torch.from_numpy(self._offset))
        mean = features @ self._slopes + self._posterior.constant(self._posterior.mean)
        variance = self._posterior.variances(features) if with_variance else torch.zeros_like(mean)
        if len(self.classes_) == 2:
            mean, variance = mean[:, 0], variance[:, 0]
        dtype = self.coef_.dtype
        return mean.numpy().astype(dtype, copy=False), variance.numpy().astype(dtype, copy=False)


def _design(features: LinearOperator, intercept: bool) -> LinearOperator:
    return WithConstant(features) if intercept else features


def _span(features: LinearOperator) -> Tensor:  # (d, rank)
    """An orthonormal basis of the rows."""
    products = torch.cat([features @ rows.mT for rows in row_blocks(features)], dim=1)
    values, left = torch.linalg.eigh(products)
    kept = values > cutoff(values, features.shape[1])
    return features.T @ left[:, kept] / values[kept].sqrt()


def _centred(values: Tensor) -> Tensor:  # (q, c, k)
    """Values without what several outputs share."""
    return values if values.shape[1] == 1 else values - values.mean(1, keepdim=True)


def _share(outputs: int) -> float:
    """The variance that centring leaves of independent outputs."""
    return 1.0 if outputs == 1 else 1 - 1 / outputs
