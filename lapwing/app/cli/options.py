"""What commands share: options, and the folder that they write to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, mps.")]
Model = Annotated[str | None, typer.Option(help="package.module:factory or file.py:factory of the run's network.")]
Classes = Annotated[
    str | None,
    typer.Option(
        help="Names of the classes in the order of the network's outputs, separated by commas.",
        show_default="alphabetical",
    ),
]


def listed(given: str | None) -> tuple[str, ...] | None:
    """Names that are separated by commas.

    >>> listed("ok, worn"), listed(None)
    (('ok', 'worn'), None)
    """
    return tuple(part.strip() for part in given.split(",")) if given else None


def writable(folder: Path) -> None:
    """Make the folder, before any long work, or say that it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"{folder} cannot be written ({error.strerror or error}): choose another with --out") from None
