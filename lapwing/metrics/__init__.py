"""Predictions and targets in, numbers out: plain tensors (or arrays), nothing else of lapwing.

Classes: probabilities are (n, c), labels (n,). Regression: means, standard deviations and targets have one shape, and
averages run over all their entries. Scores for telling two sets apart are high where an input looks unfamiliar.
Everything is computed in float64. Functions that end in `_each` give one number per datum, to be compared by `paired`.
"""

from lapwing.metrics.calibration import Reliability, classwise_ece, ece, ece_error, ece_floor, reliability, wilson
from lapwing.metrics.classification import (
    accuracy,
    brier,
    brier_each,
    confidence,
    dyads,
    entropy,
    joint_nll,
    mutual_information,
    nll,
    nll_each,
)
from lapwing.metrics.comparison import Difference, RiskCoverage, answered, paired, risk_coverage, risk_threshold
from lapwing.metrics.detection import aupr, auroc, auroc_error, fpr95
from lapwing.metrics.distances import wasserstein
from lapwing.metrics.regression import (
    coverage,
    crps,
    crps_each,
    crps_samples,
    crps_samples_each,
    gaussian_nll,
    gaussian_nll_each,
    rmse,
    width,
)

__all__ = [
    "Difference",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "answered",
    "aupr",
    "auroc",
    "auroc_error",
    "brier",
    "brier_each",
    "classwise_ece",
    "confidence",
    "coverage",
    "crps",
    "crps_each",
    "crps_samples",
    "crps_samples_each",
    "dyads",
    "ece",
    "ece_error",
    "ece_floor",
    "entropy",
    "fpr95",
    "gaussian_nll",
    "gaussian_nll_each",
    "joint_nll",
    "mutual_information",
    "nll",
    "nll_each",
    "paired",
    "reliability",
    "risk_coverage",
    "risk_threshold",
    "rmse",
    "wasserstein",
    "width",
    "wilson",
]
