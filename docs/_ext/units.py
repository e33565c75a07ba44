"""Cells of tables keep a number together with its error and its unit."""

import re

from docutils import nodes
from sphinx.application import Sphinx

APART = re.compile(r"(?<=[\d%°]) (?=[±×] ?\d)|(?<=[±×]) (?=\d)|(?<=\d) (?=(?:s|ms|min|MB|GB|%)(?![\w]))")


def joined(app: Sphinx, tree: nodes.document, name: str) -> None:  # noqa: ARG001
    """Put spaces at which no line is broken into the text of cells."""
    for cell in tree.findall(nodes.entry):
        for text in list(cell.findall(nodes.Text)):
            if not isinstance(text.parent, nodes.literal):
                text.parent.replace(text, nodes.Text(APART.sub("\u00a0", str(text))))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", joined)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
