"""Records as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from lapwing.app.records import Measured, Record
from lapwing.app.report import classification, fit, inputs, regression, scores, several, suspects, tables
from lapwing.app.report.cells import error_of, written
from lapwing.app.report.markup import Child, Html, h
from lapwing.app.report.verdict import Verdict, verdict


def page(records: Sequence[Record]) -> str:
    """The page of one run, or of several compared.

    >>> from lapwing.app import records
    >>> test = records.classification("test", [0, 1, 1], {"MAP": [[0.8, 0.2], [0.4, 0.6], [0.1, 0.9]]})
    >>> page([Record("coins", "classification", (test,))])[:15]
    '<!doctype html>'
    """
    if not records:
        raise ValueError("a page needs at least one record")
    runs = [scores.scored(scores.renamed(record)) for record in records]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    names = unique_names(runs)
    return document(title, _content(runs, names), made=runs[0].versions.get("lapwing", ""), names=names)


def document(title: str, content: Child, *, made: str = "", names: Sequence[str] = ()) -> str:
    """Any content as one self-contained page: style and script inside, nothing loaded, nothing else run.

    `made` is the version of lapwing behind it; several `names` can be chosen from.
    """
    style, script = (files("lapwing.app.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        h("meta", name="color-scheme", content="light dark"),
        h("meta", name="generator", content=f"lapwing {made}"),
        h("link", rel="icon", href="data:,"),
        h("title", f"{title} – lapwing"),
        h("style", Html(style)),
    )
    body = h("body", _header(title, names), h("main", content), _footer(made), h("script", Html(script)))
    return f"<!doctype html>\n{h('html', head, body, lang='en')}\n"


def unique_names(records: Sequence[Record]) -> list[str]:
    """Names of runs, numbered where they are alike.

    >>> unique_names([Record("a", "regression"), Record("b", "regression"), Record("a", "regression")])
    ['a', 'b', 'a (2)']
    """
    found: list[str] = []
    for record in records:
        name, again = record.name or "run", 1
        while (shown := name if again == 1 else f"{name} ({again})") in found:
            again += 1
        found.append(shown)
    return found


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing run but our own script: not even what an unescaped string would bring."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return f"default-src 'none'; img-src data:; style-src {digest(style)}; script-src {digest(script)}"


def _header(title: str, names: Sequence[str]) -> Html:
    mark = h(
        "svg", h("path", d="M2 17 L9 8 L13 12 L22 4 L15 17 Z"), h("path", d="M5 20 H19", class_="base"),
        viewBox="0 0 24 24", aria_hidden="true", class_="logo",
    )  # fmt: skip
    theme = h("button", "Dark", type="button", id="theme", aria_pressed="false", hidden=True)
    chooser = None
    if len(names) > 1:
        options = [h("option", "Comparison", value="compare")]
        options += [h("option", name, value=f"run-{number_}") for number_, name in enumerate(names)]
        chooser = h("label", "Show ", h("select", options, id="chooser"), hidden=True, id="choose")
    return h(
        "header", h("p", mark, "lapwing", class_="brand"), h("h1", title), h("div", chooser, theme, class_="tools")
    )


def _footer(made: str) -> Html:
    return h("footer", h("p", f"Made by lapwing {made}. This file needs no network and holds everything it shows."))


def _content(runs: Sequence[Record], names: Sequence[str]) -> Child:
    if len(runs) == 1:
        return h("article", _run(runs[0]), class_="run")
    articles = [
        h("article", h("h2", name, class_="name"), _run(run, f"run-{place}-"), class_="run", id=f"run-{place}")
        for place, (name, run) in enumerate(zip(names, runs, strict=True))
    ]
    return [tables.comparison(runs, names), articles]


def _run(record: Record, prefix: str = "") -> Child:
    charts = classification.charts(record) if record.task == "classification" else regression.charts(record)
    sections: list[tuple[str, list[Html]]] = [
        ("Compared", tables.methods(record)),
        ("Several networks", several.sections(record)),
        *charts,
        ("Which inputs matter?", inputs.relevance(record)),
        ("Under shift", tables.shifted(record)),
        ("Does it recognise out-of-distribution inputs?", tables.out_of_distribution(record)),
        ("Labels that look wrong", suspects.sections(record)),
        ("Which prior precision?", [] if record.curve is None else fit.curves(record.curve)),
        ("How was the posterior found?", [*fit.convergence(record), *fit.layers(record)]),
        ("Which training points matter?", fit.influence(record)),
        ("Choices and provenance", fit.provenance(record)),
    ]
    shown = [(f"{prefix}{_slug(title)}", title, cards) for title, cards in sections if cards]
    return [_verdict(verdict(record)), _tiles(record), _contents(shown), [_section(*one) for one in shown]]


def _slug(title: str) -> str:
    """A title as the name of a place on the page.

    >>> _slug("Which inputs matter?")
    'which-inputs-matter'
    """
    return "-".join(re.findall(r"\w+", title.lower()))


def _contents(sections: Sequence[tuple[str, str, Sequence[Html]]]) -> Child:
    if len(sections) < 2:
        return None
    links = [h("li", h("a", title, href=f"#{place}")) for place, title, _ in sections]
    return h("nav", h("ul", links), class_="contents", aria_label="Contents")


def _section(place: str, title: str, cards: Sequence[Html]) -> Html:
    return h("section", h("h2", title), h("div", cards, class_="cards"), id=place)


def _verdict(found: Verdict) -> Html:
    first, *more = found.reasons
    why = h("details", h("summary", "Why?"), h("ul", [h("li", reason) for reason in more]), open=True) if more else None
    line = tables.headline(found.level, found.headline)
    advice = h("p", h("b", "Recommendation: "), found.advice, class_="advice") if found.advice else None
    return h("section", line, advice, h("p", first), why, class_=f"verdict {found.level}", aria_label="Verdict")


def _tiles(record: Record) -> Child:
    """The main method's numbers, large."""
    tested = tables.tested(record)
    if tested is None:
        return None
    ours = scores.main(tested)

    def tile(name: str, found: Measured) -> Html:
        return h(
            "li", h("span", name, class_="what"), h("span", written(name, found.value), class_="number"),
            h("span", error_of(name, found), class_="error"), data_tip=tables.ABOUT.get(name),
        )  # fmt: skip

    tiles = [tile(name, found) for name, found in ours.metrics.items()]
    return h("ul", tiles, class_="tiles", aria_label=f"Scores of {ours.method} on {tested.name}")
