"""Several posteriors that count alike, as one."""

from lapwing.bayes.mixtures.fitting import Turn, fitted
from lapwing.bayes.mixtures.mixture import Mixture

__all__ = ["Mixture", "Turn", "fitted"]
