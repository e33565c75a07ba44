"""How far is every approximation from full-batch HMC on a curve with a gap?"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = [
    "map", "linearised", "last-layer", "diagonal", "kfac", "sampled", "dropout", "ensemble", "swag", "variational", "hmc",
]  # fmt: skip
CELLS: dict[str, dict[str, Any]] = {
    "few units": {"task": "toy", "data": "small", "methods": ["linearised"], "seeds": [0]},
    "gap": {"task": "toy", "data": "gap", "methods": METHODS, "seeds": [0]},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
