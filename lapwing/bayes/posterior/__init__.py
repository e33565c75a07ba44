"""A posterior over the weights of a linear model: the noun itself, and beside it what can be asked of it."""

from lapwing.bayes.posterior.posterior import DataLedger, FeatureMap, Posterior

__all__ = ["DataLedger", "FeatureMap", "Posterior"]
