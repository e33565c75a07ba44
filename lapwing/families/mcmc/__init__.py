"""Markov chains over the weights of a network: the truth for small ones, at a price, with diagnostics."""

from lapwing.families.mcmc.diagnostics import ess, r_hat
from lapwing.families.mcmc.fitting import Chains, fit
from lapwing.families.mcmc.samplers import HMC, SGLD, Chain, Langevin, Length, Sampler

__all__ = ["HMC", "SGLD", "Chain", "Chains", "Langevin", "Length", "Sampler", "ess", "fit", "r_hat"]
