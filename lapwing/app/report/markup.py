"""HTML by construction: text is escaped unless it was made here."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

VOID = frozenset({"meta", "link", "img", "br", "circle", "rect", "line", "path", "polyline"})


@final
class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def h(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element; children are escaped unless they are elements, attributes always are.

    Attribute names end in `_` where Python reserves them, and `_` inside stands for `-`.

    >>> h("p", "a < b", h("br"), class_="note", data_tip='"x"')
    '<p class="note" data-tip="&quot;x&quot;">a &lt; b<br></p>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID and not children:
        return Html(f"<{name}{written}>" if name in {"meta", "link", "img", "br"} else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Children one after the other, text escaped."""
    return Html("".join(_written(child) for child in children))


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return join(child)


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'


def table(header: Sequence[str], rows: Iterable[Sequence[Child]], *, caption: str, sortable: bool = False) -> Html:
    """A table in a box that scrolls by itself on a narrow screen; its first column names the row."""

    def head(text: str) -> Html:
        return h("th", h("button", text, type="button") if sortable else text, scope="col")

    body = [h("tr", h("th", row[0], scope="row"), [h("td", cell) for cell in row[1:]]) for row in rows]
    inner = h(
        "table", h("caption", caption), h("thead", h("tr", [head(text) for text in header])) if any(header) else None,
        h("tbody", body),
        class_="sortable" if sortable else None,
    )  # fmt: skip
    return h("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def picture(pixels: np.ndarray, description: str) -> Html:
    """An image element with its pixels inside: (height, width) or (height, width, 3) bytes."""
    data = base64.b64encode(png(pixels)).decode()
    return h("img", src=f"data:image/png;base64,{data}", alt=description)


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of (height, width) or (height, width, 3) bytes.

    >>> png(np.zeros((2, 3), np.uint8))[1:4]
    b'PNG'
    """
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels, np.uint8).reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
