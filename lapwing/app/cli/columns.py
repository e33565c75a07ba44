"""What is done with each column of a table in a file, decided from its cells and said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from lapwing.app.cli.data import is_number, listed
from lapwing.app.records import write_atomically

if TYPE_CHECKING:
    from lapwing.tabular.columns import Table

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?", "-"})
MOST_LEVELS = 50  # of a category, and
LEAST_REPEATED = 2.0  # rows for each of them: else it is text, or identifiers
DAY = 86400.0
FILE = "columns.json"

Kind = Literal["number", "category", "date", "left out"]


@final
@dataclass(frozen=True)
class Column:
    """A column, what it is taken for, and in words what is done with it."""

    name: str
    kind: Kind
    said: str
    first_day: str = ""  # of dates, from which days are counted


def planned(name: str, cells: Sequence[Any]) -> Column:
    """What to do with a column of training rows.

    >>> planned("colour", ["red", "blue", "red", "", "red", "blue"]).said
    '2 categories, and where it is missing'
    >>> planned("when", ["2021-03-01", "2021-03-08"]).said
    'dates, as days since 2021-03-01'
    """
    known = [cell for cell in cells if not is_missing(cell)]
    gaps = len(cells) - len(known)
    if len(set(map(str, known))) < 2:
        value = f"always {str(known[0])[:30]!r}" if known else "empty"
        return Column(name, "left out", f"left out: {value}")
    if all(is_number(cell) for cell in known):
        return _of_numbers(name, known, gaps)
    days = [_day(cell) for cell in known]
    if all(day is not None for day in days):
        first = min(day for day in days if day is not None)
        written = datetime.fromtimestamp(first * DAY, UTC).date().isoformat()
        return Column(name, "date", f"dates, as days since {written}{_filled(gaps)}", written)
    return _of_words(name, known, gaps)


def _of_numbers(name: str, known: list[Any], gaps: int) -> Column:
    values = np.array([float(cell) for cell in known])
    if not np.isfinite(values).all():
        raise ValueError(f"column {name!r} holds infinity: replace it by a number, or leave the cell empty")
    if not gaps and len(values) > 2 and (np.diff(values) == 1).all():
        return Column(name, "left out", "left out: it counts the rows")
    return Column(name, "number", f"numbers{_filled(gaps)}")


def _of_words(name: str, known: list[Any], gaps: int) -> Column:
    words = [str(cell).strip() for cell in known]
    numbers = sum(is_number(word) for word in words)
    if 2 * numbers > len(words):
        first = next(word for word in words if not is_number(word))
        raise ValueError(
            f"column {name!r} holds numbers, but {first[:30]!r} too: mend such cells, leave them empty if values are "
            "missing, or leave the column out with --inputs"
        )
    levels = len(set(words))
    if levels > MOST_LEVELS or levels * LEAST_REPEATED > len(words):
        return Column(name, "left out", f"left out: text or identifiers, {levels} different in {len(words)} rows")
    return Column(name, "category", f"{levels} categories" + (", and where it is missing" if gaps else ""))


def _filled(gaps: int) -> str:
    return f", {gaps} missing ones filled with their mean and marked" if gaps else ""


def table(columns: Sequence[Column], cells: Mapping[str, Sequence[Any]], rows: int) -> Table:
    """The cells of a file as the estimators take them."""
    from lapwing.tabular.columns import Level, Table

    used = [column for column in columns if column.kind != "left out"]
    numeric = tuple(place for place, column in enumerate(used) if column.kind != "category")
    numbers = [_numbers(used[place], cells[used[place].name]) for place in numeric]
    labels: dict[int, list[Level | None]] = {
        place: [None if is_missing(cell) else str(cell).strip() for cell in cells[column.name]]
        for place, column in enumerate(used)
        if column.kind == "category"
    }
    matrix = np.stack(numbers, axis=1) if numbers else np.zeros((rows, 0))
    return Table(tuple(column.name for column in used), numeric, matrix, labels)


def _numbers(column: Column, cells: Sequence[Any]) -> np.ndarray:  # (n,)
    read = _number if column.kind == "number" else _days_since(column.first_day)
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if is_missing(cell):
            continue
        found = read(cell)
        if found is None:
            what = "numbers" if column.kind == "number" else "dates"
            raise ValueError(
                f"column {column.name!r} holds {str(cell)[:30]!r} in row {row}, counted from 0, and {what} in training"
            )
        values[row] = found
    return values


def _number(cell: Any) -> float | None:
    return float(cell) if is_number(cell) and np.isfinite(float(cell)) else None


def _days_since(first_day: str) -> Any:
    start = _day(first_day) or 0.0

    def days(cell: Any) -> float | None:
        found = _day(cell)
        return None if found is None else found - start

    return days


def _day(cell: Any) -> float | None:
    """Days since 1970 of a date or time in ISO's form, or as Parquet has them; None of anything else."""
    if isinstance(cell, str):
        try:
            cell = datetime.fromisoformat(cell.strip())
        except ValueError:
            return None
    if isinstance(cell, datetime):
        aware = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
        return aware.timestamp() / DAY
    if isinstance(cell, date):
        return float((cell - date(1970, 1, 1)).days)
    return None


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty, or says so."""
    return cell is None or cell != cell or str(cell).strip().lower() in MISSING


def check_used(columns: Sequence[Column], source: str) -> None:
    """An error where nothing is left to learn from."""
    if all(column.kind == "left out" for column in columns):
        raise ValueError(
            f"{source}: no column is left to learn from; " + "; ".join(f"{c.name!r}: {c.said}" for c in columns[:8])
        )


def save(columns: Sequence[Column], folder: Path) -> None:
    """Beside a model, so that new rows are read as the first were."""
    write_atomically(folder / FILE, json.dumps([asdict(column) for column in columns], indent=1).encode())


def load(folder: Path) -> tuple[Column, ...]:
    """Of a run, or an error that says what is wrong with the file."""
    path = folder / FILE
    try:
        found = tuple(Column(**one) for one in json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: fit again") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: does not hold what it should ({error})") from None
    names = [column.name for column in found]
    if not found or not all(isinstance(part, str) for c in found for part in (c.name, c.kind, c.said, c.first_day)):
        raise ValueError(f"{path}: does not hold what it should (columns {listed(names)})")
    return found
