"""Are the probabilities of BayesianLogisticRegression as good as those of cross-validated logistic regression?

The protocol, which was committed before any score:

- Eight data sets. Four that everybody has: iris, wine, breast cancer, digits. Four more, fixed before any was tried:
  diabetes (scikit-learn's, above its median or not), wine quality (UCI's reds: up to 5, 6, from 7 on), and two that are
  generated since scikit-learn bundles no more: `wide` (120 rows, 300 columns, so that classes can be separated) and `noisy`
  (400 rows, three classes of 80, 15 and 5 %, a fifth of the labels drawn anew).
- Five folds, stratified and shuffled by a fixed seed. Every column is standardised by the training rows of its fold; one that is
  constant there is centred only.
- Rivals, on the same folds: LogisticRegressionCV(scoring="neg_log_loss", Cs=10, cv=5), which fits 50 times and once more, and
  LogisticRegression(C=1). Both may take 5,000 steps, so that none is judged before it has converged.
- NLL is a mean over rows, each predicted once. A probability below 1e-15 counts as that, for everybody. The difference to a rival
  is paired: `by_fold` are its means over the folds and `difference` their mean, with the standard error of that mean over folds, and
  beside it that over rows. `within_one_error` is whether the difference is at most its standard error over folds.
- Accuracy and ECE (15 bins) of all rows together; seconds are means over folds, on one thread.
- Text is generated as well, since none is bundled: words of a Zipf law over 100,000 columns, four kinds of documents, in each of
  which 2,000 random words are three times as frequent. Weights of a document are log(1 + count), scaled to length one, and not
  standardised. One split: 3,000 documents to learn from and 3,000 to judge by, where both errors are those over rows. LogisticRegression
  has its defaults, which suit no text, and LogisticRegressionCV looks for what does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import harness
import numpy as np

FOLDS, SMALLEST, STEPS = 5, 1e-15, 5_000
WORDS, KINDS, LIKED, LENGTH = 100_000, 4, 2_000, 120
Pair = tuple[Any, np.ndarray]


def bundled(name: str) -> Pair:
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)


def diabetes() -> Pair:
    x, y = bundled("diabetes")
    return x, (y > np.median(y)).astype(int)


def wine_quality() -> Pair:
    from benchmarks.data import uci

    task = uci("wine")
    x, y = (np.concatenate([part.numpy() for part in both]) for both in zip(task.train, task.test, strict=True))
    return x, np.digitize(y[:, 0], [5.5, 6.5])


def wide() -> Pair:
    from sklearn.datasets import make_classification

    return make_classification(120, 300, n_informative=10, n_redundant=20, random_state=1)


def noisy() -> Pair:
    from sklearn.datasets import make_classification

    return make_classification(
        400, 30, n_informative=6, n_redundant=4, n_classes=3, weights=[0.8, 0.15, 0.05], flip_y=0.2, random_state=2
    )


DATA = {
    "iris": lambda: bundled("iris"), "wine": lambda: bundled("wine"), "breast cancer": lambda: bundled("breast_cancer"),
    "digits": lambda: bundled("digits"), "diabetes": diabetes, "wine quality": wine_quality, "wide": wide,
    "noisy": noisy,
}  # fmt: skip


def text(documents: int, seed: int) -> Pair:
    """Counts of words as described above, as a sparse matrix, and what kind of document each is."""
    import scipy.sparse

    rng = np.random.default_rng(seed)
    common = 1 / np.arange(1, WORDS + 1)
    likes = np.ones((KINDS, WORDS))
    for kind in likes:
        kind[rng.choice(WORDS, LIKED, replace=False)] = 3
    chances = common * likes / (common * likes).sum(1, keepdims=True)
    kinds, lengths = rng.integers(KINDS, size=documents), 1 + rng.poisson(LENGTH, size=documents)
    words = [rng.choice(WORDS, length, p=chances[kind]) for kind, length in zip(kinds, lengths, strict=True)]
    rows = np.repeat(np.arange(documents), lengths)
    counts = scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, np.concatenate(words))), shape=(documents, WORDS))
    counts.sum_duplicates()
    weights = counts.log1p()
    lengths_of_rows = np.sqrt(np.asarray(weights.multiply(weights).sum(1)).ravel())
    return scipy.sparse.csr_matrix(scipy.sparse.diags(1 / lengths_of_rows) @ weights), kinds


def estimators() -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    from lapwing.linear import BayesianLogisticRegression

    by_folds = LogisticRegressionCV(
        Cs=10, cv=5, scoring="neg_log_loss", max_iter=STEPS, l1_ratios=(0.0,), use_legacy_attributes=False
    )
    return {
        "lapwing": BayesianLogisticRegression(),
        "cross-validated": by_folds,
        "C=1": LogisticRegression(C=1, max_iter=STEPS),
    }


def folds(x: Any, y: np.ndarray, seed: int) -> Iterator[tuple[Pair, Pair, np.ndarray]]:
    """Training and test rows of each fold, standardised, and where the latter were."""
    from sklearn.model_selection import StratifiedKFold

    for kept, held in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y):
        mean, std = x[kept].mean(0), x[kept].std(0)
        scale = np.where(std > 1e-12 * np.abs(mean), std, 1)
        yield ((x[kept] - mean) / scale, y[kept]), ((x[held] - mean) / scale, y[held]), held


def judged(model: Any, train: Pair, test: Pair) -> dict[str, Any]:
    """Probabilities of the test rows, and what they took."""
    fitting, fitted = harness.timed(lambda: model.fit(*train))
    predicting, probs = harness.timed(lambda: fitted.predict_proba(test[0]))
    return {"probs": np.clip(probs, SMALLEST, None), "fit_seconds": fitting, "predict_seconds": predicting}


def of_folds(data: str, seed: int) -> dict[str, Any]:
    from sklearn.base import clone

    x, y = DATA[data]()
    y = np.unique(y, return_inverse=True)[1]
    found: dict[str, dict[str, list]] = {name: {} for name in estimators()}
    places, truth = [], []
    for train, test, held in folds(x, y, seed):
        places.append(np.full(len(held), len(places)))
        truth.append(test[1])
        for name, model in estimators().items():
            for key, value in judged(clone(model), train, test).items():
                found[name].setdefault(key, []).append(value)
    result = {"rows": len(y), "columns": x.shape[1], "classes": int(y.max()) + 1}
    return result | compared(found, np.concatenate(truth), np.concatenate(places))


def of_text(documents: int, seed: int) -> dict[str, Any]:
    x, y = text(2 * documents, seed)
    train, test = (x[:documents], y[:documents]), (x[documents:], y[documents:])
    found = {}
    for name, model in estimators().items():
        found[name] = {key: [value] for key, value in judged(model, train, test).items()}
        found[name]["peak_memory_bytes_so_far"] = [harness.peak_memory()]
        if name == "lapwing":
            found[name]["prior_precision"] = [model.lambda_]
    result = {"rows": documents, "columns": x.shape[1], "classes": KINDS, "non_zeros": int(train[0].nnz)}
    return result | compared(found, y[documents:], np.zeros(documents, dtype=int))


def compared(found: dict[str, dict[str, list]], truth: np.ndarray, fold: np.ndarray) -> dict[str, Any]:
    """Scores of every estimator, and differences of ours to the others."""
    probs = {name: np.concatenate(parts.pop("probs")) for name, parts in found.items()}
    losses = {name: -np.log(values[np.arange(len(truth)), truth]) for name, values in probs.items()}
    result: dict[str, Any] = {}
    for name, parts in found.items():
        means = {key: float(np.mean(values)) for key, values in parts.items()}
        result[name] = {**scores(probs[name], truth), "nll": float(losses[name].mean()), **means}
    for name in list(found)[1:]:
        result[f"minus {name}"] = difference(losses["lapwing"] - losses[name], fold)
    return result


def scores(probs: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    from lapwing import metrics

    probs = probs / probs.sum(1, keepdims=True)
    return {"accuracy": metrics.accuracy(probs, truth), "ece": metrics.ece(probs, truth)}


def difference(each: np.ndarray, fold: np.ndarray) -> dict[str, Any]:
    """A mean over folds, or over rows where there is one fold, with its standard errors."""
    by_fold = [float(each[fold == number].mean()) for number in np.unique(fold)]
    over_rows = float(each.std(ddof=1) / len(each) ** 0.5)
    over_folds = float(np.std(by_fold, ddof=1) / len(by_fold) ** 0.5) if len(by_fold) > 1 else over_rows
    mean = float(np.mean(by_fold))
    return {
        "difference": mean, "error_over_folds": over_folds, "error_over_rows": over_rows, "by_fold": by_fold,
        "within_one_error": mean <= over_folds,
    }  # fmt: skip


def measure(**arguments: Any) -> dict[str, Any]:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    with threadpool_limits(1):
        return of_folds(**arguments) if "data" in arguments else of_text(**arguments)


CELLS: dict[str, dict[str, Any]] = {
    **{name: {"data": name, "seed": 0} for name in DATA},
    "sparse text, 10⁵ columns": {"documents": 3_000, "seed": 0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
