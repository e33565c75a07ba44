"""Precisions of a posterior chosen without its training data: whole curves, and the best on held-out data."""
