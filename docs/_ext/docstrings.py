"""What of the code is left out of the reference."""

from sphinx.application import Sphinx


def skip(app: Sphinx, what: str, name: str, member: object, skipped: bool, options: object) -> bool | None:  # noqa: ARG001
    """Leave out the metadata requests that scikit-learn adds to every estimator."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
