"""What a Gaussian linear model needs to remember of its data, and the posterior that follows from it."""

from lapwing.bayes.statistics.spaces import Growth, converged, from_space, known_trace, shared_space
from lapwing.bayes.statistics.statistics import (
    LOWEST_RATIO,
    NO_CLOSED_FORM,
    Eigenbasis,
    Ritz,
    Statistics,
    Whitened,
    WhitenedBasis,
    compressed,
    data_noise,
    in_units,
    log_weights,
    prior_noise,
    project,
    summarise,
    whiten,
)

__all__ = [
    "LOWEST_RATIO",
    "NO_CLOSED_FORM",
    "Eigenbasis",
    "Growth",
    "Ritz",
    "Statistics",
    "Whitened",
    "WhitenedBasis",
    "compressed",
    "converged",
    "data_noise",
    "from_space",
    "in_units",
    "known_trace",
    "log_weights",
    "prior_noise",
    "project",
    "shared_space",
    "summarise",
    "whiten",
]
