"""Posteriors in files."""

from lapwing.bayes.posterior.files.posteriors import Stored, read, restore, save

__all__ = ["Stored", "read", "restore", "save"]
