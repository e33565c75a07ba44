"""Charts as SVG text: two axes and marks on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from lapwing.app.report.markup import Child, Html, h, join, table

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 12, 48
SHAPES = 4  # series differ by colour, dash and marker
NUMBERS = 45  # rows of a chart's own table
NAME = 28  # letters of a name that an axis has room for


@final
@dataclass(frozen=True)
class Axis:
    """A range with its label; `form` writes tick labels."""

    label: str
    low: float
    high: float
    log: bool = False
    form: Callable[[float], str] | None = None
    ticks: tuple[float, ...] | None = None

    def place(self, values: Any) -> np.ndarray:
        """Values as fractions of the axis."""
        low, high = self.low, self.high
        array = np.asarray(values, float)
        if self.log:
            low, high, array = math.log10(low), math.log10(high), np.log10(np.maximum(array, 1e-300))
        return np.clip((array - low) / ((high - low) or 1.0), -0.02, 1.02)

    def marks(self) -> list[tuple[float, str]]:
        """Where ticks are, and what they say."""
        if self.ticks is not None:
            values = list(self.ticks)
        elif self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            values = [10.0**power for power in range(first, last + 1, max(1, -(-(last - first) // 5)))]
        else:
            values = _round_numbers(self.low, self.high)
        form = self.form or (_power if self.log else number)
        return [(value, form(value)) for value in values]


def axis(label: str, values: Any, *, margin: float = 0.05, zero: bool = False, form: Any = None) -> Axis:
    """An axis that shows all finite values with a margin."""
    array = np.asarray(values, float)
    array = array[np.isfinite(array)]
    low, high = (float(array.min()), float(array.max())) if len(array) else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    room = (high - low) * margin if high > low else abs(high) * 0.1 or 1.0
    return Axis(label, 0.0 if zero and low == 0 else low - room, high + room, form=form)


def log_axis(label: str, values: Any) -> Axis:
    """A logarithmic axis that shows all positive values."""
    array = np.asarray(values, float)
    array = array[np.isfinite(array) & (array > 0)]
    low, high = (float(array.min()), float(array.max())) if len(array) else (0.1, 10.0)
    return Axis(label, low / 1.15, high * 1.15 if high > low else low * 10, log=True)


def percent(value: float) -> str:
    """A share in per cent.

    >>> percent(0.5), percent(0.123)
    ('50 %', '12.3 %')
    """
    return f"{100 * value:.4g} %"


def tenths(share: float) -> str:
    """A share in percent, to a tenth of one.

    >>> tenths(0.12345), tenths(0.03)
    ('12.3 %', '3.0 %')
    """
    return f"{100 * float(share):.1f} %"


def number(value: float) -> str:
    """A number for a person: few digits, a true minus sign, thousands apart.

    >>> number(-1234567.0), number(-0.000123456), number(0.0), number(float("inf"))
    ('−1,234,567', '−1.23e-4', '0', '∞')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if value == int(value) and size < 1e9:
        text = f"{int(value):,}"
    elif 1e-3 <= size < 1e5:
        text = f"{value:.3g}" if size < 100 else f"{value:,.1f}" if size < 1000 else f"{value:,.0f}"
    else:
        mantissa, power = f"{value:.2e}".split("e")
        text = f"{float(mantissa):g}e{int(power)}"
    return f"−{text[1:]}" if text.startswith("-") else text


def cut(name: str, room: int) -> str:
    """A name, or its beginning where there is no room for more.

    >>> cut("rotated by 45°", 14), cut("rotated by a quarter", 14)
    ('rotated by 45°', 'rotated by a …')
    """
    return name if len(name) <= room else f"{name[: room - 1]}…"


def share_bar(share: float, largest: float) -> Html:
    """A share in per cent beside its bar; the largest share has the longest."""
    size = max(share / largest, 0.0) if largest > 0 else 0.0
    drawn = h("rect", x="0", y="2", width=f"{100 * size:.1f}", height="8", class_="bar s0")
    bar = h("svg", drawn, viewBox="0 0 100 12", class_="share", aria_hidden="true", preserveAspectRatio="none")
    text = f"{100 * share:.1f} %".replace("-", "−")
    return h("div", h("span", text), bar, class_="shared")


def _power(value: float) -> str:
    power = round(math.log10(value))
    return f"10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _round_numbers(low: float, high: float, count: int = 5) -> list[float]:
    raw = (high - low) / count
    if not math.isfinite(raw) or raw <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


