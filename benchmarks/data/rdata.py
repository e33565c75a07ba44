"""Data frames of R packages, without R: its binary format (XDR), in `.rda` files or in a package's database.

Read are vectors, lists, factors, and what attributes hold of these; code and environments are refused. Nothing is run.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

NOTHING = {254, 253, 242, 241, 0}  # NULL, and the global, empty and base environments
SYMBOL, PAIRS, CHARACTERS, LOGICAL, INTEGER, REAL, STRINGS, LIST, REFERENCE, COMPACT = (
    1,
    2,
    9,
    10,
    13,
    14,
    16,
    19,
    255,
    238,
)
MISSING_INTEGER = -(2**31)
OPENERS = ((b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7zXZ", lzma.decompress))
Frame = dict[str, np.ndarray]  # columns by name; factors as strings, with None where missing


@final
@dataclass(frozen=True, eq=False)
class Value:
    """Of R: an array, a list of values or None, and its attributes."""

    content: Any
    attributes: dict[str, Value] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of the parts of a list."""
        return list(self.attributes["names"].content)


def read_rda(content: bytes) -> dict[str, Frame]:
    """The data frames of an `.rda` file, by their names."""
    plain = _opened(content)
    if plain[:5] not in (b"RDX2\n", b"RDX3\n"):
        raise ValueError(f"not an .rda file: it begins with {plain[:5]!r}")
    return _frames(_Reader(plain[5:]).whole().content)


def read_rdb(index: bytes, content: bytes) -> dict[str, Frame]:
    """The data frames of a package's database: its `.rdx`, which says where each value is, and its `.rdb`."""
    places = dict(_parts(_Reader(_opened(index)).whole()))["variables"]
    spans = {name: [int(number) for number in place.content] for name, place in _parts(places)}
    chunks = {name: content[start : start + length] for name, (start, length) in spans.items()}
    return _frames({name: _Reader(_chunk(packed)).whole() for name, packed in chunks.items()})


def _chunk(packed: bytes) -> bytes:
    """One value of a database: its length, how it is compressed, and itself."""
    size, form = struct.unpack(">I", packed[:4])[0], packed[4:5]
    if form == b"2":
        plain = bz2.decompress(packed[5:])
    elif form == b"Z":
        plain = lzma.decompress(packed[5:], lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
    else:
        plain = zlib.decompress(packed[4:])
    if len(plain) != size:
        raise ValueError(f"a value of the database has {len(plain):,} bytes, expected {size:,}")
    return plain


def _frames(values: dict[str, Value]) -> dict[str, Frame]:
    """Those that are data frames."""
    return {name: _frame(value) for name, value in values.items() if _is(value, "data.frame")}


def _frame(value: Value) -> Frame:
    return {name: _column(column) for name, column in _parts(value)}


def _column(value: Value) -> np.ndarray:
    if not _is(value, "factor"):
        return np.array(value.content, dtype=object if isinstance(value.content, list) else None)
    levels = np.array([*value.attributes["levels"].content, None], dtype=object)
    codes = np.asarray(value.content)
    return levels[np.where(codes == MISSING_INTEGER, 0, codes) - 1]


def _is(value: Value, name: str) -> bool:
    kind = value.attributes.get("class")
    return kind is not None and name in kind.content


def _parts(value: Value) -> list[tuple[str, Value]]:
    return list(zip(value.names, value.content, strict=True))


def _opened(content: bytes) -> bytes:
    for start, opened in OPENERS:
        if content.startswith(start):
            return opened(content)
    return content


@final
class _Reader:
    """A place in a stream, and the symbols that were met so far."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.symbols: list[Value] = []

    def whole(self) -> Value:
        """The one value of a stream with its header."""
        if self._bytes(2) != b"X\n":
            raise ValueError("not in R's binary format (XDR)")
        version, _, _ = (self._integer() for _ in range(3))
        if version == 3:
            self._bytes(self._integer())  # the encoding
        return self._value()

    def _value(self) -> Value:
        flags = self._integer()
        kind = flags & 255
        if kind in NOTHING:
            return Value(None)
        if kind == SYMBOL:
            self.symbols.append(self._value())
            return self.symbols[-1]
        if kind == REFERENCE:
            return self.symbols[(flags >> 8 or self._integer()) - 1]
        if kind == PAIRS:
            return self._pairs(flags)
        if kind == CHARACTERS:
            return self._characters()
        if kind == COMPACT:
            return self._compact()
        found = self._vector(kind)
        return Value(found, self._attributes(flags))

    def _vector(self, kind: int) -> Any:
        length = self._integer()
        if kind in (LOGICAL, INTEGER):
            return self._numbers(">i4", length)
        if kind == REAL:
            return self._numbers(">f8", length)
        if kind == STRINGS:
            return [self._value().content for _ in range(length)]
        if kind == LIST:
            return [self._value() for _ in range(length)]
        raise ValueError(f"a value of R's type {kind}, which no table holds")

    def _pairs(self, flags: int) -> Value:
        """A list of R's old kind: names and values, one after the other."""
        found = dict[str, Value]()
        while flags & 255 == PAIRS:
            self._attributes(flags)
            name = str(self._value().content) if flags & 1024 else str(len(found))
            found[name] = self._value()
            flags = self._integer()
        return Value(found)

    def _attributes(self, flags: int) -> dict[str, Value]:
        if not flags & 512:
            return {}
        return dict(self._value().content)

    def _compact(self) -> Value:
        """A vector in a shorter form: a run of integers, or one that is merely wrapped."""
        form = str(next(iter(self._value().content.values())).content)
        state = self._value()
        attributes = self._value().content or {}
        if form == "compact_intseq":
            length, first, step = (int(number) for number in state.content)
            return Value(first + step * np.arange(length), attributes)
        if form.startswith("wrap_"):
            inner = state.content[0] if isinstance(state.content, list) else next(iter(state.content.values()))
            return Value(inner.content, {**inner.attributes, **attributes})
        raise ValueError(f"a vector in R's form {form}, which is not read")

    def _characters(self) -> Value:
        length = self._integer()
        return Value(None if length == -1 else self._bytes(length).decode("utf-8", "replace"))

    def _numbers(self, dtype: str, length: int) -> np.ndarray:
        return np.frombuffer(self._bytes(length * int(dtype[-1])), dtype).astype(dtype[1:])

    def _integer(self) -> int:
        return int(struct.unpack(">i", self._bytes(4))[0])

    def _bytes(self, count: int) -> bytes:
        found = self.content[self.at : self.at + count]
        if len(found) < count:
            raise ValueError("the stream ends too early")
        self.at += count
        return found
