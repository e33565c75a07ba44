"""Which of two is preferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, distributions

from lapwing.bayes.likelihoods.categorical import Categorical
from lapwing.bayes.likelihoods.interface import refuse_shapes
from lapwing.bayes.likelihoods.spread import Link, Spread, binary_logits


@final
@dataclass(frozen=True)
class BradleyTerry(Categorical):
    """Pairs with a reward each: outputs (n, 2), and targets (n,) that say which is preferred, 0 or 1.

    The first is preferred with probability σ(r₀ − r₁) (Bradley and Terry 1952). That is the softmax of the two rewards,
    so that derivatives, averages over a posterior and predictions are those of two classes: `probs[:, 0]` is the
    predictive probability that the first is preferred. What both rewards share changes nothing. With data of pairs
    (chosen, rejected) every target is 0. Targets of `ignore_index` do not count.

    Parameters
    ----------
    dim : int
        Axis of the two in the network's outputs.
    ignore_index : int
        Number of targets that do not count.

    Examples
    --------
    >>> rewards = torch.tensor([[1.0, 1.0], [3.0, 1.0]]).double()
    >>> BradleyTerry().log_density(rewards, torch.tensor([0, 0])).exp()
    tensor([0.5000, 0.8808], dtype=torch.float64)
    """

    @property
    def links(self) -> tuple[Link, ...]:
        """Those of classes, and quadrature: of two rewards only the difference counts."""
        return ("full probit", "probit", "quadrature", "monte carlo")

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> distributions.Categorical:
        """The distribution of which is preferred."""
        if link != "quadrature" or spread.covariance is None:
            return super().predictive("monte carlo" if link == "quadrature" else link, mean, spread)
        flat = mean.reshape(-1, 2)
        covariance = spread.reshaped(tuple(flat.shape)).covariance
        assert covariance is not None
        own = covariance.diagonal(dim1=1, dim2=2).sum(1)
        variance = (own - 2 * covariance[:, 0, 1]).clamp_min(0)
        logit = binary_logits(link, flat[:, 0] - flat[:, 1], Spread(variance, None)).reshape(mean.shape[:-1])
        return distributions.Categorical(logits=torch.stack([logit, torch.zeros_like(logit)], -1), validate_args=False)

    def arranged(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One number for every pair; those to be ignored get the weight zero."""
        if outputs.shape[self._axis(outputs)] != 2:
            refuse_shapes(
                targets, outputs,
                "BradleyTerry() takes the rewards of pairs, outputs (n, 2), as Pairs(network) gives, and targets (n,)",
            )  # fmt: skip
        return super().arranged(outputs, targets, weights)

    def described(self, outputs: Tensor) -> str:
        """How many pairs a datum has."""
        return "rewards of two" + (f" at {outputs.shape[1:-1].numel()} places" if outputs.ndim > 2 else "")
