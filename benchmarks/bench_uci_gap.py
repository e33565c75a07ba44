"""Do error bars grow where the middle third of a feature was never seen?

As `bench_uci.py`, on the gap splits (Foong et al. 2019): the first splits of each set, a split being a feature.
"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = [
    "map", "linearised", "linearised-g", "linearised-ensemble", "last-layer", "sampled", "dropout", "ensemble", "swag",
]  # fmt: skip
SEEDS = {
    "boston": 2,
    "concrete": 2,
    "energy": 3,
    "naval": 2,
    "wine": 2,
    "yacht": 2,
    "kin8nm": 2,
    "power": 2,
    "protein": 1,
}
CELLS: dict[str, dict[str, Any]] = {
    "yacht, a part": {"task": "uci-gap", "data": "yacht", "methods": ["map", "linearised"], "seeds": [0]},
    **{
        data: {"task": "uci-gap", "data": data, "methods": METHODS, "seeds": list(range(count))}
        for data, count in SEEDS.items()
    },
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
