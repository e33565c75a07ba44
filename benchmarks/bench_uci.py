"""Whose error bars fit best on nine UCI regressions?

One hidden layer of 50 units, the authors' splits; `python -m benchmarks uci` says the protocol. Add sets and splits to SEEDS, and with
$LAPWING_BENCH set to the folder of a `python -m benchmarks uci` run they are taken from there.
"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = [
    "map", "linearised", "linearised-g", "linearised-validation", "linearised-ensemble", "last-layer", "diagonal", "kfac",
    "sampled", "dropout", "ensemble", "swag", "tempered-vi",
]  # fmt: skip
SMALL = ("boston", "concrete", "energy", "wine", "yacht")
SEEDS = {**dict.fromkeys(SMALL, 5), "kin8nm": 2, "naval": 2, "power": 2, "protein": 1}
CELLS: dict[str, dict[str, Any]] = {
    "yacht, a part": {"task": "uci", "data": "yacht", "methods": ["map", "linearised"], "seeds": [0]},
    **{
        data: {"task": "uci", "data": data, "methods": METHODS, "seeds": list(range(count))}
        for data, count in SEEDS.items()
    },
    **{f"{data}, HMC": {"task": "uci", "data": data, "methods": ["hmc"], "seeds": [0]} for data in SMALL},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
