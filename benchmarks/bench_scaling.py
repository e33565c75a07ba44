"""What do a fit and a prediction cost, in forward passes, as network and data grow?"""

from __future__ import annotations

from typing import Any

import harness
import studies

from benchmarks.tasks.scaling import STUDY

CELLS: dict[str, dict[str, Any]] = {
    "width 8, last layer": {"task": "scaling", "data": "width 8", "methods": ["last-layer"], "seeds": [0]},
    **{data: {"task": "scaling", "data": data, "methods": list(STUDY.methods), "seeds": [0]} for data in STUDY.data},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
