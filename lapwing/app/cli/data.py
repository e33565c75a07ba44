"""Data from files: nothing in them is executed, and what does not fit is said with its place."""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from lapwing.app.cli.models import attribute, check_named, existing
from lapwing.runtime.arrays import check_picture, read_npz
from lapwing.runtime.memory import available_bytes

PAIRS = (("x", "y"), ("X", "y"), ("X", "Y"), ("inputs", "targets"), ("images", "labels"), ("data", "target"),
         ("features", "labels"), ("features", "targets"))  # fmt: skip
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
TEXT, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
KINDS = "expected a .npz, .csv or .parquet file, a folder of class folders with images, or module:dataset"


@final
@dataclass(frozen=True, eq=False)
class Loaded:
    """Inputs and, where there are any, targets: numbers, or words for classes."""

    source: str
    inputs: np.ndarray  # (n, …), float32
    targets: np.ndarray | None  # (n,) or (n, outputs): whole numbers, floats or text
    columns: tuple[str, ...] = ()  # of a table, in the order of the inputs
    target: str = ""
    images: bool = False
    read_as: str = ""  # how a text table was taken, where not with commas between columns
    places: np.ndarray | None = None  # (n,), of these rows in their source, where they are a part of it

    def rows(self, chosen: np.ndarray, source: str) -> Loaded:
        """Some of the data."""
        targets = None if self.targets is None else self.targets[chosen]
        return replace(self, source=source, inputs=self.inputs[chosen], targets=targets, places=chosen)


@final
@dataclass(frozen=True)
class NamedColumns:
    """What is asked of a table: which column is the target and which are inputs; None is up to the file."""

    target: str | None = None
    inputs: tuple[str, ...] | None = None
    needs_target: bool = True


def read(source: str, columns: NamedColumns | None = None) -> Loaded:
    """Data from a file, a folder or `module:dataset`."""
    check_there(source)
    wanted, path = columns or NamedColumns(), Path(source)
    if path.is_dir():
        found = _images(path)
    elif path.suffix == ".npz":
        found = _npz(path, wanted.needs_target)
    elif path.suffix in TEXT:
        header, cells, read_as = _csv(path)
        found = replace(_table(source, header, cells, wanted), read_as=read_as)
    elif path.suffix in PARQUET:
        found = _table(source, *_parquet(path), wanted)
    else:
        found = _dataset(source)
    return _checked(found, wanted)


def cells(source: str) -> tuple[list[str], list[list[Any]], str]:
    """Names and cells of a table in a file, by column as they stand there, and how it was read if not as usual."""
    check_there(source)
    path = Path(source)
    if path.suffix in TEXT:
        return _csv(path)
    header, columns = _parquet(path)
    return header, columns, ""


def check_there(source: str) -> None:
    """Refuse what is no file, folder or name of code that could be read, without reading it."""
    path = Path(source)
    if path.is_dir():
        return
    if path.suffix in (".npz", *TEXT, *PARQUET):
        existing(path)
    elif ":" in source:
        check_named(source)
    elif not path.exists():
        raise ValueError(f"{source}: there is no such file; {KINDS}")
    else:
        raise ValueError(f"{source}: files of type {path.suffix or 'unknown'!r} cannot be read; {KINDS}")


def _not_finite(values: np.ndarray) -> str:
    """The rows that hold NaN or infinity, in words; empty where there are none."""
    rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
    if not len(rows):
        return ""
    named = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
    return f"row {named}" if len(rows) == 1 else f"{len(rows)} rows ({named})"


def _checked(found: Loaded, wanted: NamedColumns) -> Loaded:
    if not len(found.inputs):
        raise ValueError(f"{found.source}: there are no rows")
    if found.targets is None and wanted.needs_target:
        raise ValueError(f"{found.source}: there are no targets; name their column with --target")
    if bad := _not_finite(found.inputs):
        raise ValueError(f"{found.source}: inputs are NaN or infinite in {bad}: remove or impute them")
    targets = found.targets
    if targets is not None and targets.dtype.kind == "f" and (bad := _not_finite(targets)):
        raise ValueError(f"{found.source}: targets are NaN or infinite in {bad}: remove these rows")
    if targets is not None and len(targets) != len(found.inputs):
        raise ValueError(f"{found.source}: {len(found.inputs)} inputs and {len(targets)} targets")
    return found


