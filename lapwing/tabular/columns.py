"""What is done with the columns of a table before a network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, final

import numpy as np

NUMBERS = "biuf"  # kinds of dtype
DATES = "mM"
MOST_LEVELS = 100  # of a categorical column: one with more looks like text or identifiers
Level = str | int | float | bool


@final
@dataclass(frozen=True)
class Category:
    """A categorical column: one input of 0 or 1 for every level that was seen, `None` where values were missing."""

    position: int
    levels: tuple[Level | None, ...]

    def indicators(self, values: Sequence[Level | None]) -> np.ndarray:  # (n, levels)
        """One where a row has the level; a level that was not seen in training has none."""
        return np.array([[value == level for level in self.levels] for value in values], dtype=float)


@final
@dataclass(frozen=True, eq=False)
class Encoding:
    """From a table to standardised inputs.

    Inputs are the numbers of numeric columns, where missing values are the column's mean, then an indicator for each of
    them that had missing values in training, then one input for each level of the categorical columns. All have mean
    zero and variance one over the training rows; those that are constant there are not scaled.
    """

    names: tuple[str, ...]  # of all columns
    numeric: tuple[int, ...]  # their positions
    filled: np.ndarray  # (numeric,), what stands for a missing number
    indicated: np.ndarray  # (numeric,), bool: had missing values
    categories: tuple[Category, ...]
    mean: np.ndarray  # (inputs,)
    scale: np.ndarray  # (inputs,)

    @staticmethod
    def of(table: Table, weights: np.ndarray) -> Encoding:
        """Learnt from the training rows, each counted as often as its weight says."""
        numbers, counted = table.numbers, weights > 0
        missing = np.isnan(numbers)
        filled = _means(np.where(missing, 0.0, numbers), weights[:, None] * ~missing)
        categories = tuple(
            Category(position, _levels(table.names[position], values, counted))
            for position, values in table.labels.items()
        )
        plain = Encoding(
            table.names, table.numeric, filled, missing[counted].any(0), categories, np.zeros(0), np.ones(0)
        )
        raw = plain._raw(table)
        mean = _means(raw, np.broadcast_to(weights[:, None], raw.shape))
        return Encoding(
            table.names, table.numeric, filled, plain.indicated, categories, mean, scale_of(raw, mean, weights)
        )

    @property
    def columns(self) -> np.ndarray:  # (inputs,), of int
        """For each input, the position of the column that it came from."""
        numeric = np.array(self.numeric, dtype=int)
        levels = [np.full(len(one.levels), one.position) for one in self.categories]
        return np.concatenate([numeric, numeric[self.indicated], *levels]).astype(int)

    def inputs(self, table: Table) -> np.ndarray:  # (n, inputs)
        """Standardised."""
        return (self._raw(table) - self.mean) / self.scale

    def _raw(self, table: Table) -> np.ndarray:
        missing = np.isnan(table.numbers)
        numbers = np.where(missing, self.filled, table.numbers)
        levels = [one.indicators(table.labels[one.position]) for one in self.categories]
        return np.concatenate([numbers, missing[:, self.indicated].astype(float), *levels], axis=1)


@final
@dataclass(frozen=True, eq=False)
class Table:
    """The content of a table: numbers, NaN where missing, and labels, `None` where missing."""

    names: tuple[str, ...]
    numeric: tuple[int, ...]
    numbers: np.ndarray  # (n, numeric)
    labels: dict[int, list[Level | None]]

    @staticmethod
    def of_numbers(matrix: np.ndarray) -> Table:
        """A matrix without names."""
        d = matrix.shape[1]
        return Table(tuple(f"x{k}" for k in range(d)), tuple(range(d)), matrix, {})


def has_labels(X: Any) -> bool:
    """Whether this is a data frame with columns that are not numbers."""
    return _is_frame(X) and any(dtype.kind not in NUMBERS for dtype in X.dtypes)


def read_frame(X: Any, categorical: frozenset[int] | None = None) -> Table:
    """The content of a data frame; columns are categorical by their dtype or, where it is given, as they were."""
    if not _is_frame(X):
        raise ValueError(
            f"the estimator was fitted to a data frame with categorical columns and got {type(X).__name__}: give a "
            "data frame with the same columns"
        )
    numeric, numbers, labels = list[int](), list[np.ndarray](), dict[int, list[Level | None]]()
    for position, name in enumerate(X.columns):
        column = X.iloc[:, position]
        is_label = _holds_labels(name, column) if categorical is None else position in categorical
        if is_label:
            labels[position] = _read_labels(name, column)
        else:
            numeric.append(position)
            numbers.append(_read_numbers(name, column))
    matrix = np.stack(numbers, axis=1) if numbers else np.zeros((len(X), 0))
    return Table(tuple(str(name) for name in X.columns), tuple(numeric), matrix, labels)


def scale_of(values: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:  # (columns,)
    """Standard deviations of columns over weighted rows, one where a column is constant."""
    centred = values - mean
    std = np.sqrt(weights @ centred**2 / weights.sum())
    size = np.abs(values).max(0, initial=0.0)
    return np.where(std > 1e-12 * size, std, 1.0)  # below it a spread is round-off


def _means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted means of columns, zero where nothing is counted."""
    total = weights.sum(0)
    return (weights * values).sum(0) / np.where(total > 0, total, 1.0)


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "dtypes") and hasattr(X, "columns")


