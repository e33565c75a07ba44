"""What do NLL and ECE of a trained ResNet-20 become under corruptions, by method?

The posterior over all weights sees 100 training images, the others 1,000; 100 test images, three corruptions, severities
1, 3 and 5. `over_temperature` is paired, image by image.
"""

from __future__ import annotations

from typing import Any

import harness
import studies

METHODS = ["map", "temperature", "linearised", "last-layer", "subnetwork", "diagonal", "kfac", "swag"]
CELLS: dict[str, dict[str, Any]] = {
    "the network alone": {
        "task": "corrupted-cifar", "data": "cifar10", "methods": ["map", "temperature"], "seeds": [0]
    },
    "all methods": {"task": "corrupted-cifar", "data": "cifar10", "methods": METHODS, "seeds": [0]},
}  # fmt: skip

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
