"""What a run leaves behind: a versioned record in a folder, as plain JSON beside one file of arrays.

`record.json` holds everything that can be read by eye; arrays are in `arrays-<digest>.npz`, which it names. Both are
written to a temporary name, flushed and renamed, the JSON last, so that a folder always holds one whole record.
Nothing is ever unpickled.
"""

from lapwing.app.records.evaluations import classification, regression
from lapwing.app.records.files import FORMAT, load, save
from lapwing.app.records.schema import (
    LEFT_OUT,
    OURS,
    Choice,
    Curve,
    Data,
    Evaluation,
    Influence,
    Layer,
    Measured,
    Network,
    Predictions,
    Record,
    Solve,
    Suspects,
    fingerprint,
    versions,
)
from lapwing.runtime.atomic import write as write_atomically

__all__ = [
    "FORMAT",
    "LEFT_OUT",
    "OURS",
    "Choice",
    "Curve",
    "Data",
    "Evaluation",
    "Influence",
    "Layer",
    "Measured",
    "Network",
    "Predictions",
    "Record",
    "Solve",
    "Suspects",
    "classification",
    "fingerprint",
    "load",
    "regression",
    "save",
    "versions",
    "write_atomically",
]
