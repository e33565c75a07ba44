"""What do NLL and ECE of a trained ResNet-20 become under corruptions, by method?

100 test images, three corruptions, severities 1, 3 and 5; a posterior of the last layer sees 1,000 training images.
"""

from __future__ import annotations

from typing import Any

import harness
import studies

ROADS = {
    "the network alone": ["map", "temperature"], "last layer": ["last-layer"], "subnetwork": ["subnetwork"], "kfac": ["kfac"],
    "diagonal": ["diagonal"], "swag": ["swag"], "all weights": ["linearised"], "subnetwork, 300": ["subnetwork-300"],
    "subnetwork, 3000": ["subnetwork-3000"],
}  # fmt: skip
CELLS: dict[str, dict[str, Any]] = {
    name: {"task": "corrupted-cifar", "data": "cifar10", "methods": methods, "seeds": [0]}
    for name, methods in ROADS.items()
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, studies.measure)
