"""Gaussian outputs at some inputs: how uncertain they are, and averages over them."""
