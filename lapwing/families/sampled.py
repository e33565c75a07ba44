"""The network itself at the draws of a linearised posterior: what is better not done, for comparison."""

from __future__ import annotations

from torch import nn

from lapwing.bayes.posterior import Posterior
from lapwing.families.networks import Networks, evaluated, values
from lapwing.network.parameters import Layout, Select, check_model


def of(model: nn.Module, posterior: Posterior, *, select: Select = None) -> Networks:
    """Networks with weights w + z, z the deviations of a posterior's draws, instead of outputs f(w) + J z.

    The covariance of a Gauss–Newton posterior belongs to the linear model; in the network its draws underfit (Immer et
    al. 2021). `select` is what the posterior was fitted with.

    >>> import torch
    >>> from lapwing import Gaussian, fit
    >>> x = torch.linspace(-1, 1, 9).double()[:, None]
    >>> model = nn.Linear(1, 1).double().eval()
    >>> posterior = fit(model, (x, x), Gaussian(0.1), draws=4)
    >>> torch.allclose(of(model, posterior).functions(x), posterior.functions(x))  # a linear network
    True
    """
    check_model(model)
    layout, own = Layout.of(model, select), values(model)
    if layout.size != len(posterior.deviations):
        raise ValueError(
            f"the posterior has {len(posterior.deviations):,} weights and {layout.size:,} are selected here: pass the "
            "network and the select= that it was fitted with"
        )
    moves = layout.unflatten_each(posterior.deviations.mT)
    draws = posterior.deviations.shape[1]
    weights = {
        name: tensor + moves[name].to(tensor) if name in moves else tensor.expand(draws, *tensor.shape)
        for name, tensor in own.items()
    }
    return Networks(evaluated(model), weights, posterior.likelihood, seed=posterior.seed)