@final
@dataclass(frozen=True)
class Frame:
    """The plane of two axes, in the units of the drawing."""

    x: Axis
    y: Axis
    height: int = HEIGHT

    def across(self, values: Any) -> np.ndarray:
        """Horizontal places."""
        return LEFT + self.x.place(values) * (WIDTH - LEFT - RIGHT)

    def up(self, values: Any) -> np.ndarray:
        """Vertical places, which grow downwards."""
        return TOP + (1 - self.y.place(values)) * (self.height - TOP - BOTTOM)

    def line(self, x: Any, y: Any, series: int = 0, tips: Sequence[str] | None = None, markers: bool = True) -> Html:
        """A line through points, with their values on hover; places where y is not finite are left out."""
        xs, ys = np.asarray(x, float), np.asarray(y, float)
        kept = np.flatnonzero(np.isfinite(ys))
        across, up = self.across(xs[kept]), self.up(ys[kept])
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
        drawn: list[Child] = [h("polyline", points=points, class_=f"line s{series % SHAPES}")]
        for place, a, b in zip(kept.tolist(), across, up, strict=True):
            drawn.append(_marker(a, b, series) if markers else None)
            drawn.append(None if tips is None else _disc(a, b, 9, "hit", tips[place]))
        return join(drawn)

    def band(self, x: Any, low: Any, high: Any, series: int | str = 0) -> Html:
        """An area between two curves."""
        across, lower, upper = self.across(x), self.up(low), self.up(high)
        forth = [f"{a:.1f},{b:.1f}" for a, b in zip(across, upper, strict=True)]
        back = [f"{a:.1f},{b:.1f}" for a, b in zip(across[::-1], lower[::-1], strict=True)]
        return h("path", d="M" + "L".join(forth + back) + "Z", class_=f"band s{series}")

    def points(self, x: Any, y: Any, series: int, tips: Sequence[str]) -> Html:
        """Small discs, with their values on hover."""
        places = zip(self.across(x), self.up(y), tips, strict=True)
        return join(_disc(a, b, 2.2, f"dot s{series % SHAPES}", tip) for a, b, tip in places)

    def whiskers(self, x: Any, low: Any, high: Any, series: int = 0) -> Html:
        """Vertical error bars."""
        places = zip(self.across(x), self.up(low), self.up(high), strict=True)
        path = "".join(f"M{a:.1f},{b:.1f}V{c:.1f}" for a, b, c in places)
        return h("path", d=path, class_=f"whisker s{series % SHAPES}")

    def bars(self, edges: Any, heights: Any, series: int, tips: Sequence[str], base: Any = 0.0) -> Html:
        """A histogram's bars between edges, from a base."""
        left, top = self.across(edges), self.up(heights)
        bottom = np.broadcast_to(self.up(base), top.shape)
        boxes = zip(left[:-1] + 0.5, top, np.diff(left) - 1, bottom - top, tips, strict=True)
        return join(_box(*box, f"bar s{series % SHAPES}") for box in boxes)

    def steps(self, edges: Any, heights: Any, series: int, tips: Sequence[str]) -> Html:
        """A histogram as an outline with a faint filling, for several on one plane."""
        left, top, floor = self.across(edges), self.up(heights), float(self.up(0.0))
        outline = "".join(f"V{y:.1f}H{x:.1f}" for y, x in zip(top, left[1:], strict=True))
        path = h("path", d=f"M{left[0]:.1f},{floor:.1f}{outline}V{floor:.1f}", class_=f"steps s{series % SHAPES}")
        boxes = zip(left[:-1], top, np.diff(left), floor - top, tips, strict=True)
        return join([path, *(_box(*box, "hit") for box in boxes if box[3] > 0)])

    def rule(self, x: float | None = None, y: float | None = None, label: str = "") -> Html:
        """A thin line across the plane, with a word beside it."""
        if x is not None:
            a = f"{float(self.across(x)):.1f}"
            mark = h("line", x1=a, x2=a, y1=TOP, y2=self.height - BOTTOM, class_="rule")
            left = float(self.x.place(x)) > 0.6
            text = h(
                "text",
                label,
                x=float(a) + (-5 if left else 5),
                y=self.height - BOTTOM - 8,
                class_="note",
                text_anchor="end" if left else "start",
            )
            return join([mark, text if label else None])
        b = f"{float(self.up(y)):.1f}"
        mark = h("line", x1=LEFT, x2=WIDTH - RIGHT, y1=b, y2=b, class_="rule")
        text = h("text", label, x=WIDTH - RIGHT - 4, y=float(b) - 5, class_="note", text_anchor="end")
        return join([mark, text if label else None])

    def diagonal(self, label: str) -> Html:
        """The line on which both axes agree."""
        ends = np.array([max(self.x.low, self.y.low), min(self.x.high, self.y.high)])
        (x1, x2), (y1, y2) = self.across(ends), self.up(ends)
        return h("line", x1=f"{x1:.1f}", x2=f"{x2:.1f}", y1=f"{y1:.1f}", y2=f"{y2:.1f}", class_="rule", data_tip=label)


