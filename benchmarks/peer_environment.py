"""Go on in the environment of the peers, where they are installed beside lapwing."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

PYTHON = Path(__file__).parent / "peers" / ".venv" / "bin" / "python"
MISSING = "the environment of the peers is missing: make it with `make peers` (a few minutes)"


def enter(package: str = "curvlinops") -> None:
    """Run this script again with the peers' Python, unless this one has the package."""
    if find_spec(package) is not None:
        return
    if not PYTHON.exists():
        sys.exit(MISSING)
    if Path(sys.executable) == PYTHON:
        sys.exit(f"the environment of the peers lacks {package}: make it again with `make peers`")
    os.execv(PYTHON, [str(PYTHON), *sys.argv])
