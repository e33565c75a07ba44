"""The network itself at the draws of a linearised posterior: what is better not done, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.predictive import Prediction


@final
@dataclass(frozen=True, eq=False)
class Sampled:
    """A posterior of a network whose predictions are `predict_unlinearised`, in the form of the other families.

    The covariance of a Gauss–Newton posterior belongs to the linear model; in the network its draws underfit (Immer et
    al. 2021).

    >>> import torch
    >>> from lapwing import Gaussian, fit
    >>> x = torch.linspace(-1, 1, 9).double()[:, None]
    >>> posterior = fit(torch.nn.Linear(1, 1).double().eval(), (x, x), Gaussian(0.1), draws=4)
    >>> torch.allclose(Sampled(posterior).functions(x), posterior.functions(x))  # a linear network
    True
    """

    posterior: Posterior

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the posterior."""
        return self.posterior.likelihood

    def functions(self, inputs: Any) -> Tensor:  # (draws, *outputs)
        """What the network computes with each draw of its weights."""
        draws = self.predict(inputs).draws
        assert draws is not None
        return draws

    def predict(self, inputs: Any) -> Prediction:
        """The predictive distribution at new inputs."""
        return self.posterior.predict_unlinearised(inputs)
