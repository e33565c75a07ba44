"""Records in files: written whole or not at all, read without trust."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lapwing.app.records.checks import check
from lapwing.app.records.schema import Record
from lapwing.runtime.arrays import read_npz
from lapwing.runtime.atomic import write as write_atomically

FORMAT = 1
LARGEST = 2 * 2**30  # bytes that the arrays of one record may unpack to


def save(record: Record, folder: Path | str) -> Path:
    """Write a record into a folder, whole or not at all, and return the path of its JSON file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(Record("nothing", "regression"), folder)
    ...     path.name, load(folder).name
    ('record.json', 'nothing')
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    body = _plain(check(record), "record", arrays)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    stored = f"arrays-{digest[:12]}.npz"
    text = json.dumps({"format": FORMAT, "arrays": stored, "sha256": digest, **body}, indent=1, allow_nan=False)
    write_atomically(folder / stored, buffer.getvalue())
    write_atomically(folder / "record.json", text.encode())
    for old in folder.glob("arrays-*.npz"):
        if old.name != stored:
            old.unlink()
    return folder / "record.json"


def load(path: Path | str) -> Record:
    """Read a record from its folder or its JSON file; anything that is not a whole record is a ValueError."""
    path = Path(path)
    path = path / "record.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{path}: there is no record here; `lapwing fit … --out FOLDER` writes one")
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a lapwing record, the JSON cannot be read ({error})") from None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise ValueError(f"{path}: not a lapwing record, it has no format number")
    number, stored, digest = (body.pop(key, None) for key in ("format", "arrays", "sha256"))
    if number > FORMAT:
        raise ValueError(f"{path}: written by a newer lapwing (format {number}, this one reads {FORMAT}): update it")
    if number < FORMAT:
        raise ValueError(f"{path}: format {number} is too old to be read (this one reads {FORMAT}): run the fit again")
    try:
        return check(typing.cast(Record, _typed(Record, body, "record", _arrays(path.parent, stored, digest))))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _arrays(folder: Path, stored: Any, digest: Any) -> dict[str, np.ndarray]:
    if not isinstance(stored, str) or Path(stored).name != stored or not stored.endswith(".npz"):
        raise ValueError(f"{stored!r} is not the name of a file of arrays")
    if not (folder / stored).is_file():
        raise ValueError(f"its file of arrays, {stored}, is missing")
    content = (folder / stored).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"its file of arrays, {stored}, is damaged: the checksum differs")
    try:
        return read_npz(content, limit=LARGEST)
    except ValueError as error:
        raise ValueError(f"its file of arrays, {stored}, cannot be read: {error}") from None


def _plain(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON, its arrays put aside under the path that leads to them."""
    match value:
        case None | bool() | str():
            return value
        case np.ndarray():
            if value.dtype.hasobject:
                raise ValueError(f"{path}: an array of Python objects cannot be stored")
            arrays[path] = value
            return {"array": path}
        case int() | np.integer():
            return int(value)
        case float() | np.floating():
            return float(value) if math.isfinite(value) else str(float(value))
        case Mapping():
            return {
                str(key): _plain(part, f"{path}.{number}", arrays) for number, (key, part) in enumerate(value.items())
            }
        case Sequence():
            return [_plain(part, f"{path}.{number}", arrays) for number, part in enumerate(value)]
    if not dataclasses.is_dataclass(value):
        raise ValueError(f"{path}: a {type(value).__name__} cannot be stored")
    names = [item.name for item in dataclasses.fields(value)]
    return {name: _plain(getattr(value, name), f"{path}.{name}", arrays) for name in names}


def _typed(kind: Any, value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """JSON as a value of the type that the schema asks for, or a ValueError that names the place."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, path, arrays)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return _checked(value in arguments, value, path, f"one of {arguments}")
    if origin is types.UnionType:
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _typed(inner, value, path, arrays)
    if origin is tuple:
        _checked(isinstance(value, list), value, path, "a list")
        return tuple(_typed(arguments[0], part, f"{path}[{number}]", arrays) for number, part in enumerate(value))
    if origin is dict:
        _checked(isinstance(value, dict), value, path, "a mapping")
        return {key: _typed(arguments[1], part, f"{path}[{key!r}]", arrays) for key, part in value.items()}
    if kind is np.ndarray:
        named = isinstance(value, dict) and set(value) == {"array"} and isinstance(value["array"], str)
        known = named and value["array"] in arrays
        return arrays[_checked(known, value, path, "the name of a stored array")["array"]]
    if kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(_checked(number or value in ("inf", "-inf", "nan"), value, path, "a number"))
    exact = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    return _checked(exact, value, path, {str: "text", int: "a whole number", bool: "true or false"}[kind])


def _dataclass(kind: type, value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    _checked(isinstance(value, dict), value, path, "a mapping")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise ValueError(f"{path} has unknown fields {unknown[:5]}")
    parts = {name: _typed(hints[name], part, f"{path}.{name}", arrays) for name, part in value.items()}
    try:
        return kind(**parts)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def _checked(holds: bool, value: Any, path: str, expected: str) -> Any:
    if not holds:
        raise ValueError(f"{path} is {str(value)[:40]!r}, expected {expected}")
    return value
