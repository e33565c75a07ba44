"""Formulas as MathML, which browsers draw themselves: no script, no font and no network are needed to read them."""

from html import escape
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(writer: Any, node: nodes.math) -> None:
    """A formula in a line of text."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own, which scrolls where the screen is narrow."""
    formula = convert(node.astext(), display="block")
    writer.body.append(f'<div class="formula" role="math" aria-label="{escape(node.astext())}">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
