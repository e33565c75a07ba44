"""Pictures of three panels or more are marked as wide: a phone shows them at a height that can be read."""

import struct
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

WIDE = 2.9  # width over height


def marked(app: Sphinx, tree: nodes.document, name: str) -> None:  # noqa: ARG001
    """Give wide PNG files a class that the style sheet knows."""
    for image in tree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        if path.suffix == ".png" and path.is_file():
            width, height = struct.unpack(">II", path.read_bytes()[16:24])  # of the header
            image["classes"] += ["wide"] if width > WIDE * height else []


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", marked)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
