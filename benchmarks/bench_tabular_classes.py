"""Which classifier of a table has the best probabilities, when it gets X and y and nothing else?

Protocol, written before the first score. Eight tables: wine, breast cancer and digits of scikit-learn; Letter, Satellite, Vehicle
and Pima (with its missing values) of R's mlbench, spam of kernlab (`python -m benchmarks.fetch mlbench kernlab`). Ten splits a
table, stratified, by the seed of their number: four fifths of the rows to train on but 1,000 at most, and of the others 3,000 at most
to test on. Every method gets the training rows of a split and predicts its test rows once; whatever a method has to choose is chosen
on the training rows alone. Choices inside `lapwing.tabular` were made on other tables (Sonar, Ionosphere, Glass, Vowel with and
without columns of noise, HouseVotes84, BreastCancer, Shuttle and DNA of mlbench, iris); the number of hidden units was looked at on
parts of the training rows of split 0 of digits and Letter, too.

`lapwing` was run three times, since choices were changed after scores had been seen; each change was made on other rows than those of the
tests. A first run was stopped after splits 0 to 4 of wine, breast cancer, Vehicle and Pima: on two half-moons, which are no part of this,
networks had been found to stay nearly linear, since training began with too narrow a prior of the logits. Its nll had been 0.0509, 0.0658,
0.3417 and 0.4922. With a wider first prior, chosen on the other tables named above, it was 0.0507, 0.0652, 0.3478 and 0.5482 on the same
splits (0.0606, 0.0574, 0.3470 and 0.5242 on ten), and 0.2074, 0.3049, 0.1322 and 0.7146 on split 0 of spam, Satellite, digits and
Letter. Why Pima had become worse was then looked for in its training rows alone, of splits 0 to 3, with three tenths of them held out: from
the wide prior training ended at lower bounds, by 2 to 96 nats. So each network now begins from both, and goes on from where the bound is
higher after 21 steps. On held-out parts of half-moons that is as good as the wide prior; of Sonar, Glass, Ionosphere and Vowel now better, now worse. The figures below are those of this third run.

Not all of it was run yet, for time: of the four larger tables split 0, of Satellite splits 0 to 2. `to_come` has the rest.

Scores are means over the test rows: the negative log probability of the labels (`nll`), accuracy, and the expected calibration error of
the largest probability (15 bins of equal width). Probabilities below 1e-4 count as that, for every method, since isotonic regression
gives zeros. Seconds are those of the processor for fit and prediction, on one thread. Methods:

- `lapwing`: `BayesianMLPClassifier()` as it comes, five members; `lapwing, one`: the same with one member, on the smaller tables.
- `logistic`: LogisticRegressionCV of standardised columns, ten penalties, by 5-fold log loss.
- `boosting`: HistGradientBoostingClassifier, learning rate and leaves by 3-fold log loss, then calibrated by isotonic regression
  (CalibratedClassifierCV, 5 folds, whose five models are averaged).
- `mlp`: MLPClassifier with 100 units, standardised columns, the penalty by 3-fold log loss, then calibrated by temperature scaling
  (CalibratedClassifierCV, 5 folds, whose five networks are averaged).

Missing values are the column's mean and an indicator for `logistic` and `mlp`; the others take them. To reach: `lapwing` best or tied on at
least 5 of 8, where tied means that the mean over splits of its nll less that of the best other method is at most two standard
errors of that mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np

SMALL = ("wine", "breast cancer", "vehicle", "pima")
LARGE = ("satellite", "spam", "letter", "digits")
METHODS = ("lapwing", "logistic", "mlp", "boosting")


def cells(sets: tuple[str, ...], title: str, splits: list[int], *others: str) -> dict[str, dict[str, Any]]:
    return {
        f"{data}, {method}, {title}": {"data": data, "method": method, "splits": splits}
        for data in sets
        for method in (*METHODS, *others)
    }


def to_come() -> dict[str, dict[str, Any]]:
    """What the protocol asks beside; lines move to `CELLS` when they have been run."""
    return {
        **cells(LARGE[1:], "splits 1 to 2", [1, 2]),
        **cells(LARGE, "splits 3 to 4", [3, 4]),
        **cells(LARGE, "splits 5 to 7", [5, 6, 7]),
        **cells(LARGE, "splits 8 to 9", [8, 9]),
    }


CELLS: dict[str, dict[str, Any]] = {
    "wine, a part": {"data": "wine", "method": "logistic", "splits": [0]},
    **cells(SMALL, "splits 0 to 4", [0, 1, 2, 3, 4], "lapwing, one"),
    **cells(SMALL, "splits 5 to 9", [5, 6, 7, 8, 9], "lapwing, one"),
    **cells(LARGE, "split 0", [0]),
    **cells(LARGE[:1], "splits 1 to 2", [1, 2]),
    **{name: cell for name, cell in cells(("spam",), "splits 1 to 2", [1, 2]).items() if cell["method"] != "lapwing"},
}
MOST_TRAINING_ROWS = 1000
MOST_TEST_ROWS = 3000
LEAST_PROBABILITY = 1e-4
BINS = 15

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def lapwing(members: int) -> Callable[[int], Any]:
    def model(seed: int) -> Any:
        from lapwing.tabular import BayesianMLPClassifier

        return BayesianMLPClassifier(members=members, random_state=seed, verbose=False)

    return model


def logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    return standardised(LogisticRegressionCV(Cs=10, cv=folds, scoring="neg_log_loss", max_iter=1000))


def boosting(seed: int) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier

    inner = HistGradientBoostingClassifier(max_iter=100, min_samples_leaf=10, random_state=seed)
    grid = [{"learning_rate": [rate], "max_leaf_nodes": [leaves]} for rate in (0.05, 0.15) for leaves in (4, 15)]
    return Tuned(inner, grid, lambda best: CalibratedClassifierCV(best, method="isotonic", cv=folds(5, seed)), seed)


def mlp(seed: int) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.neural_network import MLPClassifier

    inner = standardised(MLPClassifier((100,), max_iter=400, random_state=seed))
    grid = [{"mlpclassifier__alpha": [alpha]} for alpha in (1e-3, 0.1, 1.0)]
    return Tuned(inner, grid, lambda best: CalibratedClassifierCV(best, method="temperature", cv=folds(5, seed)), seed)


class Tuned:
    """The best of a grid by 3-fold log loss, calibrated."""

    def __init__(self, model: Any, grid: list[dict], calibrated: Callable[[Any], Any], seed: int) -> None:
        self.model, self.grid, self.calibrated, self.seed = model, grid, calibrated, seed

    def fit(self, x: np.ndarray, y: np.ndarray) -> Tuned:
        from sklearn.model_selection import GridSearchCV

        search = GridSearchCV(self.model, self.grid, scoring="neg_log_loss", cv=folds(3, self.seed), refit=False)
        self.model.set_params(**search.fit(x, y).best_params_)
        self.found = self.calibrated(self.model).fit(x, y)
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return self.found.predict_proba(x)


def folds(count: int, seed: int) -> Any:
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(count, shuffle=True, random_state=seed)


def standardised(model: Any) -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(SimpleImputer(add_indicator=True), StandardScaler(), model)


MODELS: dict[str, Callable[[int], Any]] = {
    "lapwing": lapwing(5), "lapwing, one": lapwing(1), "logistic": logistic, "boosting": boosting, "mlp": mlp
}  # fmt: skip


def split(data: str, number: int) -> Split:
    """Inputs and class numbers to train on, and to test on."""
    from sklearn.model_selection import train_test_split

    from benchmarks.data import class_table

    x, y = class_table(data)
    rows = np.arange(len(y))
    size = min(MOST_TRAINING_ROWS, int(0.8 * len(y)))
    train, test = train_test_split(
        rows, train_size=size, test_size=min(MOST_TEST_ROWS, len(y) - size), random_state=number, stratify=y
    )
    return x[train], y[train], x[test], y[test]


def scores(probabilities: np.ndarray, y: np.ndarray) -> dict[str, float]:
    clipped = probabilities.clip(LEAST_PROBABILITY)
    clipped = clipped / clipped.sum(1, keepdims=True)
    own = clipped[np.arange(len(y)), y]
    right = clipped.argmax(1) == y
    return {
        "nll": float(-np.log(own).mean()),
        "accuracy": float(right.mean()),
        "ece": calibration(clipped.max(1), right),
    }


def calibration(confidence: np.ndarray, right: np.ndarray) -> float:
    """The mean distance of confidence and accuracy over bins, weighted by their rows."""
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(places, confidence - right, BINS)
    return float(np.abs(gaps).sum() / len(right))


def measure(data: str, method: str, splits: list[int]) -> dict[str, Any]:
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # optimisers that stop early
    outcomes = []
    for number in splits:
        x, y, new, truth = split(data, number)
        model = MODELS[method](number)
        started = time.process_time()
        found = model.fit(x, y).predict_proba(new)
        seconds = time.process_time() - started
        rounded = {name: float(f"{value:.6g}") for name, value in scores(found, truth).items()}
        outcomes.append({"split": number, "seconds": round(seconds, 2), "scores": rounded})
    return {"rows": len(x), "test_rows": len(new), "columns": x.shape[1], "outcomes": outcomes}


if __name__ == "__main__":
    harness.main(__file__, CELLS | to_come(), measure)
