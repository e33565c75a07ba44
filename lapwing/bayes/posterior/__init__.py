"""A posterior over the weights of a linear model: the noun itself, and in folders what can be asked of it."""

from lapwing.bayes.posterior.posterior import Posterior, assemble

__all__ = ["Posterior", "assemble"]