def _npz(path: Path, needs_target: bool) -> Loaded:
    try:
        arrays = read_npz(path, limit=available_bytes() / 2)
    except ValueError as error:
        raise ValueError(f"{path}: not a file of plain arrays ({str(error)[:120]})") from None
    for x, y in PAIRS:
        if x in arrays and (y in arrays or not needs_target):
            return Loaded(str(path), _numbers(str(path), arrays[x]), _targets(str(path), arrays.get(y)))
    shown = ", ".join(sorted(arrays)[:8])
    raise ValueError(f"{path}: no inputs and targets among its arrays ({shown}): name them x and y")


def _numbers(source: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf" or array.ndim < 1:
        raise ValueError(f"{source}: inputs of type {array.dtype} are not numbers")
    return np.asarray(array, np.float32)


def _targets(source: str, array: np.ndarray | None) -> np.ndarray | None:
    if array is None:
        return None
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    if array.dtype.kind == "U" and array.ndim == 1:
        return array
    raise ValueError(f"{source}: targets of type {array.dtype} are neither numbers nor names of classes")


def _csv(path: Path) -> tuple[list[str], list[list[str]], str]:
    """The header and the columns of a text table, and how it was read where that is not as usual."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            mark = "\t" if path.suffix == ".tsv" else _separator(file.readline())
            file.seek(0)
            lines = [line for line in csv.reader(file, delimiter=mark) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a text table ({error})") from None
    if len(lines) < 2:
        raise ValueError(f"{path}: expected a line of column names and at least one row")
    header, rows = [name.strip() for name in lines[0]], lines[1:]
    if len(set(header)) < len(header):
        raise ValueError(f"{path}: two columns have the same name")
    uneven = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if uneven is not None:
        raise ValueError(f"{path}: row {uneven} has {len(rows[uneven])} values, the header {len(header)} names")
    columns = [list(column) for column in zip(*rows, strict=True)]
    if mark == "," or path.suffix == ".tsv":
        return header, columns, ""
    pointed = _with_points(columns)
    commas = "" if pointed is columns else ", commas before decimals"
    return header, pointed, f"{'tabs' if mark == chr(9) else repr(mark)} between columns{commas}"


def _separator(names: str) -> str:
    """The mark that is most often in the line of names; a comma where there is none.

    >>> _separator("age,price"), _separator("age;price in €, net;rooms"), _separator("age")
    (',', ';', ',')
    """
    return max(",;\t|", key=names.count)


def _with_points(columns: list[list[str]]) -> list[list[str]]:
    """Numbers with a decimal comma as others read them; as they are where a comma may stand between thousands."""
    commas = [cell for column in columns for cell in column if DECIMAL_COMMA.fullmatch(cell.strip())]
    points = any("." in cell and is_number(cell) for column in columns for cell in column)
    if points or all(len(cell.strip().partition(",")[2]) == 3 for cell in commas):
        return columns
    return [
        [cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell.strip()) else cell for cell in column]
        for column in columns
    ]


def _parquet(path: Path) -> tuple[list[str], list[Any]]:
    try:
        import pandas
    except ModuleNotFoundError:
        raise ValueError(f"{path}: reading Parquet needs pip install 'lapwing[parquet]'") from None
    try:
        _check_size(path)
        frame = pandas.read_parquet(path)
    except ImportError:
        raise ValueError(f"{path}: reading Parquet needs pip install 'lapwing[parquet]'") from None
    except Exception as error:  # whatever the engine raises for a file that is not Parquet
        raise ValueError(f"{path}: not a Parquet file ({str(error).splitlines()[0][:90]})") from None
    return [str(name) for name in frame.columns], [frame[name].tolist() for name in frame.columns]


def _check_size(path: Path) -> None:
    """Refuse a small file that would unpack to more than there is room for."""
    from pyarrow import parquet  # type: ignore[import-untyped]

    about = parquet.read_metadata(path)
    told = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    needed = max(told, 8 * about.num_rows * about.num_columns)
    if needed > available_bytes() / 8:  # values become Python objects
        raise ValueError(f"it would take {8 * needed / 1e9:.2f} GB")


def _table(source: str, header: list[str], columns: Sequence[Sequence[Any]], wanted: NamedColumns) -> Loaded:
    """Inputs and target of a table by the names of its columns; the target is its last column unless named."""
    by_name = dict(zip(header, columns, strict=True))
    target = wanted.target or (header[-1] if wanted.inputs is None or wanted.needs_target else None)
    if wanted.target and wanted.needs_target and target not in by_name:
        near = difflib.get_close_matches(str(target), header, 1)
        meant = f"; is it {near[0]!r}?" if near else ""
        raise ValueError(f"{source}: there is no column {target!r}; its columns are {listed(header)}{meant}")
    names = list(wanted.inputs) if wanted.inputs is not None else [name for name in header if name != target]
    missing = [name for name in names if name not in by_name]
    if missing:
        raise ValueError(f"{source}: columns {listed(missing)} are missing; there are {listed(header)}")
    if not names:
        raise ValueError(f"{source}: there is no column but the target {target!r}")
    inputs = np.stack([_column(source, name, by_name[name]) for name in names], axis=1)
    found = classes_or_numbers(source, target, by_name[target]) if target is not None and target in by_name else None
    return Loaded(source, inputs.astype(np.float32), found, tuple(names), target or "")


def listed(names: Sequence[str]) -> str:
    """The first eight names, and how many more there are."""
    return ", ".join(repr(name) for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _column(source: str, name: str, values: Sequence[Any]) -> np.ndarray:
    try:
        return np.array([float(value) for value in values])
    except (ValueError, TypeError):
        row = next(i for i, value in enumerate(values) if not is_number(value))
        if _is_empty(values[row]):
            what = f"is empty in row {row}, counted from 0: fill it in, remove the row, or leave the column out"
        else:
            what = f"holds {str(values[row])[:30]!r} in row {row}, not a number: encode it as numbers, or leave it out"
        raise ValueError(f"{source}: column {name!r} {what} with --inputs") from None


def _is_empty(value: Any) -> bool:
    return value is None or str(value).strip() == ""


def is_number(value: Any) -> bool:
    """Whether a cell of a table can be read as a number."""
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def classes_or_numbers(source: str, name: str, values: Sequence[Any]) -> np.ndarray:
    """Whole numbers, numbers, or else text."""
    empty = next((row for row, value in enumerate(values) if _is_empty(value)), None)
    if empty is not None:
        raise ValueError(f"{source}: the target {name!r} is empty in row {empty}, counted from 0: remove such rows")
    if not all(is_number(value) for value in values):
        return np.array([str(value) for value in values])
    numbers = np.array([float(value) for value in values])
    whole = all(math.isfinite(value) and value == int(value) for value in numbers)
    written = all(not isinstance(value, str) or value.strip().lstrip("+-").isdigit() for value in values)
    return numbers.astype(np.int64) if whole and written else numbers


def _images(folder: Path) -> Loaded:
    """Pictures in one folder per class, scaled to [0, 1], channels first."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ValueError(f"{folder}: reading images needs pip install pillow") from None
    paths = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in PICTURES)
    if not paths:
        raise ValueError(f"{folder}: there are no images; expected one folder per class with images inside")
    pictures, limit = [], available_bytes() / 2 / len(paths)
    for path in paths:
        try:
            check_picture(path, limit=limit)
            with Image.open(path) as picture:
                grey = picture.mode in ("1", "L", "I", "F", "I;16")
                pictures.append(np.asarray(picture.convert("L" if grey else "RGB"), np.float32) / 255)
        except Exception as error:  # every format has its own kinds
            raise ValueError(f"{path}: not an image that can be read ({str(error)[:120]})") from None
    shapes = {picture.shape for picture in pictures}
    if len(shapes) > 1:
        sizes = ", ".join(" × ".join(map(str, shape)) for shape in sorted(shapes)[:4])
        raise ValueError(f"{folder}: images differ in size or colour ({sizes}): bring them to one size first")
    stacked = np.stack(pictures)
    stacked = stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
    return Loaded(str(folder), stacked, np.array([path.parent.name for path in paths]), target="class", images=True)


def _dataset(source: str) -> Loaded:
    """A data set, a pair of arrays, or a function that returns one, from code that the user named."""
    from lapwing.network.batches import as_batches

    found = attribute(source)
    found = found() if callable(found) and not hasattr(found, "__getitem__") else found
    if isinstance(found, tuple) and len(found) == 2:
        import torch

        found = tuple(torch.as_tensor(np.asarray(part)) for part in found)
    pairs = list(as_batches(found))
    inputs, targets = (np.concatenate([pair[part].numpy() for pair in pairs]) for part in (0, 1))
    return Loaded(source, _numbers(source, inputs), _targets(source, targets))
