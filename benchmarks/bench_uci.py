"""Whose error bars fit best on nine UCI regressions?

One hidden layer of 50 units, the authors' splits; `lapwing bench uci` says the protocol. HMC runs on small sets and one
split only, with its R-hat.
"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = [
    "map", "linearised", "linearised-g", "linearised-validation", "linearised-ensemble", "last-layer", "diagonal", "kfac",
    "sampled", "dropout", "ensemble", "swag", "tempered-vi",
]  # fmt: skip
SEEDS = dict.fromkeys(("boston", "concrete", "energy", "wine", "yacht"), 5) | dict.fromkeys(
    ("kin8nm", "naval", "power", "protein"), 2
)
CELLS: dict[str, dict[str, Any]] = {
    "yacht, a part": {"task": "uci", "data": "yacht", "methods": ["map", "linearised"], "seeds": [0]},
    **{
        data: {"task": "uci", "data": data, "methods": METHODS, "seeds": list(range(count))}
        for data, count in SEEDS.items()
    },
    **{
        f"{data}, HMC": {"task": "uci", "data": data, "methods": ["hmc"], "seeds": [0]}
        for data in ("boston", "concrete", "energy", "yacht")
    },
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
