"""Three short scenes on bundled real data, run by `make demo`: a table, a classifier, and wrong labels.

Every sentence is computed from the figures beside it: where a rival ties or wins, it says so.
"""

from lapwing.app.demo.show import main

__all__ = ["main"]
