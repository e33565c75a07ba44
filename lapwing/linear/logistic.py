"""Bayesian logistic regression, binary and multinomial, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import pi
from numbers import Integral, Real
from typing import Any, Literal, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapwing.bayes.fits.bound_search import ENDS_SIZE
from lapwing.bayes.fits.laplace import Laplace
from lapwing.bayes.fits.loss import PerOutput
from lapwing.bayes.fits.newton import Mode, NewtonSteps
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Likelihood, Spread
from lapwing.bayes.linear_model import LinearModel, check_finite
from lapwing.bayes.methods import Exact, Krylov, Method
from lapwing.bayes.methods.choosing import EXACT_SIZE
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import Isotropic, PerGroup, Prior
from lapwing.linalg.operators import BLOCK_ELEMENTS, Dense, LinearOperator, as_operator, row_blocks
from lapwing.linalg.spectral import cutoff
from lapwing.linear.designs import WithConstant
from lapwing.linear.fitting import centre, fitted_whole, row_weights

DRAWS = 32  # of a matrix-free fit
BASIS_BYTES = 1e9  # a basis of the rows of wide features is stored up to this size
ENOUGH = 1e-2  # nats that one more step would gain
INTERCEPT_STD = 10.0  # of the logit at the mean of the features


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression with a posterior over its coefficients, the prior's width found from the data.

    Coefficients have the prior N(0, 1/λ), where λ is `prior_precision` or, if that is None, the one with the largest
    evidence. The intercept has a prior too: a standard deviation of 10 for the logit at the mean of the features. As
    with any penalty, features should have comparable scales.

    With curvature="expected" the posterior is the Gaussian nearest to the true one (variational inference), and
    `log_evidence_` a lower bound. With curvature="mode" it is Laplace's approximation at the mode, which is that of
    `sklearn.linear_model.LogisticRegression(C=1/λ)`; where features separate the classes it is wider than the true
    posterior, and its probabilities are too cautious.

    Two classes have one logit; more have one each, and a softmax. What these share changes no probability, so the
    logits and coefficients of a multinomial model, draws included, sum to zero over the classes.

    Probabilities are averaged over the posterior: by quadrature, for several classes over many draws; for Laplace's by
    MacKay's probit approximation, logits divided by √(1 + π/8 · variance). `logits` has the mean logits themselves.

    Fits of up to 1,500 weights, or as many rows times classes, are dense. Larger ones use matrix products only: they
    are Laplace's approximation, `curvature_` says so, and take variances from 32 draws; `log_evidence_` and
    `effective_dimension_` then carry standard errors. A `lambda_` of infinity says that the data are likelier without
    the features. `tol` bounds what one more step would gain, in nats; None is as much as round-off allows, and 1e-2 for
    large fits of more than two classes. Where the best Gaussian was not found in `max_iter` steps a ConvergenceWarning
    says so, with None if one more would gain 1e-2 nats. `n_iter_` counts the steps of the search.

    Parameters
    ----------
    prior_precision : float, optional
        Precision of the coefficients. Tuned by the marginal likelihood by default.
    fit_intercept : bool
        Whether to fit an intercept.
    curvature : "expected" or "mode"
        Gaussian variational inference, or Laplace's approximation.
    tol : float, optional
        Tolerance of the search.
    max_iter : int
        Largest number of iterations.
    verbose : bool
        Whether to show progress.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesianLogisticRegression().fit(X, y)
    >>> model.predict_proba(X[[0, 77, 133]]).round(1)
    array([[1. , 0. , 0. ],
           [0. , 0.6, 0.4],
           [0. , 0.6, 0.4]])
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "prior_precision": [None, Interval(Real, 0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "curvature": [StrOptions({"expected", "mode"})],
        "tol": [None, Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "verbose": ["verbose"],
    }

    def __init__(
        self, *, prior_precision: float | None = None, fit_intercept: bool = True,
        curvature: Literal["expected", "mode"] = "expected", tol: float | None = None, max_iter: int = 100,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        self.prior_precision = prior_precision
        self.fit_intercept = fit_intercept
        self.curvature = curvature
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianLogisticRegression:
        """Fit coefficients and prior; an interrupted fit leaves the estimator as it was.

        X may be dense or sparse and is not changed. `sample_weight` counts each row that often.

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.
        y : array
            Class labels.
        sample_weight : array, optional
            How often each row counts.

        Returns
        -------
        BayesianLogisticRegression
            This estimator.

        Raises
        ------
        ValueError
            If X or y hold what cannot be used: shapes that do not fit, NaN or infinity.
        """
        return fitted_whole(self, X, y, sample_weight)

    def logits(self, X: Any, return_std: bool = False) -> Any:
        """The mean logits, and with `return_std` their standard deviations: (n,), or (n, classes).

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.
        return_std : bool
            Whether to return standard deviations too.

        Returns
        -------
        array, or tuple of array
            Means, and with `return_std` standard deviations.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        mean, variance = self._logits(X, return_std)
        return (mean, np.sqrt(variance)) if return_std else mean

    def decision_function(self, X: Any) -> np.ndarray:
        """The logits of `predict_proba`: the mean ones, drawn towards zero where they are uncertain.

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.

        Returns
        -------
        array
            (n,) for two classes, or (n, classes).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        check_is_fitted(self)
        if self.curvature_ == "expected":
            return self._averaged(X)
        mean, variance = self._logits(X, True)
        return mean / np.sqrt(1 + pi / 8 * variance)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`, without loss for small probabilities.

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.

        Returns
        -------
        array
            (n, classes).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        logits = torch.from_numpy(self.decision_function(X))
        logits = torch.stack([-logits / 2, logits / 2], dim=1) if logits.ndim == 1 else logits
        return logits.log_softmax(1).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, averaged over the posterior: (n, classes).

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.

        Returns
        -------
        array
            (n, classes).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The class of largest probability.

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.

        Returns
        -------
        array
            Class labels, (n,).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        largest = self.predict_log_proba(X).argmax(1)
        return self.classes_[largest]

    def sample(self, n: int = 1, seed: int = 0, return_intercept: bool = False) -> Any:
        """Posterior draws in the shape of `coef_`: (n, 1 or classes, features); and of `intercept_`, if asked for.

        Parameters
        ----------
        n : int
            Number of draws.
        seed : int
            Of the draws.
        return_intercept : bool
            Whether to return draws of the intercept too.

        Returns
        -------
        array, or tuple of array
            Draws of the coefficients, and of the intercept if asked for.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the fit holds fewer draws.
        """
        check_is_fitted(self)
        slopes, constant = self._weights.draws(n, Noise(seed, SAMPLE))
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
        centred = centre(features, torch.from_numpy(self._offset))
        basis = self._basis(centred)
        posterior = self._solve(centred if basis is None else Dense(centred @ basis), labels, weights)
        self._set_attributes(posterior, basis, X.dtype)

    def _check_classes(self, labels: Tensor, weights: Tensor) -> None:
        present = torch.zeros(len(self.classes_), dtype=torch.float64).index_add_(0, labels, weights) > 0
        if int(present.sum()) < 2:
            raise ValueError(
                f"y holds {int(present.sum())} class(es) with data of positive weight, "
                f"{self.classes_[present.numpy()].tolist()}: a classifier needs at least 2"
            )

    @property
    def _outputs(self) -> int:
        """One logit of two classes, or one a class."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def _is_matrix_free(self, shape: tuple[int, int]) -> bool:
        n, d = shape
        return min(n, d) * self._outputs > EXACT_SIZE or (d > n and 8.0 * n * d > BASIS_BYTES)

    def _basis(self, features: LinearOperator) -> Tensor | None:
        """The directions of weight space that have data, where these are fewer than features."""
        n, d = features.shape
        return None if d <= n or self._is_matrix_free((n, d)) else span(features)

    def _solve(self, features: LinearOperator, labels: Tensor, weights: Tensor) -> Posterior:
        design = WithConstant(features) if self.fit_intercept else features
        likelihood: Likelihood = Categorical()
        if self._outputs == 1:
            likelihood, labels = Bernoulli(), labels.double()
        else:
            design = PerOutput(design, self._outputs)
        model = LinearModel(design, labels, likelihood, weights=weights)
        matrix_free = self._is_matrix_free(features.shape)
        self.curvature_ = "mode" if matrix_free else self.curvature
        steps = NewtonSteps(self._tolerance(design.shape), self.max_iter)
        method: Method = Krylov(newton=steps) if matrix_free else Exact(newton=steps)
        posterior = infer(
            model, prior=self._prior(design.shape[1]), method=method, draws=DRAWS if matrix_free else 0,
            progress=None if self.verbose else False, curvature=self.curvature_,
        )  # fmt: skip
        if posterior.gaussian.is_cut_short:
            raise MemoryError(
                f"the Krylov space of this fit holds {posterior.diagnostics.directions:,} directions, and more do not "
                "fit in memory: use a larger prior_precision, or fewer features"
            )
        if self.curvature_ == "mode":
            _found_mode(posterior).checked()
        gap = posterior.diagnostics.bound_gap or 0.0
        if not posterior.diagnostics.converged and (self.tol or gap > ENOUGH):
            warnings.warn(
                f"the best Gaussian was not found in {self.max_iter} steps: one more would gain {gap:.1e} nats; "
                "allow more with max_iter, or a larger tol",
                ConvergenceWarning, stacklevel=2,
            )  # fmt: skip
        return posterior

    def _tolerance(self, shape: tuple[int, int]) -> float:
        """In nats: as close as round-off allows, unless averages over points would take long."""
        if self.tol is not None:
            return self.tol
        quick = self.curvature_ == "mode" or self._outputs == 1 or shape[0] * shape[1] ** 2 <= ENDS_SIZE
        return (1e-14 if self.curvature_ == "mode" else 1e-17) if quick else ENOUGH

    def _prior(self, weights: int) -> Prior:
        """One precision for the slopes, and a wide prior of its own for the intercept."""
        if not self.fit_intercept:
            return Isotropic(self.prior_precision)
        slopes = slice(0, weights - self._outputs)
        groups = {"slopes": slopes, "intercept": slice(weights - self._outputs, weights)}
        return PerGroup(groups, {"slopes": self.prior_precision, "intercept": INTERCEPT_STD**-2})

    def _set_attributes(self, posterior: Posterior, basis: Tensor | None, dtype: Any) -> None:
        self._weights = Weights.of(posterior, basis, self._outputs, self.fit_intercept)
        self._slopes = self._weights.slopes(self._weights.mean)
        coef = self._slopes.mT.numpy()
        self.coef_ = coef.astype(dtype)
        constant = self._weights.constant(self._weights.mean)
        self.intercept_ = (constant.numpy() - coef @ self._offset).astype(dtype)
        self.lambda_ = float(posterior.prior.precision[0])
        self.log_evidence_ = posterior.log_evidence
        self.effective_dimension_ = posterior.effective_dimension
        steps = posterior.diagnostics.tuning_steps
        if self.curvature_ == "mode":
            steps += _found_mode(posterior).steps
        self.n_iter_ = np.array([max(1, steps)], dtype=np.int32)

    def _averaged(self, X: Any) -> np.ndarray:  # (n,), or (n, classes)
        """Logits of probabilities that are averages over the posterior."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        features = centre(as_operator(X.astype(np.float64, copy=False)), torch.from_numpy(self._offset))
        mean = features @ self._slopes + self._weights.constant(self._weights.mean)
        covariance = self._weights.covariances(features)
        variance = covariance.diagonal(dim1=1, dim2=2)
        if self._outputs == 1:
            found = Bernoulli().predictive("quadrature", mean[:, 0], Spread(variance[:, 0], None)).logits
        else:
            found = Categorical().predictive("monte carlo", mean, Spread(variance, covariance)).logits
        return found.numpy().astype(self.coef_.dtype, copy=False)

    def _logits(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        features = centre(as_operator(X.astype(np.float64, copy=False)), torch.from_numpy(self._offset))
        mean = features @ self._slopes + self._weights.constant(self._weights.mean)
        variance = self._weights.variances(features) if with_variance else torch.zeros_like(mean)
        if len(self.classes_) == 2:
            mean, variance = mean[:, 0], variance[:, 0]
        dtype = self.coef_.dtype
        return mean.numpy().astype(dtype, copy=False), variance.numpy().astype(dtype, copy=False)


@final
@dataclass(frozen=True, eq=False)
class Weights:
    """What prediction needs of a fit; weights of several outputs sum to zero, and those of features come first."""

    precision: float
    basis: Tensor | None  # (d, q), the directions of weight space that have data; None where all have
    mean: Tensor  # (q, c), or (q + 1, c) with an intercept
    root: Tensor  # (q or q + 1, c, k), W with W Wᵀ the covariance, or that on average over draws
    roots: Tensor  # (c, q or q + 1, smaller k), the same of every output for itself
    intercept: bool
    exact: bool

    @staticmethod
    def of(posterior: Posterior, basis: Tensor | None, outputs: int, intercept: bool) -> Weights:
        """From a posterior over all weights."""
        gaussian = posterior.gaussian
        if gaussian.is_closed_form:
            root = gaussian.root(torch.eye(len(posterior.mean), dtype=torch.float64))
        else:
            root = gaussian.deviations / gaussian.deviations.shape[1] ** 0.5
        root = _centred(root.reshape(-1, outputs, root.shape[1]))
        roots = root.permute(1, 0, 2)
        if roots.shape[2] > roots.shape[1]:
            roots = torch.linalg.qr(roots.mT, mode="r")[1].mT
        mean = _centred(posterior.mean.reshape(-1, outputs, 1))[:, :, 0]
        precision = float(posterior.prior.precision[0])
        return Weights(precision, basis, mean, root, roots, intercept, gaussian.is_closed_form)

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

    def covariances(self, features: LinearOperator) -> Tensor:  # (n, c, c)
        """The covariance of the logits of each datum at centred features."""
        inside = features if self.basis is None else Dense(features @ self.basis)
        design, (q, c, k) = _design(inside, self.intercept), self.root.shape
        parts = []
        for rows in row_blocks(design, max(1, BLOCK_ELEMENTS // max(1, c * k))):
            deviations = (rows @ self.root.reshape(q, c * k)).reshape(-1, c, k)
            parts.append(deviations @ deviations.mT)
        found = torch.cat(parts)
        if self.basis is None:
            return found
        outside = (features.row_squares() - inside.row_squares()).clamp_min(0) / self.precision
        shared = torch.eye(c, dtype=torch.float64) - (1 / c if c > 1 else 0)
        return found + outside[:, None, None] * shared

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


def _found_mode(posterior: Posterior) -> Mode:
    """The mode that the mean of a posterior is."""
    fit = posterior.gaussian.fit
    assert isinstance(fit, Laplace)
    assert fit.mode is not None
    return fit.mode.mode


def _design(features: LinearOperator, intercept: bool) -> LinearOperator:
    return WithConstant(features) if intercept else features


def _centred(values: Tensor) -> Tensor:  # (q, c, k)
    """Values without what several outputs share."""
    return values if values.shape[1] == 1 else values - values.mean(1, keepdim=True)


def _share(outputs: int) -> float:
    """The variance that centring leaves of independent outputs."""
    return 1.0 if outputs == 1 else 1 - 1 / outputs


def span(features: LinearOperator) -> Tensor:  # (d, rank)
    """An orthonormal basis of the rows."""
    products = torch.cat([features @ rows.mT for rows in row_blocks(features)], dim=1)
    values, left = torch.linalg.eigh(products)
    kept = values > cutoff(values, features.shape[1])
    return features.T @ left[:, kept] / values[kept].sqrt()
