"""What do NLL and ECE of a LeNet become as digits are turned?"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = ["map", "temperature", "linearised", "last-layer", "diagonal", "kfac", "dropout", "ensemble", "swag"]
SUBNETWORKS = ["subnetwork-300", "subnetwork", "subnetwork-3000"]
CELLS: dict[str, dict[str, Any]] = {
    "the network alone": {"task": "rotated-mnist", "data": "mnist", "methods": ["map"], "seeds": [0]},
    "all methods": {"task": "rotated-mnist", "data": "mnist", "methods": METHODS, "seeds": [0]},
    "subnetworks": {"task": "rotated-mnist", "data": "mnist", "methods": SUBNETWORKS, "seeds": [0]},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
