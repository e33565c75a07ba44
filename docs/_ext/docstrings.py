"""Docstrings are plain text: bars and stars in them mean what they say. And what of the code is left out."""

import re

from sphinx.application import Sphinx


def skip(app: Sphinx, what: str, name: str, member: object, skipped: bool, options: object) -> bool | None:  # noqa: ARG001
    """Leave out the metadata requests that scikit-learn adds to every estimator."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def escape(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Keep |x| and a * b from being read as markup, outside code and examples."""
    in_example = False
    for number, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            pieces = re.split(r"(`[^`]*`)", line)
            plain = (piece if piece[:1] == "`" else re.sub(r"([|*])", r"\\\1", piece) for piece in pieces)
            lines[number] = "".join(plain)


def shorten(*told: object) -> tuple[str, str | None] | None:
    """Types by their last names in a signature with a default such as <factory>, which Sphinx shows as it stands."""
    *_, signature, returned = told
    if not isinstance(signature, str) or "<" not in signature:
        return None
    return re.sub(r"~(?:\w+\.)+", "", signature), returned if isinstance(returned, str) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
