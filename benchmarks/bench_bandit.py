"""Does Thompson sampling from a linearised posterior find good arms sooner?

Labels of a data set become rewards; regret is the number of wrong arms pulled in 600 rounds.
"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = ["uniform", "greedy", "linear", "linearised", "last-layer", "dropout", "ensemble"]
CELLS: dict[str, dict[str, Any]] = {
    "breast cancer, a part": {
        "task": "bandit",
        "data": "breast-cancer",
        "methods": ["uniform", "greedy"],
        "seeds": [0],
    },
    "breast cancer": {"task": "bandit", "data": "breast-cancer", "methods": METHODS, "seeds": list(range(5))},
    "digits": {"task": "bandit", "data": "digits", "methods": METHODS, "seeds": list(range(3))},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
