"""A table without a network: diabetes progression after a year, of 442 patients described by ten numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from rich.table import Table
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lapwing.app.demo.words import coverage, standing
from lapwing.tabular import BayesianMLPRegressor

OURS, GP, PLAIN = "lapwing", "a Gaussian process", "a plain MLP"
TRAINED, LEVEL = 300, 0.9
ENDS = 1.6449  # standard deviations of a Gaussian, for 90 %


@final
@dataclass(frozen=True, eq=False)
class Intervals:
    """Predictions of one method at the test rows, with 90 % intervals."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(cls, mean: np.ndarray, std: Any) -> Intervals:
        """Those of a Gaussian."""
        return cls(mean, mean - ENDS * std, mean + ENDS * std)

    def inside(self, targets: np.ndarray) -> np.ndarray:
        """Which targets lie in their intervals."""
        return (self.low <= targets) & (targets <= self.high)

    def rmse(self, targets: np.ndarray) -> float:
        """The root of the mean squared error."""
        return float(np.sqrt(np.mean((self.mean - targets) ** 2)))

    def width(self) -> float:
        """The mean width of the intervals."""
        return float(np.mean(self.high - self.low))


@final
@dataclass(frozen=True, eq=False)
class TableScene:
    """Predictions for patients that no method was trained on."""

    targets: np.ndarray  # (n,)
    methods: dict[str, Intervals]

    title = "A table, no network: how far will diabetes have progressed in a year?"
    picture = "table.png"
    panels = 1, 3

    @property
    def sentence(self) -> str:
        """What the figures say."""
        ours = self.methods[OURS]
        squares = {name: torch.from_numpy((each.mean - self.targets) ** 2) for name, each in self.methods.items()}
        inside = {name: int(each.inside(self.targets).sum()) for name, each in self.methods.items()}
        n = len(self.targets)
        return (
            f"lapwing's error (RMSE {ours.rmse(self.targets):.1f}) {standing(squares, OURS)}; "
            f"{inside[OURS]} of {n} patients fall inside its {LEVEL:.0%} intervals, "
            f"{coverage(inside[OURS], n, LEVEL)} ({GP} {inside[GP]}, {PLAIN} {inside[PLAIN]})."
        )

    @property
    def tables(self) -> list[Table]:
        """The figures."""
        found = Table("", "RMSE", f"{LEVEL:.0%} interval: inside", "mean width")
        for name, each in self.methods.items():
            inside = f"{each.inside(self.targets).mean():.0%}"
            found.add_row(name, f"{each.rmse(self.targets):.1f}", inside, f"{each.width():.0f}")
        return [found]

    def draw(self, panels: Any) -> None:
        """Intervals in the order of the predictions, and what was observed."""
        for panel, (name, each) in zip(panels.flat, self.methods.items(), strict=True):
            order, place = np.argsort(each.mean), np.arange(len(self.targets))
            inside = each.inside(self.targets)[order]
            seen = self.targets[order]
            panel.vlines(place, each.low[order], each.high[order], color="#9ecae1")
            panel.plot(place, each.mean[order], color="#08519c", linewidth=1.2, label="predicted")
            panel.plot(place[inside], seen[inside], "k.", markersize=3, label="observed, inside")
            panel.plot(place[~inside], seen[~inside], "x", color="#d62728", markersize=5, label="observed, outside")
            panel.set_title(f"{name}: RMSE {each.rmse(self.targets):.1f}, {inside.mean():.0%} inside", fontsize=10)
            panel.set(xlabel="test patients, by prediction", xticks=[], ylim=(-100, 450))
        panels.flat[0].set_ylabel("disease progression")
        panels.flat[0].legend(fontsize=7, loc="upper left")


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows to train on and others to test on, with their targets, in a fixed order."""
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:TRAINED], order[TRAINED:]
    return X[train], y[train], X[test], y[test]


def run() -> TableScene:
    """Fit the three methods and predict the test rows."""
    X, y, new, targets = split()
    model = BayesianMLPRegressor(verbose=False).fit(X, y)
    ours = Intervals(model.predict(new), *model.interval(new, LEVEL))
    process = gaussian_process(X, y)
    plain = plain_mlp().fit(X, y)
    noise = np.sqrt(np.mean((plain.predict(X) - y) ** 2))
    return TableScene(
        targets,
        {
            PLAIN: Intervals.around(plain.predict(new), noise),
            GP: Intervals.around(*process.predict(new, return_std=True)),
            OURS: ours,
        },
    )


def gaussian_process(X: np.ndarray, y: np.ndarray) -> Any:
    """scikit-learn's, fitted: a length scale for each column and noise, all by marginal likelihood."""
    kernel = ConstantKernel() * RBF(np.ones(10), (1e-2, 1e4)) + WhiteKernel()
    with warnings.catch_warnings():  # a length scale at its bound switches a column off, which is meant
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)).fit(X, y)


def plain_mlp() -> Any:
    """scikit-learn's, as large as one of lapwing's networks; its training error serves as the width of intervals."""
    network = MLPRegressor(hidden_layer_sizes=(50,), max_iter=2_000, random_state=0)
    return TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())
