"""Bayesian ridge regression as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapwing.bayes.evidence import ByEvidence
from lapwing.bayes.inference import find
from lapwing.bayes.likelihoods import GammaHyperprior, Gaussian
from lapwing.bayes.linear_model import LinearModel, check_finite
from lapwing.bayes.methods import Exact, Krylov, Run
from lapwing.bayes.methods.choosing import EXACT_SIZE
from lapwing.bayes.noise import Noise
from lapwing.bayes.posterior.leave_one_out import step_out
from lapwing.bayes.priors import Isotropic
from lapwing.linalg.operators import Dense, LinearOperator, as_operator
from lapwing.linalg.spectral import Spectrum, decompose
from lapwing.linear.fitting import Training, centre, fitted_whole, row_weights, weighted_mean
from lapwing.linear.ridge_fit import Search, TargetFit, decomposed_fits
from lapwing.runtime.progress import reporter

DRAWS = 32  # of a matrix-free fit
SIGMA_BYTES = 1e9  # `sigma_` is made on request, up to this size


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOutFit:
    """Each training row predicted from the others, at the fitted precisions."""

    leverage: np.ndarray  # (n,) or (n, targets)
    residual: np.ndarray  # targets' shape
    mean: np.ndarray  # targets' shape
    std: np.ndarray  # targets' shape, of an observation


class BayesianRidge(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression with prior and noise precision at the maximum of the evidence.

    A drop-in for `sklearn.linear_model.BayesianRidge`: the same parameters, attributes and results, from one
    eigen-decomposition on the smaller side of the data instead of a full singular value decomposition. As there,
    `alpha_` is the precision of the noise and `lambda_` that of the weights. Beyond it: sparse X, several targets
    (each with its own precisions), `sample`, `log_predictive_density` and `leave_one_out_`.

    One difference is on purpose: an intercept, which has a flat prior, costs one observation, so that the noise is
    estimated from n − 1 − γ of them where scikit-learn takes n − γ. Without that, data with more columns than rows can
    look free of noise.

    The maximum is found by a scan over its scale and quasi-Newton steps, so `max_iter` and `tol` are seldom felt:
    `tol` bounds the relative gradient of the log evidence. With `alpha_init` and `lambda_init` given the search starts
    there instead, and finds the optimum near them.

    Parameters
    ----------
    max_iter : int
        Largest number of iterations.
    tol : float
        Relative gradient of the log evidence at which the search ends.
    alpha_1 : float
        Shape of the Gamma hyperprior on the noise precision.
    alpha_2 : float
        Its rate.
    lambda_1 : float
        Shape of the Gamma hyperprior on the weights' precision.
    lambda_2 : float
        Its rate.
    alpha_init : float, optional
        Noise precision to start from.
    lambda_init : float, optional
        Precision of the weights to start from.
    compute_score : bool
        Whether to keep the log evidence in `scores_`.
    fit_intercept : bool
        Whether to fit an intercept.
    copy_X : bool
        Accepted for compatibility. X is never written to.
    verbose : bool
        Whether to show progress.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesianRidge().fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.round(), std.round(1)
    (array([203.,  71.]), array([54.6, 54.7]))
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "alpha_1": [Interval(Real, 0, None, closed="left")],
        "alpha_2": [Interval(Real, 0, None, closed="left")],
        "lambda_1": [Interval(Real, 0, None, closed="left")],
        "lambda_2": [Interval(Real, 0, None, closed="left")],
        "alpha_init": [None, Interval(Real, 0, None, closed="neither")],
        "lambda_init": [None, Interval(Real, 0, None, closed="neither")],
        "compute_score": ["boolean"],
        "fit_intercept": ["boolean"],
        "copy_X": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self, *, max_iter: int = 300, tol: float = 1e-3, alpha_1: float = 1e-6, alpha_2: float = 1e-6,
        lambda_1: float = 1e-6, lambda_2: float = 1e-6, alpha_init: float | None = None,
        lambda_init: float | None = None, compute_score: bool = False, fit_intercept: bool = True,
        copy_X: bool = True, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.max_iter = max_iter
        self.tol = tol
        self.alpha_1 = alpha_1
        self.alpha_2 = alpha_2
        self.lambda_1 = lambda_1
        self.lambda_2 = lambda_2
        self.alpha_init = alpha_init
        self.lambda_init = lambda_init
        self.compute_score = compute_score
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianRidge:
        """Fit coefficients, noise and prior; an interrupted fit leaves the estimator as it was.

        X may be dense or sparse and is neither copied nor changed. `sample_weight` counts each row that often.

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.
        y : array
            Targets.
        sample_weight : array, optional
            How often each row counts.

        Returns
        -------
        BayesianRidge
            This estimator.

        Raises
        ------
        ValueError
            If X or y hold what cannot be used: shapes that do not fit, NaN or infinity.
        """
        return fitted_whole(self, X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean, and with `return_std` the standard deviation of a new observation.

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
        features = self._centred(X)
        centre_value = self.intercept_ + self.X_offset_ @ self._coefficients.numpy()
        mean = self._shaped(features @ self._coefficients.to(features.like) + torch.from_numpy(centre_value))
        mean = mean.astype(self.coef_.dtype, copy=False)
        if not return_std:
            return mean
        spread = self._shaped(torch.stack([fit.variance(features) for fit in self._fits], dim=1))
        return mean, np.sqrt(spread + 1 / self.alpha_).astype(self.coef_.dtype, copy=False)

    def sample(self, n: int = 1, seed: int = 0) -> np.ndarray:
        """Posterior draws of the coefficients, one a row: (n, features), or (n, targets, features).

        Parameters
        ----------
        n : int
            Number of draws.
        seed : int
            Of the draws.

        Returns
        -------
        array
            (n, features), or (n, targets, features).

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        stacked = torch.stack([fit.draws(n, seed) for fit in self._fits]).permute(2, 0, 1).numpy()
        return stacked if self.coef_.ndim == 2 else stacked[:, 0]

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """The log density of observed targets under the prediction: the targets' shape.

        Parameters
        ----------
        X : array or sparse matrix
            Rows of inputs.
        y : array
            Targets.

        Returns
        -------
        array
            The targets' shape.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the shape of y is not that of the predictions.
        """
        mean, std = self.predict(X, return_std=True)
        y = np.asarray(y, dtype=float)
        if y.shape != mean.shape:
            raise ValueError(f"y has shape {y.shape}, but the predictions for X have shape {mean.shape}")
        return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)

    @property
    def sigma_(self) -> np.ndarray:
        """The posterior covariance of the coefficients, made on request: (d, d), or (targets, d, d)."""
        check_is_fitted(self)
        needed = 8.0 * self.n_features_in_**2 * len(self._fits)
        exact = [fit.exact for fit in self._fits if fit.exact is not None]
        if needed > SIGMA_BYTES or not exact:
            raise AttributeError(
                f"sigma_ would take {needed / 1e9:.1f} GB for {self.n_features_in_:,} features: "
                "use predict(X, return_std=True) or sample(n), which do not need it"
            )
        stacked = torch.stack([known.whitened.covariance() for known in exact]).numpy()
        return stacked if self.coef_.ndim == 2 else stacked[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], multi_output=True, y_numeric=True,
            ensure_min_samples=2,
        )  # fmt: skip
        features, targets = as_operator(X), torch.from_numpy(y.reshape(len(y), -1).astype(float))
        check_finite("targets", Dense(targets))
        check_finite("features", features)
        weights = None if sample_weight is None else torch.from_numpy(row_weights(X, sample_weight))
        self.X_offset_ = np.zeros(X.shape[1])
        y_offset = torch.zeros(targets.shape[1], dtype=torch.float64)
        if self.fit_intercept:
            self.X_offset_ = weighted_mean(features, weights).numpy()
            y_offset = weighted_mean(Dense(targets), weights)
            features = centre(features, torch.from_numpy(self.X_offset_))
        self.X_scale_ = np.ones(X.shape[1])
        training = Training(features, targets - y_offset, weights)
        self._fits = self._solve(training)
        self._set_attributes(X.dtype, y.ndim == 1, y_offset)
        self._training = training if self._fits[0].exact is not None else None

    def _solve(self, training: Training) -> tuple[TargetFit, ...]:
        """A fit of every target; the exact ones share a decomposition."""
        tolerance = min(self.tol, 1e-3) * 1e-6
        rows, spectrum = training.rows, None
        if min(rows.shape) <= EXACT_SIZE:
            spectrum = decompose(rows, least=1)  # estimators stand between those of other libraries
            search = Search(
                GammaHyperprior(self.lambda_1, self.lambda_2), GammaHyperprior(self.alpha_1, self.alpha_2),
                self.max_iter, tolerance, self.lambda_init, self.alpha_init,
            )  # fmt: skip
            count = training.count - float(self.fit_intercept)  # an intercept costs one observation
            fits = decomposed_fits(spectrum, rows, training.scaled_targets, count, search)
            if fits is not None:
                self._say(fits)
                return fits
        fits = self._inferred(training, spectrum, tolerance)
        self._say(fits)
        return fits

    def _inferred(self, training: Training, spectrum: Spectrum | None, tolerance: float) -> tuple[TargetFit, ...]:
        """By a linear model of every target."""
        likelihood = Gaussian(hyperprior=GammaHyperprior(self.alpha_1, self.alpha_2))
        prior = Isotropic(hyperprior=GammaHyperprior(self.lambda_1, self.lambda_2))
        absorbed = float(self.fit_intercept)
        models = [
            LinearModel(training.features, y, likelihood, weights=training.weights, absorbed=absorbed)
            for y in training.targets.mT
        ]
        method: Exact | Krylov = Exact(spectrum=spectrum)
        if spectrum is None:
            method = Krylov(rtol=1e-3, targets=training.scaled_targets)
        draws = DRAWS if spectrum is None else 0
        tuning = ByEvidence(self.max_iter, tolerance, self.lambda_init, self.alpha_init)
        run = Run(Noise(0), draws, tuning, reporter(None if self.verbose else False))
        found = []
        for column, model in enumerate(models):
            found.append(find(model, prior, method.for_target(column), run))
            method = method.after(found[-1].gaussian)
        return tuple(TargetFit.of(posterior) for posterior in found)

    def _say(self, fits: tuple[TargetFit, ...]) -> None:
        for fit in fits if self.verbose else ():
            print(f"log evidence {fit.scores[-1]:.6g} after {fit.steps} steps")

    def _set_attributes(self, dtype: Any, single: bool, y_offset: Tensor) -> None:
        def attribute(values: list[Any]) -> Any:
            return values[0] if single else np.array(values)

        self._left_out: LeaveOneOutFit | None = None
        self._coefficients = torch.stack([fit.mean for fit in self._fits], dim=1)
        coef = self._coefficients.mT.numpy().astype(dtype)
        self.coef_ = coef[0] if single else coef
        self.alpha_ = attribute([fit.noise_precision for fit in self._fits])
        self.lambda_ = attribute([fit.prior_precision for fit in self._fits])
        self.n_iter_ = max(1, max(fit.steps for fit in self._fits))
        scores = [np.array(fit.scores if self.compute_score else ()) for fit in self._fits]
        self.scores_ = scores[0] if single else scores
        intercept = y_offset.numpy() - self.X_offset_ @ self._coefficients.numpy()
        self.intercept_ = float(intercept[0]) if single else intercept

    @property
    def leave_one_out_(self) -> LeaveOneOutFit:
        """Each training row predicted from the others: worked out when it is first asked for, or before pickling.

        Until then the training data are kept by reference. It takes as long as a Gram matrix of X.
        """
        check_is_fitted(self)
        if self._left_out is None:
            if self._training is None:
                raise AttributeError("a matrix-free fit has no leave_one_out_: it holds no closed form")
            self._left_out, self._training = self._leave_one_out(self._training), None
        return self._left_out

    def __getstate__(self) -> dict[str, Any]:
        if getattr(self, "_training", None) is not None:
            self.leave_one_out_  # noqa: B018, needs data that are not written
        return super().__getstate__()

    def _leave_one_out(self, training: Training) -> LeaveOneOutFit:
        """Leverages include the intercept's own, w / Σw, since leaving a row out moves the centre too."""
        columns, offset = [], np.atleast_1d(self.intercept_) + self.X_offset_ @ self._coefficients.numpy()
        weights = training.weight_column
        for fit, y in zip(self._fits, training.targets.mT, strict=True):
            noise = fit.noise_precision
            variance = fit.variance(training.features)
            if self.fit_intercept:
                variance = variance + 1 / (noise * weights.sum())
            residual = y - (training.features @ fit.mean.to(training.features.like)).double()
            root = (noise * weights).sqrt()
            step = step_out(variance[:, None, None], (noise * weights * residual)[:, None, None], root[:, None, None])
            left = residual + step.shift[:, 0, 0]
            columns.append((step.leverage, left, y - left, (step.covariance[:, 0, 0] + 1 / noise).sqrt()))
        leverage, left, mean, std = (self._shaped(torch.stack(part, dim=1)) for part in zip(*columns, strict=True))
        return LeaveOneOutFit(leverage, left, mean + (offset if self.coef_.ndim == 2 else float(offset[0])), std)

    def _centred(self, X: Any) -> LinearOperator:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return centre(as_operator(X), torch.from_numpy(self.X_offset_))

    def _shaped(self, columns: Tensor) -> np.ndarray:
        values = columns.double().numpy()
        return values if self.coef_.ndim == 2 else values[:, 0]
