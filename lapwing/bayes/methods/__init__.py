"""Ways to find a posterior: a frozen choice each, and the posterior over the weights that it finds."""

from lapwing.bayes.methods.exact import Exact
from lapwing.bayes.methods.interface import Method, Run, WeightPosterior
from lapwing.bayes.methods.iterative import CG, SGD
from lapwing.bayes.methods.krylov import Krylov
from lapwing.bayes.methods.structures import EKFAC, KFAC, Diagonal, EmpiricalFisher, Hessian, LowRank

__all__ = [
    "CG",
    "EKFAC",
    "KFAC",
    "SGD",
    "Diagonal",
    "EmpiricalFisher",
    "Exact",
    "Hessian",
    "Krylov",
    "LowRank",
    "Method",
    "Run",
    "WeightPosterior",
]
