"""The command line, `lapwing`: its commands are those of `lapwing.app.cli.commands`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; everything heavy is imported by the command that needs it."""
    try:
        from lapwing.app.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.exit(f"lapwing: the command line needs {error.name}: pip install 'lapwing[cli]'")
    run()
