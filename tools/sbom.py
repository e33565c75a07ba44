"""A software bill of materials of this environment, CycloneDX 1.5 as JSON: the packages that lapwing brings.

    python tools/sbom.py sbom.json

Only what `lapwing[all]` needs, directly or not, is listed; tools for its development are not. A digest is that of the
package's own list of installed files and their checksums (RECORD), so a changed installation is noticed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = "lapwing"


def normal(name: str) -> str:
    """A name as packages are compared by."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(package: Distribution, extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """What a package asks for in this environment, with the extras asked of each."""
    found: dict[str, frozenset[str]] = {}
    for text in package.requires or []:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            name = normal(wanted.name)
            found[name] = found.get(name, frozenset()) | wanted.extras
    return found


def closure(root: str, extras: frozenset[str]) -> dict[str, tuple[Distribution, list[str]]]:
    """Every package that a root needs and that is installed, with what it needs itself."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    seen: dict[str, frozenset[str]] = {}
    queue = [(normal(root), extras)]
    while queue:
        name, asked = queue.pop()
        if name in seen and asked <= seen[name]:
            continue
        seen[name] = seen.get(name, frozenset()) | asked
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # an extra that was not installed
        wanted = needed(package, seen[name])
        found[name] = package, sorted(wanted)
        queue += list(wanted.items())
    return found


def component(name: str, package: Distribution) -> dict[str, Any]:
    """One package."""
    meta, record = package.metadata, package.read_text("RECORD")
    licence = meta.get("License-Expression") or next(
        (line.rsplit(" :: ", 1)[-1] for line in meta.get_all("Classifier") or [] if line.startswith("License ::")), None
    )
    told: dict[str, Any] = {
        "type": "library", "bom-ref": name, "name": meta["Name"], "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }  # fmt: skip
    if licence:
        told["licenses"] = [{"license": {"name": licence}}]
    if record and name != ROOT:  # that of an editable installation says nothing
        lines = sorted(line for line in record.splitlines() if "__pycache__" not in line)
        told["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256("\n".join(lines).encode()).hexdigest()}]
    return told


def bill() -> dict[str, Any]:
    """The bill, the same for the same environment."""
    packages = closure(ROOT, frozenset({"all"}))
    parts = {name: component(name, package) for name, (package, _) in sorted(packages.items())}
    main = {**parts.pop(ROOT), "type": "application"}
    links = [
        {"ref": name, "dependsOn": [other for other in wanted if other in packages]}
        for name, (_, wanted) in sorted(packages.items())
    ]
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": main},
        "components": list(parts.values()), "dependencies": links,
    }  # fmt: skip


if __name__ == "__main__":
    text = json.dumps(bill(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)
