"""Mean and curvature of a posterior, by likelihood: the state of the loop that finds it."""

from lapwing.bayes.fits.interface import LOST, Fit, LeastSquares, Lost, NetworkWeights, Packed
from lapwing.bayes.fits.laplace import (
    AtMode,
    LaplaceAtMode,
    LaplaceAtPoint,
    ModeSearch,
    check_not_interpolating,
    fit_of,
)

__all__ = [
    "LOST",
    "AtMode",
    "Fit",
    "LaplaceAtMode",
    "LaplaceAtPoint",
    "LeastSquares",
    "Lost",
    "ModeSearch",
    "NetworkWeights",
    "Packed",
    "check_not_interpolating",
    "fit_of",
]
