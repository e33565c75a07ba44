"""Regression of a table by small networks that the evidence trains, as a scikit-learn estimator."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, final

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_y, check_is_fitted
from torch import Tensor

from lapwing.linear.fitting import fitted_whole, row_weights
from lapwing.runtime.progress import reporter
from lapwing.tabular.columns import Encoding, Table, scale_of
from lapwing.tabular.estimators import TableEstimator, check_size, entropy, generators, random_of
from lapwing.tabular.iterations import TrainedNetworks
from lapwing.tabular.mixtures import MemberMixture
from lapwing.tabular.networks import initial
from lapwing.tabular.noise import InputNoise, learn
from lapwing.tabular.posterior import LeftOut, NetworkPosteriors, Units, debiased_squares
from lapwing.tabular.training import Groups, State, TrainingData, joined, reopened, start, train

MANY_ROWS = 6_000  # beyond it, training begins with
PART_ROWS = 4_000  # of them
FURTHER_STEPS = 60  # at most, on all rows after a part
PARTIAL_STEPS = 20  # at most, of partial_fit
LEAST_NOISE = 1e-3  # that can be given, in units of the targets' spread
NOISE_ROUNDS = 2  # in which networks of the noise are trained, and the others after them


@final
@dataclass(frozen=True, eq=False)
class LeftOutRows:
    """Each training row predicted from the others, at the fitted precisions and linearisations."""

    leverage: np.ndarray  # targets' shape, the share of a row in its own prediction, mean over the members
    residual: np.ndarray  # targets' shape
    mean: np.ndarray  # targets' shape
    std: np.ndarray  # targets' shape, of an observation
    log_density: np.ndarray  # targets' shape
    cdf: np.ndarray  # targets' shape, the probability of less than was observed


class BayesianMLPRegressor(MultiOutputMixin, RegressorMixin, TableEstimator):
    """Regression of a table with predictive intervals, without a network to bring and without rows to hold out.

    Several tanh networks with one hidden layer are trained side by side from different starts, by Levenberg-Marquardt
    steps on all rows in turns with MacKay's updates of the precisions: of the noise, of each layer's weights and
    biases, and of the weights that leave each column, so that columns without use are switched off (`relevance_`
    has each column's share in the slopes of the networks over the training rows).
    Predictions are the mixture of their linearised posteriors with equal weights. Each target of several has networks
    of its own. Their standard deviations are those of the posteriors; the shape of errors, which real tables have with
    a sharper peak and longer tails than a Gaussian, is that of the training rows, each predicted from the others.

    Inputs and targets are standardised inside; columns that are constant stay unscaled. In a data frame, columns of
    text and of categories are known by their dtype and become one input a level, where missing is a level too; a level
    that was never seen has none of them. Missing numbers are replaced by the mean of their column, with a further input
    that says where, if any were missing in training. Booleans are numbers. Dates are refused.

    Training ends for each network when an iteration is worth less than `tol` nats of log evidence, after `max_iter`
    iterations, or by an interrupt from the keyboard, which keeps the networks as they are (`converged_` is then False).
    Time grows with rows × weights², or rows³ where that is less: seconds for a thousand rows. Of more than 6,000 rows a
    random part is used at first, and all for the last iterations, block by block, so that memory hardly grows with
    their number; more than 200,000 are refused.

    `noise="input"` lets the variance of the noise depend on the inputs: networks of its logarithm are trained on what
    the others leave, in two turns, and are regularised by an evidence of their own. It takes about three times as long.

    `log_evidence_` is that of the training rows in the targets' units, the mean over the members (`log_evidences_`),
    and does not count that networks with permuted units are the same. `leave_one_out_` predicts each training row from
    the others at the fitted precisions and linearisations, without refitting, so that it is on the hopeful side.
    `noise_std_` is that of the noise, `n_iter_` the most iterations of a network.

    `random_state=None` takes fresh starts every time, without touching numpy's global state.

    Parameters
    ----------
    hidden_units : int
        Hidden units of each network.
    members : int
        Number of networks.
    noise : "constant", "input" or float
        Whether the variance of the noise depends on the inputs; or its standard deviation in the targets' units, where
        that is known. Zero is for functions without noise, such as simulations.
    max_iter : int
        Largest number of iterations.
    tol : float
        Gain in log evidence, in nats, below which a network's training ends.
    random_state : int, RandomState or None
        Decides the starts of the networks.
    verbose : bool, optional
        Whether to show progress. By default only on a terminal.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesianMLPRegressor(members=2, max_iter=20).fit(X[:200, 2:5], y[:200])
    >>> mean, std = model.predict(X[200:203, 2:5], return_std=True)
    >>> mean.shape, bool((std > 30).all()), [feature.round().shape for feature in model.interval(X[200:203, 2:5], 0.9)]
    ((3,), True, [(3,), (3,)])
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "hidden_units": [Interval(Integral, 1, None, closed="left")],
        "members": [Interval(Integral, 1, None, closed="left")],
        "noise": [StrOptions({"constant", "input"}), Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["boolean", None],
    }

    def __init__(
        self, *, hidden_units: int = 50, members: int = 5, noise: str | float = "constant", max_iter: int = 100,
        tol: float = 0.01, random_state: int | np.random.RandomState | None = 0, verbose: bool | None = None,
    ) -> None:  # fmt: skip
        self.hidden_units = hidden_units
        self.members = members
        self.noise = noise
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianMLPRegressor:
        """Train the networks; an error leaves the estimator as it was. `sample_weight` counts each row that often.

        Parameters
        ----------
        X : array or data frame
            Rows of inputs; missing values are allowed.
        y : array
            Targets.
        sample_weight : array, optional
            How often each row counts.

        Returns
        -------
        BayesianMLPRegressor
            This estimator.

        Raises
        ------
        ValueError
            If columns or targets cannot be used, or there are more rows than memory or time allow.
        """
        return fitted_whole(self, X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> BayesianMLPRegressor:
        """Further rows beside those before: the networks are trained on from where they are, for a few iterations.

        Scales, categories and, with `noise="input"`, the pattern of the noise stay as `fit` found them. All rows so far
        are kept for this, but not in files. The first call is a `fit`; an error leaves the estimator as it was.

        Parameters
        ----------
        X : array or data frame
            Rows of inputs, with the columns of `fit`.
        y : array
            Targets.
        sample_weight : array, optional
            How often each row counts.

        Returns
        -------
        BayesianMLPRegressor
            This estimator.

        Raises
        ------
        ValueError
            If the rows do not fit those before, or the estimator came from a file.
        """
        if not hasattr(self, "_networks"):
            return self.fit(X, y, sample_weight)
        self._validate_params()
        fresh = copy(self)
        fresh._continue(X, y, sample_weight)
        self.__dict__ = fresh.__dict__
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the mixture, and with `return_std` the standard deviation of a new observation.

        Parameters
        ----------
        X : array or data frame
            Rows of inputs, with the columns of `fit`.
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
        mixture = self._mixture(X)
        if not return_std:
            return self._shaped(mixture.mean)
        return self._shaped(mixture.mean), self._shaped(mixture.std)

    def interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Low and high ends of central intervals, which hold a new observation with this probability.

        Parameters
        ----------
        X : array or data frame
            Rows of inputs, with the columns of `fit`.
        level : float
            Probability between 0 and 1.

        Returns
        -------
        tuple of array
            Low and high ends.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the level is not between 0 and 1, or the columns are not those of `fit`.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}: expected a probability strictly between 0 and 1, such as 0.9")
        low, high = self._mixture(X).interval(level)
        return self._shaped(low), self._shaped(high)

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """The log density of observed targets under the mixture: the targets' shape.

        Parameters
        ----------
        X : array or data frame
            Rows of inputs, with the columns of `fit`.
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
        mixture = self._mixture(X)
        return self._shaped(mixture.log_density(self._observed(y, mixture)))

    def cumulative_probability(self, X: Any, y: Any) -> np.ndarray:
        """The probability of less than was observed: the targets' shape.

        Over many rows it is spread evenly between 0 and 1 where the predictive distributions are right.

        Parameters
        ----------
        X : array or data frame
            Rows of inputs, with the columns of `fit`.
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
        mixture = self._mixture(X)
        return self._shaped(mixture.cdf(self._observed(y, mixture)))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of observations at all rows of X together: (rows, n_samples), or (rows, targets, n_samples).

        Parameters
        ----------
        X : array or data frame
            Rows of inputs, with the columns of `fit`.
        n_samples : int
            Number of draws.
        random_state : int, RandomState or None
            Of the draws.

        Returns
        -------
        array
            (rows, n_samples), or (rows, targets, n_samples).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If `n_samples` is below one.
        """
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}: expected at least one")
        drawn = self._fitted().sample(self._inputs(X), n_samples, random_of(random_state)).numpy()
        return drawn if self._several else drawn[:, 0]

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        table, targets = self._read_training(X, y)
        weights = row_weights(targets, sample_weight)
        encoding = Encoding.of(table, weights)
        mean = np.average(targets, axis=0, weights=weights)
        units = Units(torch.from_numpy(mean), torch.from_numpy(scale_of(targets, mean, weights)))
        self._encoding = encoding
        self._entropy = entropy(self.random_state)
        data = self._data_of(table, targets, weights, units, self.members)
        sizes = (data.inputs.shape[1], self.hidden_units, 1)
        check_size(len(targets), sizes, len(data.targets))
        groups = Groups.by_column(torch.from_numpy(encoding.columns), sizes)
        trained = self._trained(sizes, groups, data)
        self._networks = NetworkPosteriors.of(trained.state, groups, data, self.members, units)
        if self.noise == "input":
            trained, data = self._with_input_noise(trained, sizes, groups, data)
        self._keep(trained, data)

    def _continue(self, X: Any, y: Any, sample_weight: Any) -> None:
        """With the rows so far and these."""
        if self._data is None:
            raise ValueError("this estimator was loaded from a file, which holds no training rows: fit all rows again")
        found = self._networks
        table, targets = self._read_more(X, y)
        weights = row_weights(targets, sample_weight)
        data = joined(self._data, self._data_of(table, targets, weights, found.units, found.members, found.noise))
        groups = Groups.by_column(torch.from_numpy(self._encoding.columns), self._sizes)
        check_size(len(data.inputs), self._sizes, len(data.targets))
        state = reopened(start(found.networks, groups), found.precision, found.noise_precision)
        steps = min(self.max_iter, PARTIAL_STEPS)
        trained = train(state, groups, data, max_iter=steps, tol=self.tol, report=reporter(self.verbose))
        self._networks = NetworkPosteriors.of(trained.state, groups, data, found.members, found.units, found.noise)
        self._keep(trained, data)

    def _keep(self, trained: TrainedNetworks[State], data: TrainingData) -> None:
        """What is known at the end of training."""
        self._data = data
        self._networks, left_out = self._networks.shaped(data)
        self.n_iter_ = int(trained.iterations.max())
        self.converged_ = bool(trained.converged.all())
        self._set_evidence()
        self.leave_one_out_ = self._left_out_rows(left_out, data)

    def _read_training(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        """A table and targets (n, targets), checked."""
        table, y = self._read_rows(X, y, multi_output=True, y_numeric=True)
        self._several = y.ndim == 2
        return table, np.array(y, dtype=float).reshape(len(y), -1)  # a copy: torch wants to be able to write

    def _read_more(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        """Further rows, with as many targets as before."""
        table = self._read(X)
        y = _check_y(y, multi_output=True, y_numeric=True, estimator=self)
        check_consistent_length(table.numbers, y)
        targets = np.array(y, dtype=float).reshape(len(y), -1)
        if (y.ndim == 2) != self._several or targets.shape[1] != self._networks.targets:
            raise ValueError(
                f"y has shape {y.shape}, and the estimator was fitted to {self._networks.targets} target(s)"
                f"{' in columns' if self._several else ' without an axis for it'}: give y in the form of the first fit"
            )
        return table, targets

    def _data_of(
        self, table: Table, targets: np.ndarray, weights: np.ndarray, units: Units, members: int,
        noise: InputNoise | None = None,
    ) -> TrainingData:  # fmt: skip
        """Standardised, with the targets of each network."""
        values = (torch.from_numpy(targets) - units.mean) / units.scale
        each = values.mT.repeat_interleave(members, dim=0)[:, :, None]
        data = TrainingData.of(torch.from_numpy(self._encoding.inputs(table)), each, torch.from_numpy(weights))
        data = replace(data, known_precision=self._known_precision(units, members))
        if noise is None:
            return data
        return replace(data, noise_variance=noise.variance(data.inputs).repeat_interleave(members, dim=0))

    def _known_precision(self, units: Units, members: int) -> Tensor | None:  # (targets · members,)
        """Of the standardised targets of each network, where the noise is given."""
        if isinstance(self.noise, str):
            return None
        std = (self.noise / units.scale).clamp_min(LEAST_NOISE)
        return std.pow(-2).repeat_interleave(members)

    def _trained(self, sizes: tuple[int, ...], groups: Groups, data: TrainingData) -> TrainedNetworks[State]:
        """On all rows or, if they are many, on a part of them first, which does most of the work at little cost."""
        state = start(initial(sizes, self._generators(data)), groups)
        report = reporter(self.verbose)
        n = len(data.inputs)
        if n <= MANY_ROWS:
            return train(state, groups, data, max_iter=self.max_iter, tol=self.tol, report=report)
        chosen = torch.from_numpy(random_of(self._entropy).permutation(n)[:PART_ROWS])
        first = train(state, groups, data.part(chosen), max_iter=self.max_iter, tol=self.tol, report=report)
        if first.interrupted:
            return first
        steps = min(self.max_iter, FURTHER_STEPS)
        then = train(first.state, groups, data, max_iter=steps, tol=self.tol, report=report)
        return replace(then, iterations=first.iterations + then.iterations)

    def _generators(self, data: TrainingData) -> list[torch.Generator]:
        """Member m of every target starts from the same weights, whatever else is trained beside it."""
        return [
            one for _ in range(len(data.targets) // self.members) for one in generators(self._entropy, self.members)
        ]

    def _with_input_noise(
        self, trained: TrainedNetworks[State], sizes: tuple[int, ...], groups: Groups, data: TrainingData
    ) -> tuple[TrainedNetworks[State], TrainingData]:
        """The networks trained further in turns with networks of their noise."""
        report = reporter(self.verbose)
        for _ in range(NOISE_ROUNDS):
            if trained.interrupted:
                break
            squares = debiased_squares(self._networks, data)
            noise = learn(squares, initial(sizes, self._generators(data)), groups, data, report)
            each = noise.variance(data.inputs).repeat_interleave(self.members, dim=0)
            data = replace(data, noise_variance=each)
            before = trained.iterations
            trained = train(trained.state, groups, data, max_iter=self.max_iter, tol=self.tol, report=report)
            trained = replace(trained, iterations=before + trained.iterations)
            self._networks = NetworkPosteriors.of(
                trained.state, groups, data, self.members, self._networks.units, noise
            )
        return trained, data

    def _set_evidence(self) -> None:
        """Attributes that say what was found."""
        found = self._networks
        by_target = found.log_evidence.reshape(found.targets, found.members)
        self.log_evidences_ = by_target.mT.numpy() if self._several else by_target[0].numpy()
        self.log_evidence_ = self.log_evidences_.mean(0) if self._several else float(by_target.mean())
        self.noise_std_ = self._shaped(found.noise_std[None])[0]
        slopes = found.relevance.reshape(found.targets, found.members, -1).mean(1)
        self.relevance_ = (slopes / slopes.sum(1, keepdim=True).clamp_min(1e-300)).numpy()
        if not self._several:
            self.relevance_ = self.relevance_[0]

    def _left_out_rows(self, found: LeftOut, data: TrainingData) -> LeftOutRows:
        units = self._networks.units
        targets = data.targets[:: self._networks.members, :, 0].mT * units.scale + units.mean
        mixture = found.prediction
        return LeftOutRows(
            leverage=self._shaped(found.leverage.mean(0)),
            residual=self._shaped(targets - mixture.mean),
            mean=self._shaped(mixture.mean),
            std=self._shaped(mixture.std),
            log_density=self._shaped(mixture.log_density(targets)),
            cdf=self._shaped(mixture.cdf(targets)),
        )

    def _fitted(self) -> NetworkPosteriors:
        check_is_fitted(self)
        return self._networks

    def _mixture(self, X: Any) -> MemberMixture:
        return self._fitted().predict(self._inputs(X))

    def _observed(self, y: Any, mixture: MemberMixture) -> Tensor:
        """Targets in the shape of predictions."""
        values = np.array(y, dtype=float)  # a copy: torch wants to be able to write
        expected = self._shaped(mixture.mean).shape
        if values.shape != expected:
            raise ValueError(f"y has shape {values.shape}, but the predictions for X have shape {expected}")
        return torch.from_numpy(values).reshape(mixture.mean.shape)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Of the layers."""
        layers = self._networks.networks.of
        return (layers[0].shape[2] - 1, *(layer.shape[1] for layer in layers))

    def _shaped(self, values: Tensor) -> np.ndarray:  # of (n, targets)
        return values.numpy() if self._several else values[:, 0].numpy()
