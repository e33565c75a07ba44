"""What Bayesian generalised linear models share: from a design matrix to `infer`, and back to coefficients."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Self, final

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.distributions import Distribution

from lapwing.bayes.evidence import ByEvidence
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Likelihood, Spread
from lapwing.bayes.linear_model import LinearModel, check_finite
from lapwing.bayes.methods import CG, Exact, Krylov, Method
from lapwing.bayes.methods.choosing import EXACT_SIZE
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import Isotropic, PerGroup
from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, as_operator
from lapwing.linear.coefficients import as_table
from lapwing.linear.designs import WithConstant
from lapwing.linear.fitting import centre, fitted_whole, row_weights
from lapwing.linear.logistic import BASIS_BYTES, DRAWS, ENOUGH, INTERCEPT_STD, Weights, span

TUNING_STEPS = 30  # of a parameter of the likelihood
SETTLED = 1e-3  # nats that a step of it may gain at the end
GRADIENT = 1e-3  # nats, of several precisions
LARGEST_ROOT = 6000  # weights whose covariance is kept as a matrix
OTHERS = "slopes"  # the name of all columns that are in no group
INTERCEPT = "intercept"


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Targets as a likelihood takes them, and what belongs to each."""

    targets: Tensor  # (n,)
    weights: Tensor  # (n,), how often each row counts
    offset: Tensor  # (n,), added to the linear predictor
    constant: float = 0.0  # what the log evidence lacks


@final
@dataclass(frozen=True, eq=False)
class Columns:
    """How columns of X become features: centred, and divided by a scale of their own."""

    centre: Tensor  # (d,)
    scale: Tensor  # (d,)

    @staticmethod
    def of(features: LinearOperator, weights: Tensor, standardised: Tensor, *, centred: bool) -> Columns:
        """Means and, where columns are `standardised`, standard deviations."""
        total = weights.sum()
        mean = (features.T @ weights) / total
        variance = (features.column_squares(weights).double() / total - mean.square()).clamp_min(0)
        small = variance <= 1e-20 * mean.square().clamp_min(1e-280)  # a constant column has no scale
        scale = torch.where(standardised & ~small, variance, 1.0).sqrt()
        return Columns(mean if centred else torch.zeros_like(mean), scale)

    def features(self, X: Any) -> LinearOperator:
        """The features of rows, by products where X is sparse."""
        centred = centre(as_operator(X.astype(np.float64, copy=False)), self.centre)
        if bool((self.scale == 1).all()):
            return centred
        return centred @ Diagonal(1 / self.scale)


