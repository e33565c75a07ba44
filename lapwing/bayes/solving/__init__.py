"""What each method finds: precisions, and what is known of the weights there."""

from lapwing.bayes.solving.by_method import Solved, Task, solve
from lapwing.bayes.solving.precisions import gram_error, tune
from lapwing.bayes.solving.storing import in_double, stored_features

__all__ = ["Solved", "Task", "gram_error", "in_double", "solve", "stored_features", "tune"]
