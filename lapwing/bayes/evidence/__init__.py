"""The log evidence of a linear model as a function of its precisions, and the search for its maximum."""

from lapwing.bayes.evidence.objective import (
    EffectiveDimension,
    EvidenceParts,
    Moments,
    Precisions,
    Problem,
    effective_dimension,
    general,
    grouped,
    largest_value,
    problem,
    shift_invariant,
)
from lapwing.bayes.evidence.search import (
    LOWEST_RATIO,
    Optimum,
    at_ratio,
    at_ratios,
    expectation_maximisation,
    mackay,
    maximise,
    objectives,
    scan,
)

__all__ = [
    "LOWEST_RATIO",
    "EffectiveDimension",
    "EvidenceParts",
    "Moments",
    "Optimum",
    "Precisions",
    "Problem",
    "at_ratio",
    "at_ratios",
    "effective_dimension",
    "expectation_maximisation",
    "general",
    "grouped",
    "largest_value",
    "mackay",
    "maximise",
    "objectives",
    "problem",
    "scan",
    "shift_invariant",
]