class GeneralisedLinearModel(BaseEstimator):
    """The part of a generalised linear model that does not depend on what is observed.

    Subclasses say how targets are read, which likelihood they have, and how its own parameter is found.
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "prior_precision": [None, Interval(Real, 0, None, closed="neither")],
        "groups": [None, Mapping],
        "automatic_relevance": ["boolean"],
        "standardise": ["boolean"],
        "fit_intercept": ["boolean"],
        "curvature": [StrOptions({"expected", "mode"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "verbose": ["verbose"],
    }

    def __init__(
        self, *, prior_precision: float | None = None, groups: Mapping[str, Any] | None = None,
        automatic_relevance: bool = False, standardise: bool = True, fit_intercept: bool = True,
        curvature: Literal["expected", "mode"] = "expected", max_iter: int = 150, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.prior_precision = prior_precision
        self.groups = groups
        self.automatic_relevance = automatic_relevance
        self.standardise = standardise
        self.fit_intercept = fit_intercept
        self.curvature = curvature
        self.max_iter = max_iter
        self.verbose = verbose

    coef_: np.ndarray
    log_evidence_: float
    _weights: Weights

    # what a subclass says

    @abstractmethod
    def _read(self, y: np.ndarray, weights: Tensor, offset: Tensor, exposure: np.ndarray | None) -> Rows:
        """Targets, weights and offsets as the likelihood takes them; an error where it cannot."""

    @abstractmethod
    def _first_likelihood(self, rows: Rows) -> Likelihood:
        """The likelihood, its own parameter at a first guess."""

    @abstractmethod
    def _level(self, rows: Rows) -> float:
        """The linear predictor of a model without features, which the prior of the intercept is centred at."""

    def _retuned(
        self, likelihood: Likelihood, outputs: Tensor, variances: Tensor, rows: Rows  # noqa: ARG002
    ) -> tuple[Likelihood, float]:  # fmt: skip
        """The likelihood with its own parameter at its best for Gaussian outputs of the rows, and nats gained by it."""
        return likelihood, 0.0

    def _keep_likelihood(self, likelihood: Likelihood) -> None:
        """Set the attribute of its own parameter."""
        self._likelihood = likelihood

    def _observed(self, rows: int, exposure: Any) -> tuple[Likelihood, Tensor]:  # and (rows,)
        """The likelihood of new observations, and what an exposure adds to their linear predictor."""
        self._refuse(exposure)
        return self._likelihood, torch.zeros(rows, dtype=torch.float64)

    def _refuse(self, exposure: Any) -> None:
        if exposure is not None:
            raise ValueError(f"{type(self).__name__} has no exposure: leave it out, or give offset=")

    # fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, exposure: Any = None) -> Self:
        """Fit coefficients and prior; an interrupted fit leaves the estimator as it was.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        y : array
            Targets.
        sample_weight : array, optional
            How often each row counts.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            Time, area or population that each count was made over, or the number of trials of a binomial model.

        Returns
        -------
        Self
            This estimator.

        Raises
        ------
        ValueError
            If X or y hold what cannot be used: shapes that do not fit, NaN or infinity, targets that cannot occur.
        """
        return fitted_whole(self, X, y, sample_weight, offset, exposure)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, exposure: Any = None) -> Self:
        """Learn from more rows: the posterior so far is the prior for them.

        The first call is `fit`. After it precisions, and a parameter of the likelihood, stay as they were found, and
        no earlier row is kept. `log_evidence_` goes on to be that of all rows.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        y : array
            Targets.
        sample_weight : array, optional
            How often each row counts.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

        Returns
        -------
        Self
            This estimator.

        Raises
        ------
        ValueError
            If the columns are not those of `fit`, or the fit was too large to keep a covariance.
        """
        if not hasattr(self, "coef_"):
            return self.fit(X, y, sample_weight, offset, exposure)
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False, y_numeric=True
        )
        rows = self._rows(X, y, (sample_weight, offset, exposure))
        mean, root = self._whole_root()
        features = self._columns.features(X)
        design = (WithConstant(features) if self.fit_intercept else features).dense()
        known = Rows(rows.targets, rows.weights, rows.offset + self._base + design @ mean)
        posterior = infer(
            LinearModel(design @ root, known.targets, self._likelihood, weights=known.weights, offset=known.offset),
            prior=Isotropic(1.0), method=Exact(newton=self._steps), draws=0, progress=False,
            curvature=self.curvature_,
        )  # fmt: skip
        inner = posterior.gaussian.root(torch.eye(root.shape[1], dtype=torch.float64))
        self._weights = replace(
            self._weights, basis=None, mean=(mean + root @ posterior.mean)[:, None], root=(root @ inner)[:, None],
            roots=(root @ inner)[None],
        )  # fmt: skip
        self.log_evidence_ = float(self.log_evidence_) + float(posterior.log_evidence) + rows.constant
        self._set_coefficients(self.coef_.dtype)
        return self

    def _whole_root(self) -> tuple[Tensor, Tensor]:  # (q,), (q, k)
        """Mean and root of the covariance over all features, those without data included."""
        known, d = self._weights, self.n_features_in_
        if not known.exact or d > LARGEST_ROOT:
            raise ValueError(
                f"partial_fit keeps a covariance of all coefficients, and {d:,} are too many for that: fit all rows "
                f"together, or use up to {EXACT_SIZE:,} columns"
            )
        if known.basis is None:
            return known.mean[:, 0], known.root[:, 0]
        slopes, constant = known.slopes(known.root[:, 0]), known.root[len(known.basis.mT) :, 0]
        outside = torch.eye(d, dtype=torch.float64) - known.basis @ known.basis.mT
        blocks = [torch.cat([slopes, constant]), torch.zeros(d + len(constant), d, dtype=torch.float64)]
        blocks[1][:d] = known.precision**-0.5 * outside
        mean = torch.cat([known.slopes(known.mean[:, 0]), known.mean[len(known.basis.mT) :, 0]])
        return mean, torch.cat(blocks, dim=1)

    def _rows(self, X: Any, y: np.ndarray, known: tuple[Any, Any, Any]) -> Rows:
        sample_weight, offset, exposure = known
        weights = torch.from_numpy(row_weights(X, sample_weight))
        added = _per_row("offset", offset, X.shape[0])
        given = None if exposure is None else _per_row("exposure", exposure, X.shape[0])
        return self._read(y.astype(float), weights, torch.from_numpy(added), given)

    def _fit(self, X: Any, y: Any, *known: Any) -> None:
        X, y = self._validated(X, y)
        rows = self._rows(X, y, (known[0], known[1], known[2]))
        features = as_operator(X.astype(np.float64, copy=False))
        check_finite("features", features)
        d = X.shape[1]
        groups = self._groups(d)
        standardised = torch.zeros(d, dtype=torch.bool)
        standardised[groups.get(OTHERS, [])] = self.standardise
        self._columns = Columns.of(features, rows.weights, standardised, centred=self.fit_intercept)
        self._base = self._level(rows) if self.fit_intercept else 0.0
        centred = self._columns.features(X)
        self._matrix_free = self._is_matrix_free(X.shape, len(groups))
        narrow = d <= X.shape[0] or self._matrix_free or len(groups) > 1
        basis = None if narrow else span(centred)
        inside = centred if basis is None else Dense(centred @ basis)
        if basis is not None:
            groups = {OTHERS: range(basis.shape[1])}
        posterior = self._solve(inside, rows, groups)
        self._weights = Weights.of(posterior, basis, 1, self.fit_intercept)
        self._set_precisions(posterior, groups)
        self.log_evidence_ = float(posterior.log_evidence) + rows.constant
        self.effective_dimension_ = float(posterior.effective_dimension)
        self._set_coefficients(X.dtype)

    def _validated(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        return validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], y_numeric=True, ensure_min_samples=2
        )

    def _groups(self, d: int) -> dict[str, Any]:
        """The columns of each group by number, those that are in none together, or each by itself."""
        names = getattr(self, "feature_names_in_", None)
        found = {str(name): _places(columns, names, d) for name, columns in (self.groups or {}).items()}
        if reserved := {OTHERS, INTERCEPT} & set(found):
            raise ValueError(f"groups has the name {sorted(reserved)[0]!r}, which is taken: choose another")
        taken = np.concatenate([*found.values(), np.empty(0, int)])
        if len(np.unique(taken)) < len(taken):
            raise ValueError("some columns are in two groups: put each into one")
        rest = np.setdiff1d(np.arange(d), taken)
        if self.automatic_relevance:
            labels = [f"x{j}" if names is None else str(names[j]) for j in range(d)]
            return found | {labels[j]: np.array([j]) for j in rest}
        return found | ({OTHERS: rest} if len(rest) else {})

    def _is_matrix_free(self, shape: tuple[int, int], groups: int) -> bool:
        n, d = shape
        wide = d > n and 8.0 * n * d > BASIS_BYTES
        return min(n, d) > EXACT_SIZE or wide or (groups > 1 and d > EXACT_SIZE)

    @property
    def _steps(self) -> NewtonSteps:
        return NewtonSteps(1e-14 if self.curvature_ == "mode" else 1e-13, self.max_iter)

    def _solve(self, features: LinearOperator, rows: Rows, groups: dict[str, Any]) -> Posterior:
        """The posterior, with a parameter of the likelihood at the maximum of the evidence too."""
        self.curvature_ = "mode" if self._matrix_free else self.curvature
        likelihood = self._first_likelihood(rows)
        for _ in range(TUNING_STEPS):
            posterior = self._inferred(features, rows, groups, likelihood)
            self._keep_likelihood(likelihood)
            found = Weights.of(posterior, None, 1, self.fit_intercept)
            outputs = (features @ found.slopes(found.mean[:, 0])) + found.constant(found.mean[:, 0])
            likelihood, gain = self._retuned(
                likelihood, outputs + rows.offset + self._base, found.variances(features)[:, 0], rows
            )
            if gain <= SETTLED:
                return posterior
        warnings.warn(
            f"the parameter of the likelihood did not settle in {TUNING_STEPS} steps: the last gained {gain:.1e} nats",
            ConvergenceWarning, stacklevel=2,
        )  # fmt: skip
        return posterior

    def _inferred(
        self, features: LinearOperator, rows: Rows, groups: dict[str, Any], likelihood: Likelihood
    ) -> Posterior:
        design = WithConstant(features) if self.fit_intercept else features
        model = LinearModel(
            design, rows.targets, likelihood, weights=rows.weights, offset=rows.offset + self._base
        )  # fmt: skip
        prior = self._prior(groups, features.shape[1])
        free = sum(value is None for value in prior.precision.values())  # type: ignore[union-attr]
        method: Method = Exact(newton=self._steps)
        if self._matrix_free:
            method = Krylov(newton=self._steps) if free <= 1 and len(groups) == 1 else CG()
        posterior = infer(
            model, prior=prior, method=method, draws=DRAWS if self._matrix_free else 0,
            progress=None if self.verbose else False, curvature=self.curvature_,
            tuning=ByEvidence(tolerance=GRADIENT) if free > 1 else None,
        )  # fmt: skip
        gap = posterior.diagnostics.bound_gap or 0.0
        if not posterior.diagnostics.converged and gap > ENOUGH:
            warnings.warn(
                f"the best Gaussian was not found in {self.max_iter} steps: one more would gain {gap:.1e} nats; "
                "allow more with max_iter", ConvergenceWarning, stacklevel=2,
            )  # fmt: skip
        self.n_iter_ = max(1, posterior.diagnostics.tuning_steps)
        return posterior

    def _prior(self, groups: dict[str, Any], d: int) -> PerGroup:
        """A precision for every group, and a wide prior of its own for the intercept."""
        places: dict[str, Any] = {name: torch.as_tensor(np.asarray(columns)) for name, columns in groups.items()}
        precision: dict[str, float | None] = dict.fromkeys(groups, self.prior_precision)
        if self.fit_intercept:
            places[INTERCEPT], precision[INTERCEPT] = torch.tensor([d]), INTERCEPT_STD**-2
        return PerGroup(places, precision)

    def _set_precisions(self, posterior: Posterior, groups: dict[str, Any]) -> None:
        values = posterior.prior.precision[: len(groups)].tolist()
        self.precisions_ = dict(zip(groups, values, strict=True))

    def _set_coefficients(self, dtype: Any) -> None:
        known = self._weights
        self._slopes = known.slopes(known.mean[:, 0])
        coef = self._slopes / self._columns.scale
        constant = float(known.constant(known.mean[:, 0])) + self._base
        self.coef_ = coef.numpy().astype(dtype)
        self.intercept_ = constant - float(coef @ self._columns.centre)

    # coefficients

    def summary(self, level: float = 0.95) -> Any:
        """The coefficients with their uncertainty, in the units of the columns of X.

        Parameters
        ----------
        level : float
            Probability that an interval holds.

        Returns
        -------
        DataFrame
            A row for each coefficient, the intercept first: `mean`, `std`, `lower`, `upper`, and `sign`, the
            probability that it has the sign of its mean. A table to print where pandas is not installed.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the level is not between zero and one.
        """
        check_is_fitted(self)
        width = float(ndtri(0.5 + 0.5 * _checked_level(level)))
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        mean, std = self.coef_.astype(float), self._coefficient_std()
        index = [str(name) for name in names]
        if self.fit_intercept:
            index, mean = [INTERCEPT, *index], np.concatenate([[self.intercept_], mean])
        else:
            std = std[1:]
        certain = np.divide(np.abs(mean), std, out=np.zeros_like(mean), where=std > 0)
        return as_table(
            index,
            {
                "mean": mean,
                "std": std,
                "lower": mean - width * std,
                "upper": mean + width * std,
                "sign": ndtr(certain),
            },
        )

    def _coefficient_std(self) -> np.ndarray:  # (1 + d,), the intercept first
        known, columns = self._weights, self._columns
        root = known.slopes(known.root[:, 0]) / columns.scale[:, None]
        variance = root.square().sum(1)
        shift = known.constant(known.root[:, 0]) - columns.centre @ root
        at_zero = shift.square().sum()
        if known.basis is not None:  # where there are no data, the prior
            outside = (1 - known.basis.square().sum(1)).clamp_min(0)
            variance = variance + outside / (known.precision * columns.scale.square())
            away = columns.centre / columns.scale
            left = away.square().sum() - (known.basis.mT @ away).square().sum()
            at_zero = at_zero + left.clamp_min(0) / known.precision
        return torch.cat([at_zero.reshape(1), variance]).sqrt().numpy()

    # predictions

    def linear_predictor(self, X: Any, return_std: bool = False, offset: Any = None) -> Any:
        """The mean of the linear predictor, and with `return_std` its standard deviation.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        return_std : bool
            Whether to return standard deviations too.
        offset : array, optional
            Added to the linear predictor of each row.

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
        mean, variance = self._outputs(X, offset, with_variance=return_std)
        return (mean.numpy(), variance.sqrt().numpy()) if return_std else mean.numpy()

    def predict_distribution(self, X: Any, offset: Any = None, exposure: Any = None) -> Distribution:
        """The distribution of a new observation of each row, averaged over the posterior.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

        Returns
        -------
        torch.distributions.Distribution
            With `mean`, `variance`, `log_prob`, `cdf`, `icdf` and `sample`.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the columns are not those of `fit`.
        """
        mean, variance = self._outputs(X, offset, with_variance=True)
        given = None if exposure is None else _per_row("exposure", exposure, len(mean))
        likelihood, added = self._observed(len(mean), given)
        return likelihood.predictive("quadrature", mean + added, Spread(variance, None))

    def interval(self, X: Any, level: float = 0.9, offset: Any = None, exposure: Any = None) -> Any:
        """An interval that holds a new observation with a probability, as much of it left out on each side.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        level : float
            Probability that the interval holds.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

        Returns
        -------
        tuple of array
            Lower and upper ends.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the level is not between zero and one.
        """
        outside = 0.5 * (1 - _checked_level(level))
        found = self.predict_distribution(X, offset, exposure)
        return tuple(found.icdf(torch.tensor(side).double()).numpy() for side in (outside, 1 - outside))

    def log_predictive_density(self, X: Any, y: Any, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """The log density, or log probability, of observed targets under the prediction.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        y : array
            Targets.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

        Returns
        -------
        array
            (n,).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If there is not one target for each row.
        """
        found = self.predict_distribution(X, offset, exposure)
        return found.log_prob(self._targets(y, found)).numpy()

    def cumulative_probability(self, X: Any, y: Any, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """The predicted probability of no more than was observed.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix
            Rows of inputs.
        y : array
            Targets.
        offset : array, optional
            Added to the linear predictor of each row.
        exposure : array, optional
            As in `fit`.

        Returns
        -------
        array
            (n,).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If there is not one target for each row.
        """
        found = self.predict_distribution(X, offset, exposure)
        return found.cdf(self._targets(y, found)).numpy()

    def _targets(self, y: Any, found: Distribution) -> Tensor:
        values = torch.from_numpy(np.asarray(y, dtype=float))
        if values.shape != found.batch_shape:
            raise ValueError(
                f"y has shape {tuple(values.shape)}, expected {tuple(found.batch_shape)}, one for each row"
            )
        return values

    def _outputs(self, X: Any, offset: Any, *, with_variance: bool) -> tuple[Tensor, Tensor]:  # (n,) each
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        features = self._columns.features(X)
        added = torch.from_numpy(_per_row("offset", offset, X.shape[0])) + self._base
        mean = features @ self._slopes + self._weights.constant(self._weights.mean[:, 0]) + added
        variance = self._weights.variances(features)[:, 0] if with_variance else torch.zeros_like(mean)
        return mean, variance

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _places(columns: Any, names: Any, d: int) -> np.ndarray:
    """Numbers of columns that are given by number, by name, or by how their names begin."""
    if isinstance(columns, str):
        found = [j for j, name in enumerate(() if names is None else names) if str(name).startswith(columns)]
        if not found:
            raise ValueError(f"no column of X has a name that begins with {columns!r}")
        return np.array(found)
    if isinstance(columns, slice):
        return np.arange(d)[columns]
    values = np.asarray(columns)
    if values.dtype.kind in "OUS":
        known = {str(name): j for j, name in enumerate(() if names is None else names)}
        if missing := [str(name) for name in values if str(name) not in known]:
            raise ValueError(f"X has no column {missing[0]!r}")
        return np.array([known[str(name)] for name in values])
    return np.arange(d)[values]


def _per_row(name: str, values: Any, rows: int) -> np.ndarray:
    """One finite number for each row, zeros where none are given."""
    if values is None:
        return np.zeros(rows)
    given = (
        np.broadcast_to(np.asarray(values, dtype=float), (rows,)) if np.ndim(values) == 0 else np.asarray(values, float)
    )
    if given.shape != (rows,) or not np.isfinite(given).all():
        raise ValueError(f"{name} has shape {given.shape}, expected {rows} finite numbers, one for each row")
    return given.copy()


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}, expected a probability between zero and one")
    return level
