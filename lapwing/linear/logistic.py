"""Bayesian logistic regression, binary and multinomial, as a scikit-learn estimator."""

from __future__ import annotations

from math import pi
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Curved
from lapwing.bayes.linear_model import check_finite
from lapwing.bayes.noise import DATA, PRIOR, SAMPLE, Noise
from lapwing.bayes.solving.choosing import EXACT_SIZE
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense, LinearOperator, as_operator, row_blocks
from lapwing.linalg.progress import reporter
from lapwing.linalg.spectral import cutoff
from lapwing.linear.fitting import centre, fitted_whole, row_weights
from lapwing.linear.laplace import Laplace, Posterior, Problem, laplace, posterior_of, tuned

DRAWS = 32  # of a matrix-free fit
BASIS_BYTES = 1e9  # a basis of the rows of wide features is stored up to this size


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
        self._set_attributes(posterior_of(problem, found, basis), found, steps, X.dtype)

    def _check_classes(self, labels: Tensor, weights: Tensor) -> None:
        present = torch.zeros(len(self.classes_), dtype=torch.float64).index_add_(0, labels, weights) > 0
        if int(present.sum()) < 2:
            raise ValueError(
                f"y holds {int(present.sum())} class(es) with data of positive weight, "
                f"{self.classes_[present.numpy()].tolist()}: a classifier needs at least 2"
            )

    def _problem(self, features: LinearOperator, labels: Tensor, weights: Tensor) -> tuple[Problem, Tensor | None]:
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
        return Problem(
            features, likelihood, targets, weights, outputs, self.fit_intercept, block, self.tol, self.max_iter,
            reporter(None if self.verbose else False),
        ), basis  # fmt: skip

    def _solve(self, problem: Problem) -> tuple[Laplace, int]:
        if self.prior_precision is None:
            return tuned(problem)
        found = laplace(problem, float(self.prior_precision), None)
        return found, found.mode.steps

    def _set_attributes(self, posterior: Posterior, found: Laplace, steps: int, dtype: Any) -> None:
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


def _span(features: LinearOperator) -> Tensor:  # (d, rank)
    """An orthonormal basis of the rows."""
    products = torch.cat([features @ rows.mT for rows in row_blocks(features)], dim=1)
    values, left = torch.linalg.eigh(products)
    kept = values > cutoff(values, features.shape[1])
    return features.T @ left[:, kept] / values[kept].sqrt()
