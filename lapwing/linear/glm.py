"""Bayesian generalised linear models: counts, positive numbers, successes among trials, levels in order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import exp, log
from numbers import Real
from typing import Any, Literal

import numpy as np
import scipy.optimize
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from lapwing.bayes.likelihoods import Binomial, Gamma, Likelihood, NegativeBinomial, Ordinal, Poisson
from lapwing.bayes.likelihoods.expectation import logistic
from lapwing.linear.fitting import fitted_whole
from lapwing.linear.generalised import GeneralisedLinearModel, Rows

LEAST = 1e-6  # dispersion that is looked at, or one over it of a shape
MOST = 1e4
PARAMETERS = """prior_precision : float, optional
        Precision of the coefficients of every group. By default it is tuned by the marginal likelihood.
    groups : dict, optional
        Groups of columns with a precision of their own, by name: their numbers, a slice, their names in a DataFrame,
        or how these begin. Random effects are the columns of indicators of a group. They are taken as they are.
    automatic_relevance : bool
        Whether every column that is in no group has a precision of its own.
    standardise : bool
        Whether the prior of columns that are in no group is over their standard deviations, so that units do not count.
    fit_intercept : bool
        Whether to fit an intercept.
    curvature : "expected" or "mode"
        Gaussian variational inference, or Laplace's approximation.
    max_iter : int
        Largest number of iterations.
    verbose : bool
        Whether to show progress."""


class _Regressor(RegressorMixin, GeneralisedLinearModel):
    """One number is observed."""

    def predict(self, X: Any, return_std: bool = False, offset: Any = None, exposure: Any = None) -> Any:
        """The mean of a new observation, and with `return_std` its standard deviation.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        return_std : bool
            Whether to return standard deviations too.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

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
        found = self.predict_distribution(X, offset, exposure)
        mean = found.mean.numpy().astype(self.coef_.dtype, copy=False)
        return (mean, found.variance.sqrt().numpy().astype(mean.dtype, copy=False)) if return_std else mean

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int = 0, offset: Any = None, exposure: Any = None
    ) -> np.ndarray:
        """Draws of new observations, each row by itself: (n, n_samples).

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        n_samples : int
            Number of draws.
        random_state : int
            Of the draws.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

        Returns
        -------
        array
            (n, n_samples).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        found = self.predict_distribution(X, offset, exposure)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_state)
            return found.sample(torch.Size([n_samples])).mT.numpy()


class _LogLink(_Regressor):
    """Means are exponentials of the linear predictor."""

    _takes_zero = True

    def _read(self, y: np.ndarray, weights: Tensor, offset: Tensor, exposure: np.ndarray | None) -> Rows:
        if not (y * weights.numpy()).any():
            raise ValueError("every target is zero: no rate is finite then")
        return Rows(torch.from_numpy(y), weights, offset + _log_exposure(exposure, len(y)))

    def _level(self, rows: Rows) -> float:
        return float((rows.weights @ rows.targets).log() - (rows.weights.log() + rows.offset).logsumexp(0))

    def _observed(self, rows: int, exposure: Any) -> tuple[Likelihood, Tensor]:
        return self._likelihood, _log_exposure(exposure, rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class BayesianPoissonRegressor(_LogLink):
    """Counts with a posterior over the coefficients of their log rate, the prior's width found from the data.

    log rate = intercept + X · coef + offset + log(exposure). The posterior is the Gaussian nearest to the true one
    (variational inference), and `log_evidence_` a lower bound on the log marginal likelihood; with curvature="mode" it
    is Laplace's approximation. Coefficients of one group share a prior N(0, 1/λ), in units of the standard deviation of
    their columns; `precisions_` has the λ of every group. The intercept has a prior with a standard deviation of 10
    around the log rate of all rows.

    Fits of up to 1,500 columns, or as many rows, are dense. Larger ones, sparse ones among them, use matrix products
    alone: they are Laplace's approximation, `curvature_` says so, and their standard deviations come from 32 draws.

    Targets may lie between the counts, as counts per exposure with `sample_weight` the exposure do.

    Parameters
    ----------
    PARAMETERS

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, years = rng.normal(size=(400, 3)), rng.uniform(0.5, 4.0, 400)
    >>> y = rng.poisson(years * np.exp(X @ [0.5, -0.3, 0.0] - 1))
    >>> model = BayesianPoissonRegressor().fit(X, y, exposure=years)
    >>> model.summary().round(2)
               mean   std  lower  upper  sign
    intercept -1.13  0.06  -1.25  -1.01  1.00
    x0         0.47  0.06   0.36   0.58  1.00
    x1        -0.32  0.06  -0.43  -0.21  1.00
    x2         0.08  0.06  -0.03   0.19  0.91
    >>> model.interval(X[:2], level=0.9, exposure=years[:2])
    (array([0., 0.]), array([3., 3.]))
    """

    def _first_likelihood(self, rows: Rows) -> Poisson:
        return Poisson(rates=bool((rows.targets != rows.targets.round()).any()))


class _Dispersed(_LogLink):
    """A likelihood with one parameter of its own, at the maximum of the evidence unless it is given."""

    @abstractmethod
    def _with_parameter(self, likelihood: Any, value: float) -> Likelihood:
        """The same likelihood with another parameter."""

    @abstractmethod
    def _parameter(self, likelihood: Any) -> float:
        """The parameter of a likelihood."""

    @abstractmethod
    def _given(self) -> float | None:
        """What the user gave for it."""

    def _retuned(
        self, likelihood: Likelihood, outputs: Tensor, variances: Tensor, rows: Rows
    ) -> tuple[Likelihood, float]:
        if self._given() is not None:
            return likelihood, 0.0

        def loss(logarithm: float) -> float:
            trial = self._with_parameter(likelihood, exp(logarithm))
            return -float(rows.weights @ trial.expected(outputs, variances, rows.targets).log_density)

        start = log(self._parameter(likelihood))
        best = _least(loss, start)
        return self._with_parameter(likelihood, exp(best)), loss(start) - loss(best)


class BayesianNegativeBinomialRegressor(_Dispersed):
    """Counts that vary more than Poisson's, with mean μ and variance μ + dispersion · μ².

    As `BayesianPoissonRegressor`, with a `dispersion` that is found at the maximum of the marginal likelihood;
    `dispersion_` is a number without an error of its own.

    Parameters
    ----------
    dispersion : float, optional
        The relative variance of the rate. By default it is tuned by the marginal likelihood.
    PARAMETERS

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> y = rng.poisson(rng.gamma(2.0, 0.5, 500) * np.exp(X @ [0.5, -0.3] + 1))
    >>> model = BayesianNegativeBinomialRegressor().fit(X, y)
    >>> round(model.dispersion_, 1), model.coef_.round(1)
    (0.5, array([ 0.5, -0.3]))
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        **GeneralisedLinearModel._parameter_constraints,
        "dispersion": [None, Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, *, dispersion: float | None = None, prior_precision: float | None = None,
        groups: Mapping[str, Any] | None = None, automatic_relevance: bool = False, standardise: bool = True,
        fit_intercept: bool = True, curvature: Literal["expected", "mode"] = "expected", max_iter: int = 150,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            prior_precision=prior_precision, groups=groups, automatic_relevance=automatic_relevance,
            standardise=standardise, fit_intercept=fit_intercept, curvature=curvature, max_iter=max_iter,
            verbose=verbose,
        )  # fmt: skip
        self.dispersion = dispersion

    def _given(self) -> float | None:
        return self.dispersion

    def _parameter(self, likelihood: NegativeBinomial) -> float:
        return likelihood.dispersion

    def _with_parameter(self, likelihood: NegativeBinomial, value: float) -> NegativeBinomial:
        return replace(likelihood, dispersion=value)

    def _first_likelihood(self, rows: Rows) -> NegativeBinomial:
        between = bool((rows.targets != rows.targets.round()).any())
        return NegativeBinomial(self.dispersion or 0.5, rates=between)

    def _keep_likelihood(self, likelihood: Likelihood) -> None:
        super()._keep_likelihood(likelihood)
        assert isinstance(likelihood, NegativeBinomial)
        self.dispersion_ = likelihood.dispersion


