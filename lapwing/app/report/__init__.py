"""Records as one self-contained HTML page: no network, nothing but this package needed to make it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lapwing.app.records import Record, write_atomically
from lapwing.app.report.page import page
from lapwing.app.report.scores import scored
from lapwing.app.report.verdict import Verdict, in_words, verdict

__all__ = ["Verdict", "in_words", "page", "scored", "verdict", "write"]


def write(path: Path | str, records: Sequence[Record]) -> Path:
    """Write the page of one run, or of several compared, and return its path.

    >>> import tempfile
    >>> from lapwing.app import records
    >>> test = records.classification("test", [0, 1], {"lapwing": [[0.8, 0.2], [0.3, 0.7]], "MAP": [[1, 0], [0, 1]]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/page.html", [Record("coins", "classification", (test,))]).name
    'page.html'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(records).encode("utf-8"))
    return path
