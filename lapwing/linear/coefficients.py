"""A table of coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True, eq=False)
class CoefficientTable:
    """Columns of numbers with a name for every row: what `summary` returns where pandas is not installed."""

    index: tuple[str, ...]
    columns: Mapping[str, np.ndarray]

    def __getitem__(self, column: str) -> np.ndarray:
        """One column."""
        return self.columns[column]

    def __str__(self) -> str:
        width = max(len(name) for name in self.index)
        rows = [" " * width + "".join(f"{name:>14}" for name in self.columns)]
        for place, name in enumerate(self.index):
            rows.append(f"{name:<{width}}" + "".join(f"{values[place]:>14.4g}" for values in self.columns.values()))
        return "\n".join(rows)

    __repr__ = __str__


def as_table(index: list[str], columns: Mapping[str, np.ndarray]) -> Any:
    """A DataFrame where pandas is installed, else a table that can be printed."""
    if find_spec("pandas") is None:
        return CoefficientTable(tuple(index), columns)
    return import_module("pandas").DataFrame(dict(columns), index=index)
