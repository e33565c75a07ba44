"""Structured approximations of a network's Gauss-Newton matrix, from gradients of single data."""

from lapwing.network.kfac.diagonal import column_squares, diagonal, row_squares
from lapwing.network.kfac.factors import Factored, FoundStructure, Structures, eigencorrected, factorise, variances
from lapwing.network.kfac.roots import bernoulli, categorical, gaussian, root_of

__all__ = [
    "Factored",
    "FoundStructure",
    "Structures",
    "bernoulli",
    "categorical",
    "column_squares",
    "diagonal",
    "eigencorrected",
    "factorise",
    "gaussian",
    "root_of",
    "row_squares",
    "variances",
]
