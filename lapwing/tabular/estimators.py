"""What the estimators of tables share: how they read tables, check sizes, begin, and are kept in files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, check_is_fitted, validate_data
from torch import Generator, Tensor

from lapwing.runtime.memory import available_bytes
from lapwing.tabular import files
from lapwing.tabular.columns import Encoding, Table, has_labels, read_frame

MOST_ROWS = 200_000  # all rows are used in every iteration
MATRICES = 4  # of the smaller side of the data, for each network, at the same time


class TableEstimator(BaseEstimator):
    """An estimator of rows of a table, numbers or a data frame; missing values are allowed."""

    _encoding: Encoding

    def save(self, path: Path | str) -> None:
        """Write the fitted estimator to one safetensors file, whole or not at all; nothing in it is code.

        Parameters
        ----------
        path : path
            Of the file.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        files.save(self, Path(path))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The estimator of a file that `save` wrote: its predictions, without what only concerns training rows.

        Parameters
        ----------
        path : path
            Of the file.

        Returns
        -------
        estimator
            As it was saved.

        Raises
        ------
        ValueError
            If the file is damaged, or of another estimator.
        """
        estimator = cls()
        files.load(estimator, Path(path))
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _read_rows(self, X: Any, y: Any, **checks: bool) -> tuple[Table, np.ndarray]:
        """A table and targets to learn from; `checks` are those of scikit-learn for the targets."""
        if isinstance(X, Table):
            return self._known_from_now_on(X), self._targets_of(X.numbers, y, checks)
        if not has_labels(X):
            X, y = validate_data(
                self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2, **checks
            )
            return Table.of_numbers(X), y
        validate_data(self, X, skip_check_array=True)
        y = self._targets_of(X, y, checks)
        return read_frame(X), y

    def _targets_of(self, X: Any, y: Any, checks: dict[str, bool]) -> np.ndarray:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = _check_y(y, estimator=self, **checks)
        check_consistent_length(X, y)
        if len(y) < 2:
            raise ValueError(f"the table has {len(y)} sample(s): expected at least two rows to learn from")
        return y

    def _known_from_now_on(self, table: Table) -> Table:
        """Columns that were read already, such as those of a file, as scikit-learn keeps those of a data frame."""
        self.n_features_in_ = len(table.names)
        self.feature_names_in_ = np.array(table.names, dtype=object)
        return table

    def _read(self, X: Any) -> Table:
        """A table with the columns of the first."""
        if isinstance(X, Table):
            if (X.names, X.numeric) != (self._encoding.names, self._encoding.numeric):
                raise ValueError(f"the table has the columns {X.names}, and {self._encoding.names} in training")
            return X
        if not self._encoding.categories:
            return Table.of_numbers(
                validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
            )
        table = read_frame(X, frozenset(one.position for one in self._encoding.categories))
        validate_data(self, X, skip_check_array=True, reset=False)
        return table

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(self._encoding.inputs(self._read(X)))


def entropy(random_state: Any) -> int:
    """An integer that decides every start."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    return int(random_state)


def random_of(random_state: Any) -> np.random.RandomState:
    """scikit-learn's reading of `random_state`, but that None is fresh and not numpy's global state."""
    if isinstance(random_state, np.random.RandomState):
        return random_state
    return np.random.RandomState(entropy(random_state) % 2**32)


def generators(seed: int, members: int) -> list[Generator]:
    """One for each member, the same whatever else is trained beside it."""
    seeds = [int(np.random.SeedSequence([seed, m]).generate_state(1)[0]) for m in range(members)]
    return [Generator().manual_seed(seed) for seed in seeds]


def check_size(rows: int, sizes: tuple[int, ...], networks: int, per_row: int = 0) -> None:
    """Refuse what would take too long or too much memory, before the work begins.

    `per_row` numbers are held for each row by each network, where sums over rows are not made block by block.
    """
    if rows > MOST_ROWS:
        raise ValueError(
            f"X has {rows:,} rows, and the last iterations use all of them, so at most {MOST_ROWS:,} are taken: fit a "
            "random part of the rows, or train a network by minibatches and give it to lapwing.fit"
        )
    weights = sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))
    smaller = min(rows * sizes[-1], weights)
    needed = 8.0 * networks * (MATRICES * smaller**2 + rows * per_row)
    available = available_bytes()
    if needed > available:
        raise ValueError(
            f"{networks} networks of {weights:,} weights on {rows:,} rows need about {needed / 1e9:.1f} GB, and "
            f"{available / 1e9:.1f} GB are free: use fewer hidden_units, members, columns or rows"
        )
