"""Structured approximations of a network's Gauss-Newton matrix, from gradients of single data."""

from lapwing.network.kfac.diagonal import column_squares, diagonal

__all__ = ["column_squares", "diagonal"]
