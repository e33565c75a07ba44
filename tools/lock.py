"""requirements.lock from constraints.txt: the same versions, each with the SHA-256 of what pip would install here.

    python tools/lock.py requirements.lock

Archives of another platform, or another build of torch (here the one for processors), have other digests: the lock is
that of the environment it was made in. Nothing is installed, and no address of a registry is kept.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
HEADER = "# made by `make lock` from constraints.txt, for Linux on x86-64, Python 3.11 and torch for processors\n"


def normal(name: str) -> str:
    """A name as packages are compared by."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolved() -> dict[str, Any]:
    """What pip would install of the constraints, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-r", str(CONSTRAINTS)]
        subprocess.run(command, check=True)  # noqa: S603
        found = json.loads(report.read_text())["install"]
    return {normal(one["metadata"]["name"]): one["download_info"]["archive_info"]["hashes"]["sha256"] for one in found}


def lines(digests: dict[str, Any]) -> str:
    """The lock: a line for each constraint, as it is asked for there."""
    wanted = [line for line in CONSTRAINTS.read_text().splitlines() if line.strip()]
    found = [f"{line} --hash=sha256:{digests[normal(line.partition('==')[0])]}" for line in wanted]
    return HEADER + "\n".join(found) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(lines(resolved()))
