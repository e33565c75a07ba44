"""Likelihoods: what an observation says about the output it was made from."""

from lapwing.bayes.likelihoods.bernoulli import Bernoulli
from lapwing.bayes.likelihoods.categorical import Categorical, softmax_root
from lapwing.bayes.likelihoods.gaussian import Gamma, Gaussian
from lapwing.bayes.likelihoods.heteroscedastic import HeteroscedasticGaussian
from lapwing.bayes.likelihoods.interface import NO_NOISE, Curved
from lapwing.bayes.likelihoods.own import OwnLikelihood, likelihood
from lapwing.bayes.likelihoods.poisson import Poisson

Likelihood = Gaussian | Curved

__all__ = [
    "NO_NOISE",
    "Bernoulli",
    "Categorical",
    "Curved",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "OwnLikelihood",
    "Poisson",
    "likelihood",
    "softmax_root",
]
