"""Mean and curvature of a posterior, by likelihood: the state of the loop that finds it."""

from lapwing.bayes.fits.averaged import AveragedOverDraws
from lapwing.bayes.fits.choice import Curvature, fit_of
from lapwing.bayes.fits.interface import LOST, Fit, LeastSquares, Lost, NetworkWeights, Packed
from lapwing.bayes.fits.laplace import (
    AtMode,
    LaplaceAtMode,
    LaplaceAtPoint,
    ModeSearch,
    interpolation,
)
from lapwing.bayes.fits.variational import Variational

__all__ = [
    "LOST",
    "AtMode",
    "AveragedOverDraws",
    "Curvature",
    "Fit",
    "LaplaceAtMode",
    "LaplaceAtPoint",
    "LeastSquares",
    "Lost",
    "ModeSearch",
    "NetworkWeights",
    "Packed",
    "Variational",
    "fit_of",
    "interpolation",
]
