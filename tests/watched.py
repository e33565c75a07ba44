"""Runs a script, and ends with an error where a posterior of its lies at the end of the range that was searched, unnoticed."""

import runpy
import sys
from pathlib import Path

import lapwing


def posteriors(names: dict) -> list[tuple[str, lapwing.Posterior]]:
    """Those that a script or a page has made, in dictionaries too."""
    found = [(name, value) for name, value in names.items() if not name.startswith("_")]
    found += [(f"{name}, {key}", one) for name, value in found if isinstance(value, dict) for key, one in value.items()]
    return [(name, value) for name, value in found if isinstance(value, lapwing.Posterior)]


def unnoticed(names: dict, text: str) -> list[str]:
    """Posteriors at the end of their range, unless the text says what that means."""
    at_end = [name for name, one in posteriors(names) if one.diagnostics.edge_of_range]
    return [] if "value tried" in text else at_end


if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    if found := unnoticed(runpy.run_path(str(script), run_name="__main__"), script.read_text()):
        sys.exit(f"precisions at the end of their range: {found}")
