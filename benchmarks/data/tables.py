"""The data sets that scikit-learn bundles, the UCI regressions with their standard and gap splits, and R's tables."""

from __future__ import annotations

import gzip

import numpy as np
import torch
from sklearn import datasets

from benchmarks.data.rdata import Frame, read_rda
from lapwing.studies.datasets.storage import find, read_npz
from lapwing.studies.datasets.task import Task, split_by_seed

UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
UCI_BRINGS = (
    "Put there an npz file with the arrays X (n, features), y (n,), std_test_mask and gap_test_mask (splits, n): the "
    "sets and splits are those of github.com/cambridge-mlg/DUN; `make data` does not bring them."
)

CLASS_TABLES = {  # name: package, file, column of the labels
    "letter": ("mlbench", "LetterRecognition.rda", "lettr"),
    "pima": ("mlbench", "PimaIndiansDiabetes2.rda", "diabetes"),
    "satellite": ("mlbench", "Satellite.rda", "classes"),
    "spam": ("kernlab", "spam.rda", "type"),
    "vehicle": ("mlbench", "Vehicle.rda", "Class"),
}
NUMBER_TABLES = {  # name: package, file, column of the targets, columns that are left out
    "body": ("gclus", "body.RData", "Weight", ()),
    "cars": ("caret", "cars.RData", "Price", ()),
    "ozone": ("mlbench", "Ozone.rda", "V4", ()),
    "sacramento": ("caret", "Sacramento.RData", "price", ("city", "zip")),
    "servo": ("mlbench", "Servo.rda", "Class", ()),
}
BUNDLED_CLASSES = {
    "wine": datasets.load_wine, "breast cancer": datasets.load_breast_cancer, "digits": datasets.load_digits
}  # fmt: skip


def class_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, columns), NaN where missing, and class numbers of a table, from scikit-learn or an R package.

    >>> [part.shape for part in class_table("wine")]
    [(178, 13), (178,)]
    """
    if name in BUNDLED_CLASSES:
        x, y = BUNDLED_CLASSES[name](return_X_y=True)
        return x, y
    if name not in CLASS_TABLES:
        known = ", ".join([*BUNDLED_CLASSES, *CLASS_TABLES])
        raise ValueError(f"no table with class labels is called {name!r}; there are {known}")
    package, file, target = CLASS_TABLES[name]
    frame = _r_table(name, package, file)
    labels = np.unique(frame.pop(target).astype(str), return_inverse=True)[1]
    return np.stack([column.astype(float) for column in frame.values()], axis=1), labels


def number_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, columns), NaN where missing, and targets of a table, from scikit-learn or an R package.

    Factors whose levels are numbers are numbers; others are one column of 0 or 1 for each level. Rows without a target
    are left out.

    >>> [part.shape for part in number_table("diabetes")]
    [(442, 10), (442,)]
    """
    if name == "diabetes":
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        return x, y
    if name not in NUMBER_TABLES:
        raise ValueError(f"no table of numbers is called {name!r}; there are diabetes, {', '.join(NUMBER_TABLES)}")
    package, file, target, left_out = NUMBER_TABLES[name]
    frame = _r_table(name, package, file)
    y = frame.pop(target).astype(float)
    columns = [_numbers(column) for title, column in frame.items() if title not in left_out]
    known = ~np.isnan(y)
    return np.concatenate(columns, axis=1)[known], y[known]


def _r_table(name: str, package: str, file: str) -> Frame:
    """The table of a data file that is called like the file."""
    brings = f"`python -m benchmarks.fetch {package}` brings it."
    path = find(f"{package}/{file}.gz", what=f"the table {name}", brings=brings)
    return read_rda(gzip.decompress(path.read_bytes()))[file.partition(".")[0]]


def _numbers(column: np.ndarray) -> np.ndarray:  # (n, 1), or (n, levels)
    try:
        return column.astype(float)[:, None]
    except ValueError:
        return (column[:, None] == np.unique(column)).astype(float)


def diabetes(*, seed: int = 0, test_share: float = 0.3) -> Task:
    """442 patients, 10 features, the progression of the disease after a year (25 to 346), split by the seed.

    >>> diabetes().test[1].shape
    torch.Size([132, 1])
    """
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    return split_by_seed("diabetes", torch.tensor(x), torch.tensor(y)[:, None], seed, test_share)


def breast_cancer(*, seed: int = 0, test_share: float = 0.3) -> Task:
    """569 tumours, 30 features of unequal scale (see Task.standardised), malignant or benign, split by the seed.

    >>> breast_cancer().classes
    ('malignant', 'benign')
    """
    bunch = datasets.load_breast_cancer()
    classes = tuple(str(name) for name in bunch.target_names)
    return split_by_seed(
        "breast cancer", torch.tensor(bunch.data), torch.tensor(bunch.target), seed, test_share, classes
    )


def uci(name: str, split: int = 0, *, gap: bool = False) -> Task:
    """One UCI regression set in its own units (float64), by one of its authors' splits.

    Standard splits hold out a random tenth. Gap splits sort by one feature and hold out the middle third, so that the
    test lies between the training data (Foong et al. 2019): split k is feature k.
    """
    x, y, masks = _uci(name, gap)
    if not 0 <= split < len(masks):
        kind = "gap" if gap else "standard"
        raise ValueError(f"{name} has the {kind} splits 0 to {len(masks) - 1}, not {split}")
    mask = torch.tensor(masks[split])
    inputs, targets = torch.tensor(x), torch.tensor(y).reshape(len(x), -1)
    title = f"{name}-gap" if gap else name
    return Task(title, (inputs[~mask], targets[~mask]), (inputs[mask], targets[mask]))


def uci_splits(name: str, *, gap: bool = False) -> int:
    """How many splits a set has: 20 standard ones as a rule (protein 5), and one gap split for each feature."""
    return len(_uci(name, gap)[2])


def _uci(name: str, gap: bool) -> tuple[np.ndarray, ...]:
    if name not in UCI:
        raise ValueError(f"no UCI set is called {name!r}; there are {', '.join(UCI)}")
    path = find(f"uci/{name}.npz", what=f"the UCI set {name}", brings=UCI_BRINGS)
    x, y, masks = read_npz(path, "X", "y", "gap_test_mask" if gap else "std_test_mask")
    if x.ndim != 2 or len(y) != len(x) or masks.ndim != 2 or masks.shape[1] != len(x) or masks.dtype != bool:
        raise ValueError(f"{path}: X {x.shape}, y {y.shape} and the masks {masks.shape} ({masks.dtype}) do not fit")
    return x, y, masks
