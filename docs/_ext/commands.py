"""The commands of the command line with their arguments and options, read from the program itself."""

import re
from typing import Any

import typer
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from lapwing.app.cli.commands import app as program


class Commands(SphinxDirective):
    """`{commands}`: a section for each command, with a table of what it takes."""

    def run(self) -> list[nodes.Node]:
        """The sections, parsed as the Markdown of the page."""
        found: Any = typer.main.get_command(program)
        lines = [line for name, command in found.commands.items() for line in section(name, command)]
        parent = nodes.section()
        parent.document = self.state.document
        self.state.nested_parse(StringList(lines, source="commands"), self.content_offset, parent, match_titles=True)
        return parent.children


def section(name: str, command: Any) -> list[str]:
    """The Markdown of a command."""
    rows = [row(one) for one in command.params if not one.hidden]
    table = ["| argument or option | meaning | default |", "|---|---|---|", *rows]
    about = " ".join((command.help or command.short_help or "").split())
    return [f"### lapwing {name}", "", about, "", *table, ""]


def row(one: Any) -> str:
    """A line of the table: how it is written, what it means, and what holds without it."""
    written = f"`{one.metavar if one.param_type_name == 'argument' else ', '.join(one.opts)}`"
    shown = one.show_default if isinstance(one.show_default, str) else default(one)
    meaning = " ".join((one.help or "").split()).replace("|", "\\|")
    options = re.sub(r"(--[a-z-]+)", r"`\1`", meaning)  # as they are typed
    return f"| {written} | {options} | {shown} |"


def default(one: Any) -> str:
    """A value that is taken where none is given, as it is typed."""
    none = one.required or one.default is None or one.default is False
    return "" if none else f"`{one.default}`"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