def _disc(a: float, b: float, radius: float, kind: str, tip: str | None = None) -> Html:
    return h("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=f"{radius:g}", class_=kind, data_tip=tip)


def _box(left: float, top: float, width: float, height: float, tip: str | None, kind: str) -> Html:
    sizes = {"width": f"{max(width, 0.5):.1f}", "height": f"{max(height, 0.0):.1f}"}
    return h("rect", x=f"{left:.1f}", y=f"{top:.1f}", **sizes, class_=kind, data_tip=tip)


def _marker(a: float, b: float, series: int) -> Html:
    kind = f"marker s{series % SHAPES}"
    match series % SHAPES:
        case 0:
            return _disc(a, b, 3.6, kind)
        case 1:
            return _box(a - 3.2, b - 3.2, 6.4, 6.4, None, kind)
        case 2:
            return h("path", d=f"M{a:.1f},{b - 4.4:.1f}l4.2,7.4h-8.4Z", class_=kind)
    return h("path", d=f"M{a:.1f},{b - 4.6:.1f}l4.4,4.6l-4.4,4.6l-4.4,-4.6Z", class_=kind)


def _axes(frame: Frame) -> Html:
    right, bottom = WIDTH - RIGHT, frame.height - BOTTOM
    drawn: list[Child] = []
    for value, text in frame.x.marks():
        a = f"{float(frame.across(value)):.1f}"
        drawn.append(h("line", x1=a, x2=a, y1=TOP, y2=bottom, class_="grid"))
        drawn.append(h("text", text, x=a, y=bottom + 17, text_anchor="middle"))
    for value, text in frame.y.marks():
        b = float(frame.up(value))
        drawn.append(h("line", x1=LEFT, x2=right, y1=f"{b:.1f}", y2=f"{b:.1f}", class_="grid"))
        drawn.append(h("text", text, x=LEFT - 7, y=f"{b + 4:.1f}", text_anchor="end"))
    middle, across = TOP + (bottom - TOP) / 2, (LEFT + right) / 2
    turned = f"rotate(-90 14 {middle:.1f})"
    drawn += [
        h("path", d=f"M{LEFT},{TOP}V{bottom}H{right}", class_="frame"),
        h("text", frame.x.label, x=across, y=frame.height - 8, class_="label", text_anchor="middle"),
        h("text", frame.y.label, x=14, y=middle, class_="label", text_anchor="middle", transform=turned),
    ]
    return join(drawn)


@final
@dataclass(frozen=True)
class Numbers:
    """The values behind a chart, for those who do not see it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def legend(names: Sequence[str]) -> Html:
    """What the series are called, each with its colour, dash and marker."""

    def sample(series: int) -> Html:
        drawn = h("polyline", points="1,8 27,8", class_=f"line s{series % SHAPES}"), _marker(14, 8, series)
        return h("svg", drawn, viewBox="0 0 28 16", width="28", height="16", aria_hidden="true")

    return h("ul", [h("li", sample(series), name) for series, name in enumerate(names)], class_="legend")


def figure(
    title: str, frame: Frame, marks: Sequence[Child], *, says: str, key: Child = None, numbers: Numbers | None = None,
    wide: bool = False,
) -> Html:  # fmt: skip
    """A chart with its title, a sentence on what it says, a legend and its numbers."""
    drawing = h(
        "svg", h("title", title), h("desc", says), _axes(frame), h("g", marks), role="img",
        aria_label=f"{title}. {says}", viewBox=f"0 0 {WIDTH} {frame.height}", class_="chart",
    )  # fmt: skip
    return card(title, drawing, says=says, key=key, numbers=numbers, wide=wide)


def card(
    title: str, drawing: Child, *, says: str, key: Child = None, numbers: Numbers | None = None, wide: bool = False
) -> Html:
    """A picture or table in its box, with title, caption and numbers."""
    shown = None
    if numbers is not None:
        rows = numbers.rows[:: max(1, -(-len(numbers.rows) // NUMBERS))]
        shown = h("details", h("summary", "Numbers"), table(numbers.header, rows, caption=f"Numbers: {title}"))
    words = h("figcaption", says)
    return h("figure", h("h3", title), key, drawing, words, shown, class_="card wide" if wide else "card")
