"""lapwing: uncertainty estimates for networks you have already trained, and for tables.

The data flow, top to bottom::

    a trained network + its data        lapwing.linearise
    or features + targets + likelihood  lapwing.LinearModel
    + prior (isotropic, per group, g)   lapwing.infer
    = posterior                         mean, draws, evidence, tuned precisions, leave-one-out
    + new inputs                        posterior.predict -> lapwing.Prediction

`lapwing.fit` does all of it for a network; `lapwing.linear` wraps it as scikit-learn estimators; `lapwing.tabular`
trains networks of its own for tables; `lapwing.linalg` holds the operators and solvers under it.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

_HOME = {
    "Acquisition": "decisions.acquisition",
    "Bernoulli": "bayes.likelihoods",
    "Binomial": "bayes.likelihoods",
    "BradleyTerry": "bayes.likelihoods",
    "CG": "bayes.methods",
    "Categorical": "bayes.likelihoods",
    "Diagonal": "bayes.methods",
    "EKFAC": "bayes.methods",
    "EmpiricalFisher": "bayes.methods",
    "Estimate": "linalg.estimators",
    "Exact": "bayes.methods",
    "GPrior": "bayes.priors",
    "Gamma": "bayes.likelihoods",
    "GammaHyperprior": "bayes.likelihoods",
    "Gaussian": "bayes.likelihoods",
    "Hessian": "bayes.methods",
    "HeteroscedasticGaussian": "bayes.likelihoods",
    "Isotropic": "bayes.priors",
    "KFAC": "bayes.methods",
    "DataSpec": "network.data_spec",
    "Krylov": "bayes.methods",
    "LabelIssues": "decisions.labels",
    "LinearModel": "bayes.linear_model",
    "LowRank": "bayes.methods",
    "Mixture": "bayes.mixtures",
    "NegativeBinomial": "bayes.likelihoods",
    "Ordinal": "bayes.likelihoods",
    "PerGroup": "bayes.priors",
    "Pairs": "network.pairs",
    "Poisson": "bayes.likelihoods",
    "Posterior": "bayes.posterior",
    "Prediction": "bayes.predictive",
    "SGD": "bayes.methods",
    "acquire": "decisions.acquisition",
    "fit": "facade",
    "infer": "bayes.inference",
    "label_issues": "decisions.labels",
    "laplace_approximation": "bayes.laplace_approximation",
    "last_layer": "network.parameters",
    "likelihood": "bayes.likelihoods",
    "linearise": "network.linearisation",
    "load": "network.files",
    "lora": "network.adapters",
    "ood": "decisions.ood",
    "subnetwork": "network.subnetwork",
    "train_with_evidence": "families.evidence_training",
    "matrices_only": "network.parameters",
}

__all__ = [*_HOME, "__version__"]
__version__ = version("lapwing")


# parts that need another library
_INTEGRATIONS = {
    "botorch": "integrations.botorch",
    "huggingface": "integrations.huggingface",
    "lightning": "integrations.lightning",
}


def __getattr__(name: str) -> Any:
    if name in _INTEGRATIONS:
        return import_module(f"lapwing.{_INTEGRATIONS[name]}")
    if name in _HOME:
        return getattr(import_module(f"lapwing.{_HOME[name]}"), name)
    raise AttributeError(f"module 'lapwing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
