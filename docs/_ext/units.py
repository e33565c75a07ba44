"""Cells of tables keep a number together with its error and its unit."""

import re

from docutils import nodes
from sphinx.application import Sphinx

APART = re.compile(r"(?<=[\d%°]) (?=[±×] ?\d)|(?<=[±×]) (?=\d)|(?<=\d) (?=/ )|(?<=\d) (?=(?:s|ms|min|MB|GB|%)(?![\w]))")

POWER = re.compile(r"(?<=\de-)(?=\d)")


def joined(app: Sphinx, tree: nodes.document, name: str) -> None:  # noqa: ARG001
    """Put spaces at which no line is broken into the text of cells, and join 2e-3 after its hyphen."""
    for cell in tree.findall(nodes.entry):
        for text in list(cell.findall(nodes.Text)):
            if not isinstance(text.parent, nodes.literal):
                words = POWER.sub("\u2060", APART.sub("\u00a0", str(text)))
                text.parent.replace(text, nodes.Text(words))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", joined)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
