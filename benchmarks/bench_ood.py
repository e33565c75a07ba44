"""Which scores tell pictures of another kind from those a network was trained on?"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = ["map", "temperature", "linearised", "last-layer", "diagonal", "kfac"]
OTHERS = ["dropout", "ensemble", "swag"]  # networks that are trained otherwise, or on
GIVEN = ["map", "temperature", "last-layer", "subnetwork", "kfac", "linearised"]
CELLS: dict[str, dict[str, Any]] = {
    "the network alone": {"task": "ood", "data": "mnist", "methods": ["map"], "seeds": [0]},
    "mnist": {"task": "ood", "data": "mnist", "methods": METHODS, "seeds": [0]},
    "fashion": {"task": "ood", "data": "fashion", "methods": METHODS, "seeds": [0]},
    "mnist, other networks": {"task": "ood", "data": "mnist", "methods": OTHERS, "seeds": [0]},
    "fashion, other networks": {"task": "ood", "data": "fashion", "methods": OTHERS, "seeds": [0]},
    "cifar10": {"task": "ood", "data": "cifar10", "methods": GIVEN, "seeds": [0]},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
