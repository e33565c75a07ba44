"""How uncertain outputs are, and what becomes of probabilities: E[softmax(f)] and E[σ(f)], f ~ N(mean, covariance).

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log, pi
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lapwing.bayes.likelihoods.quadrature import log_average
from lapwing.bayes.noise import PREDICTIVE, Noise

POINTS = 512  # of a Monte-Carlo average where the covariance is known


@final
@dataclass(frozen=True, eq=False)
class Spread:
    """How uncertain outputs are around their mean: in closed form, or by zero-mean draws."""

    variance: Tensor  # (n, …, c) or (n,)
    covariance: Tensor | None  # (n, …, c, c), along the last axis; None where outputs have no others
    draws: Tensor | None = None  # (draws, n, …, c), where nothing better is known
    seed: int = 0
    centred: Tensor | None = None  # (n, …), `centred_variance` where it is known better than by the covariance
    centred_prior: Tensor | None = None  # (n, …), the same before the data, where it is known

    @property
    def centred_variance(self) -> Tensor | None:  # (n, …)
        """The variance of the outputs less their mean along the last axis, summed over it: tr V − 1ᵀV1 / c."""
        if self.centred is not None or self.covariance is None:
            return self.centred
        return (self.variance.sum(-1) - self.covariance.mean(-1).sum(-1)).clamp_min(0)

    def deviations(self) -> Tensor:  # (points, n, c)
        """Zero-mean deviations of the outputs of each datum: the draws, or many from the covariance."""
        if self.draws is not None:
            return self.draws
        width = self.variance[0].numel() if self.covariance is None else self.variance.shape[-1]
        normals = Noise(self.seed, PREDICTIVE).rows(0, POINTS // 2, width).to(self.variance)
        normals = torch.cat([normals, -normals])  # both signs: the mean is exact
        if self.covariance is None:
            return normals.reshape(-1, 1, *self.variance.shape[1:]) * self.variance.sqrt()
        values, vectors = torch.linalg.eigh(self.covariance)
        root = vectors * values.clamp_min(0).sqrt()[..., None, :]
        return torch.einsum("...ck,sk->s...c", root, normals)

    def reshaped(self, shape: tuple[int, ...]) -> Spread:
        """The same with other axes in front of the last one."""
        alone = self.covariance is None or len(shape) == 1
        covariance = None if alone or self.covariance is None else self.covariance.reshape(*shape, shape[-1])
        draws = None if self.draws is None else self.draws.reshape(-1, *shape)
        known = replace(self, variance=self.variance.reshape(shape), covariance=covariance, draws=draws)
        return known._with_centred(lambda part: None if alone else part.reshape(shape[:-1]))

    def like(self, tensor: Tensor) -> Spread:
        """The same in the precision and on the device of a tensor."""
        known = replace(self, centred=self.centred_variance)  # before digits are lost
        return known.map_tensors(lambda part: part.to(tensor), lambda draws: draws.to(tensor))

    def with_variances_times(self, factor: float) -> Spread:
        """The same draws, where they show variances too small by a factor."""
        known = self.map_tensors(lambda part: factor * part, lambda draws: draws)
        return replace(known, centred_prior=self.centred_prior)

    def scaled(self, factor: float) -> Spread:
        """The spread of the outputs times a factor."""
        return self.map_tensors(lambda part: factor**2 * part, lambda draws: factor * draws)

    def map_tensors(self, of_outputs: Callable[[Tensor], Tensor], of_draws: Callable[[Tensor], Tensor]) -> Spread:
        """The same with every tensor changed: those whose first axis is the data, and draws, whose second one is."""
        covariance = None if self.covariance is None else of_outputs(self.covariance)
        draws = None if self.draws is None else of_draws(self.draws)
        known = replace(self, variance=of_outputs(self.variance), covariance=covariance, draws=draws)
        return known._with_centred(of_outputs)

    def _with_centred(self, change: Callable[[Tensor], Tensor | None]) -> Spread:
        parts = (self.centred, self.centred_prior)
        centred, prior = (None if part is None else change(part) for part in parts)
        return replace(self, centred=centred, centred_prior=prior)


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
