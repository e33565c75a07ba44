"""Likelihoods that are not Gaussian: their true loss, its minimum over the weights, and the evidence there."""
