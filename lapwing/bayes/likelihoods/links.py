"""From Gaussian outputs to probabilities of classes: E[softmax(f)] and E[σ(f)] for f ~ N(mean, covariance).

"probit": logits divided by √(1 + π/8 · variance) (MacKay 1992; each class for itself). "full probit": the same for the
difference of every two logits, with their covariance (as in Lu, Ie and Sha 2020), so that what all logits share does
not count. "monte carlo": an average over draws. Bridges: the Dirichlet of Hobbhahn et al. 2022, plain or with logits
first brought to a common variance. "quadrature": the integral itself, where each output stands alone.

>>> from lapwing import Categorical
>>> mean, variance = torch.tensor([[2.0, 0.0]]), torch.tensor([[4.0, 4.0]])
>>> spread = Spread(variance, torch.diag_embed(variance))
>>> [round(float(Categorical().probabilities(link, mean, spread)[0, 0]), 3) for link in (
...     "probit", "full probit", "monte carlo")]
[0.777, 0.728, 0.737]
"""

from __future__ import annotations

from math import log, pi
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lapwing.bayes.likelihoods.quadrature import log_average
from lapwing.bayes.likelihoods.spread import Spread

Link = Literal["probit", "full probit", "monte carlo", "bridge", "bridge with norm", "quadrature", "closed form"]


def binary_logits(link: Link, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
    """The logit of E[σ(f)] of every output for itself."""
    if link == "monte carlo":
        draws = mean + spread.deviations()
        return logsigmoid(draws).logsumexp(0) - logsigmoid(-draws).logsumexp(0)
    if link == "quadrature":
        yes = log_average(logsigmoid, lambda f: (-f).sigmoid(), mean, spread.variance)
        no = log_average(logsigmoid, lambda f: (-f).sigmoid(), -mean, spread.variance)
        return yes - no
    return mean * _shrinkage(spread.variance)


def class_logits(link: Link, mean: Tensor, spread: Spread) -> Tensor:  # (n, c)
    """Logarithms of E[softmax(f)], up to a constant for each datum."""
    if link == "monte carlo":
        draws = (mean + spread.deviations()).log_softmax(-1)
        return draws.logsumexp(0) - log(len(draws))
    if link == "probit":
        return mean * _shrinkage(spread.variance)
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
    return -behind.logsumexp(2)


def _bridge(mean: Tensor, covariance: Tensor, *, normed: bool) -> Tensor:
    """Logarithms of a Dirichlet of this mean and covariance of its logits, which are first made to sum to zero."""
    classes, tiny = mean.shape[1], torch.finfo(mean.dtype).tiny
    total, shared = covariance.sum((1, 2), keepdim=True).clamp_min(tiny), covariance.sum(2, keepdim=True)
    mean = mean - (shared * mean.sum(1)[:, None, None] / total)[:, :, 0]
    variance = (covariance - shared * shared.mT / total).diagonal(dim1=1, dim2=2)
    variance = variance.clamp_min(torch.finfo(mean.dtype).eps)
    if normed:
        size = variance.mean(1, keepdim=True) / (classes / 2) ** 0.5
        mean, variance = mean / size.sqrt(), variance / size
    # in logarithms, since e^mean may overflow
    log_sum = (-mean).logsumexp(1, keepdim=True) + mean - 2 * torch.tensor(classes).to(mean).log()
    first = torch.tensor(max(1 - 2 / classes, tiny)).to(mean).log()
    return torch.logaddexp(first, log_sum) - variance.log()
