"""What a Gaussian linear model needs to remember of its data, and the posterior that follows from it."""

from lapwing.bayes.statistics.rows import row_weights, scaled_features, totals, whitened_data
from lapwing.bayes.statistics.spaces import converged, from_space, known_trace, shared_space
from lapwing.bayes.statistics.statistics import Ritz, Statistics, compressed, project, summarise
from lapwing.bayes.statistics.whitened import NO_CLOSED_FORM, Whitened, whiten

__all__ = [
    "NO_CLOSED_FORM",
    "Ritz",
    "Statistics",
    "Whitened",
    "compressed",
    "converged",
    "from_space",
    "known_trace",
    "project",
    "row_weights",
    "scaled_features",
    "shared_space",
    "summarise",
    "totals",
    "whiten",
    "whitened_data",
]
