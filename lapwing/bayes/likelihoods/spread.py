"""How uncertain outputs are, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

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
        covariance = None if self.covariance is None else self.covariance.to(tensor)
        draws = None if self.draws is None else self.draws.to(tensor)
        centred = self.centred_variance  # before digits are lost
        known = replace(self, variance=self.variance.to(tensor), covariance=covariance, draws=draws, centred=centred)
        return known._with_centred(lambda part: part.to(tensor))

    def with_variances_times(self, factor: float) -> Spread:
        """The same draws, where they show variances too small by a factor."""
        covariance = None if self.covariance is None else factor * self.covariance
        centred = None if self.centred is None else factor * self.centred
        return replace(self, variance=factor * self.variance, covariance=covariance, centred=centred)

    def scaled(self, factor: float) -> Spread:
        """The spread of the outputs times a factor."""
        covariance = None if self.covariance is None else factor**2 * self.covariance
        draws = None if self.draws is None else factor * self.draws
        known = replace(self, variance=factor**2 * self.variance, covariance=covariance, draws=draws)
        return known._with_centred(lambda part: factor**2 * part)

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
