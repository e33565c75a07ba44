"""Predictive probabilities, by a link that the likelihood has."""

from __future__ import annotations

from torch import Tensor

from lapwing.bayes.likelihoods import Curved
from lapwing.bayes.outputs.links import Link
from lapwing.bayes.outputs.spread import Spread


def probabilities(likelihood: Curved, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
    """The predictive probabilities: of each class, or for Bernoulli of each target being one.

    "probit": logits divided by √(1 + π/8 · variance) (MacKay 1992; each class for itself). "full probit": the same for
    the difference of every two logits, with their covariance (as in Lu, Ie and Sha 2020), so that what all logits share
    does not count. "monte carlo": an average over draws. Bridges: the Dirichlet of Hobbhahn et al. 2022, plain or with
    logits first brought to a common variance. "quadrature": the integral itself, where each output stands alone.

    >>> import torch
    >>> from lapwing import Categorical
    >>> from lapwing.bayes.outputs.links import LINKS
    >>> mean, variance = torch.tensor([[2.0, 0.0]]), torch.tensor([[4.0, 4.0]])
    >>> spread = Spread(variance, torch.diag_embed(variance))
    >>> [round(float(probabilities(Categorical(), link, mean, spread)[0, 0]), 3) for link in LINKS[:3]]
    [0.777, 0.728, 0.737]
    """
    return likelihood.probabilities(checked(likelihood, link), mean, spread)


def checked(likelihood: Curved, link: Link) -> Link:
    """The link, or an error where this likelihood has no such one."""
    if link not in likelihood.links:
        raise ValueError(
            f"link is {link!r}, expected one of {', '.join(map(repr, likelihood.links))} for "
            f"{type(likelihood).__name__}"
        )
    return link