def _holds_labels(name: Any, column: Any) -> bool:
    """By dtype; a column of objects that are all numbers holds numbers."""
    kind = column.dtype.kind
    if kind in NUMBERS:
        return False
    if kind in DATES:
        raise ValueError(
            f"column {name!r} holds dates or times ({column.dtype}): replace it by numbers, such as days since a first "
            "day, the month or the hour, or leave it out"
        )
    if kind == "c":
        raise ValueError(f"column {name!r} holds complex numbers: give real and imaginary parts as two columns")
    present = [value for value in column.astype(object) if not _is_missing(value)]
    numbers = [_is_number(value) for value in present]
    if any(numbers) and not all(numbers) and str(column.dtype) != "category":
        first = present[numbers.index(False)]
        raise ValueError(
            f"column {name!r} mixes numbers with {first!r}: write missing values as NaN, or turn all values into text "
            "(astype(str)) if they are categories"
        )
    return str(column.dtype) == "category" or not (numbers and all(numbers))


def _is_date(level: Level) -> bool:
    """A day or time in ISO's form."""
    try:
        datetime.fromisoformat(str(level))
    except ValueError:
        return False
    return True


def _read_numbers(name: Any, column: Any) -> np.ndarray:  # (n,)
    try:
        numbers = column.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r} held numbers in training and does not now: {error}") from None
    if np.isinf(numbers).any():
        raise ValueError(
            f"column {name!r} contains infinity: replace it by a number, or by NaN if the value is missing"
        )
    return numbers


def _read_labels(name: Any, column: Any) -> list[Level | None]:
    values = list[Level | None]()
    for value in column.astype(object):
        plain = value.item() if isinstance(value, np.generic) else value
        if _is_missing(plain):
            values.append(None)
        elif isinstance(plain, str | int | float | bool):
            values.append(plain)
        else:
            raise ValueError(
                f"column {name!r} holds {type(plain).__name__} values: expected text or numbers as categories"
            )
    return values


def _levels(name: str, values: list[Level | None], counted: np.ndarray) -> tuple[Level | None, ...]:
    seen = {value for value, counts in zip(values, counted, strict=True) if counts}
    known = [value for value in seen if value is not None]
    if len(known) > MOST_LEVELS:
        what = (
            "these are dates in words: replace them by numbers, such as (pandas.to_datetime(column) - first).dt.days"
            if all(map(_is_date, known))
            else "it looks like text or identifiers; leave it out, or merge its rare labels"
        )
        raise ValueError(f"column {name!r} has {len(known)} different labels, at most {MOST_LEVELS} are taken: {what}")
    missing = [None] if None in seen else []
    return (*sorted(known, key=lambda value: (isinstance(value, str), value)), *missing)


def _is_missing(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ in {"NAType", "NaTType"}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_)
