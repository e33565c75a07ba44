"""From Gaussian outputs to probabilities of classes: E[softmax(f)] and E[σ(f)] for f ~ N(mean, covariance)."""

from __future__ import annotations

from math import pi
from typing import Literal, get_args

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Bernoulli, Curved
from lapwing.bayes.spreads import Spread

Link = Literal["probit", "full probit", "monte carlo", "bridge", "bridge with norm"]
LINKS = get_args(Link)


def probabilities(likelihood: Curved, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
    """The predictive probabilities: of each class, or for Bernoulli of each target being one.

    "probit": logits divided by √(1 + π/8 · variance) (MacKay 1992; each class for itself). "full probit": the same for
    the difference of every two logits, with their covariance (as in Lu, Ie and Sha 2020), so that what all logits share
    does not count. "monte carlo": an average over draws. Bridges: the Dirichlet of Hobbhahn et al. 2022, plain or with
    logits first brought to a common variance.

    >>> mean, variance = torch.tensor([[2.0, 0.0]]), torch.tensor([[4.0, 4.0]])
    >>> from lapwing import Categorical
    >>> spread = Spread(variance, torch.diag_embed(variance))
    >>> [round(float(probabilities(Categorical(), link, mean, spread)[0, 0]), 3) for link in LINKS[:3]]
    [0.777, 0.728, 0.737]
    """
    if link not in LINKS:
        raise ValueError(f"link is {link!r}, expected one of {', '.join(map(repr, LINKS))}")
    if link == "monte carlo":
        draws = mean + spread.deviations()
        return (draws.sigmoid() if isinstance(likelihood, Bernoulli) else draws.softmax(-1)).mean(0)
    if isinstance(likelihood, Bernoulli):
        if link.startswith("bridge"):
            raise ValueError("a Laplace bridge is for several classes: use link='probit' with Bernoulli()")
        return (mean * _shrinkage(spread.variance)).sigmoid()
    if link == "probit":
        return (mean * _shrinkage(spread.variance)).softmax(-1)
    if spread.covariance is None:
        raise ValueError(f"link={link!r} needs the covariance between the classes, which is not known here")
    if link == "full probit":
        return _pairwise(mean, spread.covariance)
    return _bridge(mean, spread.covariance, normed=link == "bridge with norm")


def _shrinkage(variance: Tensor) -> Tensor:
    return (1 + pi / 8 * variance).rsqrt()


def _pairwise(mean: Tensor, covariance: Tensor) -> Tensor:  # (n, c), (n, c, c) -> (n, c)
    own = covariance.diagonal(dim1=1, dim2=2)
    variance = (own[:, :, None] + own[:, None, :] - 2 * covariance).clamp_min(0)
    behind = (mean[:, None, :] - mean[:, :, None]) * _shrinkage(variance)  # of class k behind class l
    return (-behind.logsumexp(2)).softmax(1)


def _bridge(mean: Tensor, covariance: Tensor, *, normed: bool) -> Tensor:
    """The mean of a Dirichlet with this mean and covariance of its logits, which are first made to sum to zero."""
    classes, total = mean.shape[1], covariance.sum((1, 2), keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)
    shared = covariance.sum(2, keepdim=True)
    mean = mean - (shared * mean.sum(1)[:, None, None] / total)[:, :, 0]
    variance = (covariance - shared * shared.mT / total).diagonal(dim1=1, dim2=2)
    variance = variance.clamp_min(torch.finfo(mean.dtype).eps)
    if normed:
        size = variance.mean(1, keepdim=True) / (classes / 2) ** 0.5
        mean, variance = mean / size.sqrt(), variance / size
    # in logarithms, since e^mean may overflow
    log_sum = (-mean).logsumexp(1, keepdim=True) + mean - 2 * torch.tensor(classes).to(mean).log()
    concentration = (1 - 2 / classes + log_sum.exp()) / variance
    return concentration / concentration.sum(1, keepdim=True)
