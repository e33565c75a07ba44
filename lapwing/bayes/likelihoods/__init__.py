"""Likelihoods: what an observation says about the output it was made from."""

from lapwing.bayes.likelihoods.bernoulli import Bernoulli
from lapwing.bayes.likelihoods.binomial import Binomial
from lapwing.bayes.likelihoods.bradley_terry import BradleyTerry
from lapwing.bayes.likelihoods.categorical import Categorical, softmax_root
from lapwing.bayes.likelihoods.expectation import Expectation
from lapwing.bayes.likelihoods.gamma import Gamma
from lapwing.bayes.likelihoods.gaussian import Gaussian
from lapwing.bayes.likelihoods.heteroscedastic import HeteroscedasticGaussian
from lapwing.bayes.likelihoods.hyperprior import GammaHyperprior
from lapwing.bayes.likelihoods.interface import NO_NOISE, Likelihood, restored
from lapwing.bayes.likelihoods.negative_binomial import NegativeBinomial
from lapwing.bayes.likelihoods.ordinal import Ordinal
from lapwing.bayes.likelihoods.own import OwnLikelihood, likelihood
from lapwing.bayes.likelihoods.poisson import Poisson
from lapwing.bayes.likelihoods.spread import Spread
from lapwing.bayes.likelihoods.surrogate import GaussianSurrogate, PerDatum

__all__ = [
    "NO_NOISE",
    "Bernoulli",
    "Binomial",
    "BradleyTerry",
    "Categorical",
    "Expectation",
    "Gamma",
    "GammaHyperprior",
    "Gaussian",
    "GaussianSurrogate",
    "HeteroscedasticGaussian",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "OwnLikelihood",
    "PerDatum",
    "Poisson",
    "Spread",
    "likelihood",
    "restored",
    "softmax_root",
]
