"""What each method finds: precisions, and what is known of the weights there."""

from lapwing.bayes.solving.by_method import (
    BLOCK_ELEMENTS,
    Solved,
    Task,
    gram_error,
    in_double,
    solve,
    stored_features,
    tune,
)

__all__ = ["BLOCK_ELEMENTS", "Solved", "Task", "gram_error", "in_double", "solve", "stored_features", "tune"]