class BayesianGammaRegressor(_Dispersed):
    """Positive numbers whose noise grows with their mean μ: their standard deviation is μ / √shape.

    As `BayesianPoissonRegressor`, with a `shape` that is found at the maximum of the marginal likelihood; `shape_` is a
    number without an error of its own.

    Parameters
    ----------
    shape : float, optional
        Shape of the Gamma distribution. By default it is tuned by the marginal likelihood.
    PARAMETERS

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> y = rng.gamma(3.0, 1 / 3, 500) * np.exp(X @ [0.5, -0.3] + 1)
    >>> model = BayesianGammaRegressor().fit(X, y)
    >>> round(model.shape_), model.coef_.round(1)
    (3, array([ 0.5, -0.3]))
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        **GeneralisedLinearModel._parameter_constraints,
        "shape": [None, Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, *, shape: float | None = None, prior_precision: float | None = None,
        groups: Mapping[str, Any] | None = None, automatic_relevance: bool = False, standardise: bool = True,
        fit_intercept: bool = True, curvature: Literal["expected", "mode"] = "expected", max_iter: int = 150,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            prior_precision=prior_precision, groups=groups, automatic_relevance=automatic_relevance,
            standardise=standardise, fit_intercept=fit_intercept, curvature=curvature, max_iter=max_iter,
            verbose=verbose,
        )  # fmt: skip
        self.shape = shape

    def _given(self) -> float | None:
        return self.shape

    def _parameter(self, likelihood: Gamma) -> float:
        return likelihood.shape

    def _with_parameter(self, likelihood: Gamma, value: float) -> Gamma:
        return replace(likelihood, shape=value)

    def _first_likelihood(self, rows: Rows) -> Gamma:
        Gamma().checked(rows.targets, len(rows.targets))
        return Gamma(self.shape or 1.0)

    def _observed(self, rows: int, exposure: Any) -> tuple[Likelihood, Tensor]:
        return GeneralisedLinearModel._observed(self, rows, exposure)

    def _read(self, y: np.ndarray, weights: Tensor, offset: Tensor, exposure: np.ndarray | None) -> Rows:
        self._refuse(exposure)
        return super()._read(y, weights, offset, None)

    def _keep_likelihood(self, likelihood: Likelihood) -> None:
        super()._keep_likelihood(likelihood)
        assert isinstance(likelihood, Gamma)
        self.shape_ = likelihood.shape


class BayesianBinomialRegressor(_Regressor):
    """Successes among trials, with a posterior over the coefficients of the logit of their probability.

    `exposure` is the number of trials of each row, `trials` that of rows without one. `predict` is the mean number of
    successes; with one trial that is their probability. The posterior is that of `BayesianPoissonRegressor`; for labels
    see `BayesianLogisticRegression`.

    Parameters
    ----------
    trials : float
        Number of trials of every row for which no exposure is given.
    PARAMETERS

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, trials = rng.normal(size=(300, 2)), rng.integers(1, 9, 300)
    >>> y = rng.binomial(trials, 1 / (1 + np.exp(-X @ [1.0, -0.5])))
    >>> model = BayesianBinomialRegressor().fit(X, y, exposure=trials)
    >>> model.coef_.round(1), model.predict(X[:3]).round(1)
    (array([ 1. , -0.5]), array([0.6, 0.6, 0.3]))
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        **GeneralisedLinearModel._parameter_constraints,
        "trials": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, *, trials: float = 1, prior_precision: float | None = None, groups: Mapping[str, Any] | None = None,
        automatic_relevance: bool = False, standardise: bool = True, fit_intercept: bool = True,
        curvature: Literal["expected", "mode"] = "expected", max_iter: int = 150, verbose: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            prior_precision=prior_precision, groups=groups, automatic_relevance=automatic_relevance,
            standardise=standardise, fit_intercept=fit_intercept, curvature=curvature, max_iter=max_iter,
            verbose=verbose,
        )  # fmt: skip
        self.trials = trials

    def _read(self, y: np.ndarray, weights: Tensor, offset: Tensor, exposure: np.ndarray | None) -> Rows:
        trials = self._trials(exposure, len(y))
        counts, one = torch.from_numpy(y), Binomial(1)
        wrong = (counts < 0) | (counts > trials)
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise ValueError(
                f"row {first} has {float(counts[first]):g} successes among {float(trials[first]):g} trials: give the "
                "number of trials as exposure=, or trials= for all rows"
            )
        share = counts / trials
        lacks = Binomial(trials)._constant(counts) - trials * one._constant(share)
        return Rows(share, weights * trials, offset, float(weights @ lacks))

    def _trials(self, exposure: np.ndarray | None, rows: int) -> Tensor:
        trials = np.full(rows, float(self.trials)) if exposure is None else exposure
        if not (trials > 0).all():
            raise ValueError(f"exposure, the number of trials, must be positive, got {trials.min():g}")
        return torch.from_numpy(trials)

    def _first_likelihood(self, rows: Rows) -> Binomial:  # noqa: ARG002
        return Binomial(1)

    def _level(self, rows: Rows) -> float:
        share = (rows.weights @ rows.targets + 0.5) / (rows.weights.sum() + 1)
        return float(share.logit()) - float(rows.weights @ rows.offset / rows.weights.sum())

    def _observed(self, rows: int, exposure: Any) -> tuple[Likelihood, Tensor]:
        return Binomial(self._trials(exposure, rows)), torch.zeros(rows, dtype=torch.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class BayesianOrdinalClassifier(ClassifierMixin, GeneralisedLinearModel):
    """Classes that have an order, such as grades: P(class ≤ k) = σ(threshold k − X · coef).

    The order of the classes is that of their sorted labels. Thresholds are found at the maximum of the marginal
    likelihood; their distances have no error of their own, and what they share has that of an intercept. The posterior
    is that of `BayesianPoissonRegressor`.

    Parameters
    ----------
    PARAMETERS

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 2))
    >>> y = np.digitize(X @ [1.0, -0.5] + rng.logistic(size=400), [-1.0, 1.0])
    >>> model = BayesianOrdinalClassifier().fit(X, y)
    >>> model.coef_.round(1), model.thresholds_.round(1)
    (array([ 1.2, -0.7]), array([-1.2,  1.1]))
    """

    def _validated(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self._expected is None else self._expected)
        levels = self._levels(y)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds 1 class, {self.classes_.tolist()}: a classifier needs at least 2")
        return X, levels

    def _fit(self, X: Any, y: Any, *known: Any) -> None:
        self._expected = known[3] if len(known) > 3 else None
        super()._fit(X, y, *known)

    def partial_fit(  # type: ignore[override]
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, offset: Any = None
    ) -> Any:
        """Learn from more rows: the posterior so far is the prior for them, and thresholds stay.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        y : array
            Labels, all of which the first call has seen or was given as `classes`.
        classes : array, optional
            All labels, for the first call.
        sample_weight : array, optional
            How often each row counts.
        offset : array, optional
            Added to the linear predictor of each row.

        Returns
        -------
        Self
            This estimator.

        Raises
        ------
        ValueError
            If a label is new, or the columns are not those of `fit`.
        """
        if not hasattr(self, "coef_"):
            return fitted_whole(self, X, y, sample_weight, offset, None, classes)
        return super().partial_fit(X, self._levels(y), sample_weight, offset)

    def _levels(self, y: Any) -> np.ndarray:
        labels = np.asarray(y)
        if not np.isin(labels, self.classes_).all():
            new = labels[~np.isin(labels, self.classes_)][0]
            raise ValueError(f"y holds {new!r}, which is none of the classes of fit: {self.classes_.tolist()}")
        return np.searchsorted(self.classes_, labels)

    def _read(self, y: np.ndarray, weights: Tensor, offset: Tensor, exposure: np.ndarray | None) -> Rows:
        self._refuse(exposure)
        return Rows(torch.from_numpy(y), weights, offset)

    def _level(self, rows: Rows) -> float:  # noqa: ARG002
        return 0.0

    def _first_likelihood(self, rows: Rows) -> Ordinal:
        counts = rows.targets.long().bincount(rows.weights, minlength=len(self.classes_)) + 0.1
        below = counts.cumsum(0)[:-1] / counts.sum()
        return Ordinal(tuple(below.logit().tolist()))

    def _retuned(
        self, likelihood: Likelihood, outputs: Tensor, variances: Tensor, rows: Rows
    ) -> tuple[Likelihood, float]:
        assert isinstance(likelihood, Ordinal)
        return _best_thresholds(likelihood.thresholds, outputs, variances, rows)

    def _set_coefficients(self, dtype: Any) -> None:
        super()._set_coefficients(dtype)
        assert isinstance(self._likelihood, Ordinal)
        self.thresholds_ = np.array(self._likelihood.thresholds) - self.intercept_

    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """The probability of every class, averaged over the posterior: (n, classes).

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        offset : array, optional
            Added to the linear predictor of each row.

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
        probs = self.predict_distribution(X, offset).probs  # type: ignore[attr-defined]
        return (probs / probs.sum(-1, keepdim=True)).numpy()

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """The class of largest probability.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        offset : array, optional
            Added to the linear predictor of each row.

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
        largest = self.predict_proba(X, offset).argmax(1)
        return self.classes_[largest]

    def _targets(self, y: Any, found: Any) -> Tensor:
        return super()._targets(self._levels(y), found)


def _log_exposure(exposure: np.ndarray | None, rows: int) -> Tensor:
    if exposure is None:
        return torch.zeros(rows, dtype=torch.float64)
    if not (exposure > 0).all():
        raise ValueError(f"exposure must be positive, got {exposure.min():g}: leave out rows that were not observed")
    return torch.from_numpy(exposure).log()


def _least(loss: Callable[[float], float], start: float) -> float:
    """The minimum of a function of a logarithm, from a bracket around a start that is widened to its limits."""
    ends = log(LEAST), log(MOST)
    found = scipy.optimize.minimize_scalar(
        loss, bounds=(max(ends[0], start - 3), min(ends[1], start + 3)), method="bounded", options={"xatol": 1e-4}
    )
    return float(found.x)


def _best_thresholds(start: tuple[float, ...], outputs: Tensor, variances: Tensor, rows: Rows) -> tuple[Ordinal, float]:
    """Thresholds of the largest expected log density, and what that gains: over the first and the logs of the gaps."""
    levels = rows.targets.long()

    def placed(x: np.ndarray) -> np.ndarray:
        return x[0] + np.concatenate([[0.0], np.cumsum(np.exp(x[1:]))])

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = placed(x)
        likelihood = Ordinal(tuple(at))
        above, below = likelihood.around(rows.targets)
        value = likelihood.expected(outputs, variances, rows.targets).log_density
        over, under = logistic(outputs - above, variances)[1], logistic(below - outputs, variances)[1]
        gap = 1 / (above - below).clamp_max(700).expm1()
        slope = torch.zeros(len(at) + 2, dtype=torch.float64)
        slope.index_add_(0, levels + 1, rows.weights * (over + gap))
        slope.index_add_(0, levels, -rows.weights * (under + gap))
        by_place = slope[1:-1].numpy()
        tail = np.cumsum(by_place[::-1])[::-1]
        return -float(rows.weights @ value), -np.concatenate([[tail[0]], tail[1:] * np.exp(x[1:])])

    first = np.concatenate([start[:1], np.log(np.maximum(np.diff(start), 1e-6))])
    bounds = [(-60.0, 60.0)] + [(-14.0, 4.0)] * (len(start) - 1)
    found = scipy.optimize.minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds)
    return Ordinal(tuple(placed(found.x).tolist())), loss(first)[0] - float(found.fun)


for _estimator in (
    BayesianPoissonRegressor, BayesianNegativeBinomialRegressor, BayesianGammaRegressor, BayesianBinomialRegressor,
    BayesianOrdinalClassifier,
):  # fmt: skip
    _estimator.__doc__ = (_estimator.__doc__ or "").replace("PARAMETERS", PARAMETERS)
