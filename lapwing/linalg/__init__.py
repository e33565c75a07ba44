"""Matrices known by their products: operators, decompositions, solvers. Knows no networks and no probability."""
