"""Fitted models as Gaussian processes that can be differentiated in their inputs.

A linearised network is a Gaussian process with finitely many features: its outputs at x are mean(x) + φ(x) z with
z ~ N(0, I), where φ(x) is its Jacobian times a root of the covariance of its weights. Covariances between any inputs
are products of features, and a draw of z is a function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from lapwing.bayes.likelihoods import Spread
from lapwing.bayes.mixtures import Mixture
from lapwing.bayes.posterior import Posterior
from lapwing.network.jacobian import Network
from lapwing.tabular import BayesianMLPRegressor
from lapwing.tabular.curvature import WeightRoot
from lapwing.tabular.networks import outputs


class Process(ABC):
    """Members that count alike, each a Gaussian process over inputs (…, q, d) with c outputs."""

    members: int
    outputs: int
    inputs: int

    @abstractmethod
    def mean(self, x: Tensor) -> Tensor:  # (n, d) -> (members, n, c)
        """The mean of every member."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (members, n, c, p)
        """φ of every member."""

    @abstractmethod
    def noise_variance(self, x: Tensor) -> Tensor:  # (n, d) -> (members, n, c)
        """Of an observation."""


@final
@dataclass(frozen=True, eq=False)
class TableProcess(Process):
    """The networks of a `BayesianMLPRegressor`."""

    estimator: BayesianMLPRegressor
    root: WeightRoot  # of the covariance of the weights of all targets' members, in units of the noise

    @staticmethod
    def of(estimator: BayesianMLPRegressor) -> TableProcess:
        """That of a fitted estimator, all of whose columns are numbers."""
        encoding, found = estimator._encoding, estimator._fitted()
        if encoding.categories or bool(encoding.indicated.any()):
            raise ValueError("a surrogate takes numbers: this estimator was fitted to categories or missing values")
        return TableProcess(estimator, found.known.weight_root())

    @property
    def members(self) -> int:  # type: ignore[override]
        return self.estimator._networks.members

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.estimator._networks.targets

    @property
    def inputs(self) -> int:  # type: ignore[override]
        return len(self.estimator._encoding.mean)

    def mean(self, x: Tensor) -> Tensor:
        found = self.estimator._networks
        values = outputs(found.networks, self._standardised(x))[:, :, 0]
        return self._placed(values) * found.units.scale + found.units.mean

    def features(self, x: Tensor) -> Tensor:
        found = self.estimator._networks
        _, scaled = found.features(self._standardised(x), self.root)
        return torch.stack([_at(scaled[target], target, found.targets) for target in range(found.targets)], dim=2)

    def noise_variance(self, x: Tensor) -> Tensor:
        found = self.estimator._networks
        each = found.noise_variance(self._standardised(x)).expand(len(found.noise_precision), len(x))
        return self._placed(each / found.noise_precision[:, None]) * found.units.scale.square()

    def _standardised(self, x: Tensor) -> Tensor:
        encoding = self.estimator._encoding
        return (x.double() - torch.from_numpy(encoding.mean)) / torch.from_numpy(encoding.scale)

    def _placed(self, values: Tensor) -> Tensor:  # (b, n) -> (members, n, targets)
        found = self.estimator._networks
        return values.reshape(found.targets, found.members, -1).permute(1, 2, 0)


def _at(features: Tensor, target: int, targets: int) -> Tensor:  # (members, n, p) -> (members, n, targets · p)
    """Features of one target among those of all, which have weights of their own."""
    parts = [features if place == target else torch.zeros_like(features) for place in range(targets)]
    return torch.cat(parts, dim=2)


@final
@dataclass(frozen=True, eq=False)
class HalfCircles(Process):
    """A process of cos πu and sin πu of every input, where u runs from 0 to 1 between its bounds.

    A linear function of these can be largest anywhere in the box, one of the inputs only in its corners.
    """

    inner: Process
    bounds: Tensor  # (2, d)

    @property
    def members(self) -> int:  # type: ignore[override]
        return self.inner.members

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.inner.outputs

    @property
    def inputs(self) -> int:  # type: ignore[override]
        return self.bounds.shape[1]

    def mean(self, x: Tensor) -> Tensor:
        return self.inner.mean(on_half_circles(x, self.bounds))

    def features(self, x: Tensor) -> Tensor:
        return self.inner.features(on_half_circles(x, self.bounds))

    def noise_variance(self, x: Tensor) -> Tensor:
        return self.inner.noise_variance(on_half_circles(x, self.bounds))


def on_half_circles(x: Tensor, bounds: Tensor) -> Tensor:  # (n, d) -> (n, 2 d)
    """cos πu and sin πu, with u from 0 to 1 between the bounds."""
    angle = torch.pi * (x.double() - bounds[0]) / (bounds[1] - bounds[0])
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


@final
@dataclass(frozen=True, eq=False)
class NetworkProcess(Process):
    """Linearised networks with posteriors by `Exact()` under Gaussian noise."""

    networks: tuple[Network, ...]
    posteriors: tuple[Posterior, ...]
    roots: tuple[Tensor, ...]  # (p, p) each
    shape: tuple[int, ...]  # of an input
    outputs: int

    @staticmethod
    def of(fitted: Posterior | Mixture) -> NetworkProcess:
        """That of a posterior or of several."""
        posteriors = fitted.members if isinstance(fitted, Mixture) else (fitted,)
        networks = tuple(_network(one) for one in posteriors)
        roots = tuple(_root(one) for one in posteriors)
        first = posteriors[0]
        assert first.model is not None
        sample = next(iter(first.model.features.inputs_between(0, 1)))
        return NetworkProcess(networks, tuple(posteriors), roots, tuple(sample.shape[1:]), first.model.outputs)

    @property
    def members(self) -> int:  # type: ignore[override]
        return len(self.networks)

    @property
    def inputs(self) -> int:  # type: ignore[override]
        return prod(self.shape)

    def mean(self, x: Tensor) -> Tensor:
        return torch.stack([one(one.chosen(), self._given(one, x)).double() for one in self.networks])

    def features(self, x: Tensor) -> Tensor:
        return torch.stack([self._jacobian(one, x) @ root for one, root in zip(self.networks, self.roots, strict=True)])

    def noise_variance(self, x: Tensor) -> Tensor:
        like = torch.zeros(len(x), self.outputs, dtype=torch.float64)
        found = [one.likelihood.noise_variance(like, Spread(like, None)) for one in self.posteriors]
        return torch.stack([torch.as_tensor(one).expand(like.shape) for one in found])

    def _given(self, network: Network, x: Tensor) -> Tensor:
        like = network.fixed[network.layout.names[0]]
        return x.to(like).reshape(-1, *self.shape)

    def _jacobian(self, network: Network, x: Tensor) -> Tensor:  # (n, c, p)
        weights = network.chosen()

        def one(weights: dict[str, Tensor], row: Tensor) -> Tensor:  # (c,)
            return network.view.rows(functional_call(network.model, {**network.fixed, **weights}, (row[None],)))[0]

        parts = vmap(jacrev(one), in_dims=(None, 0))(weights, self._given(network, x))
        flat = torch.cat([parts[name].flatten(2) for name in network.layout.names], dim=2)
        mask = network.layout.mask
        return (flat if mask is None else flat[:, :, mask]).double()


def _network(posterior: Posterior) -> Network:
    network = None if posterior.model is None else getattr(posterior.model.features, "network", None)
    if network is None:
        raise ValueError(
            "a surrogate takes the posterior of a network's weights as fit(model, data, Gaussian()) returns it: not "
            "one from a file, nor that of a last layer"
        )
    if not posterior.likelihood.constant_curvature:
        kind = type(posterior.likelihood).__name__
        raise ValueError(f"a surrogate takes Gaussian noise, this posterior has {kind}()")
    return network


def _root(posterior: Posterior) -> Tensor:  # (p, p)
    """A root of the covariance of the weights, by eigenvectors V: S^½ = std (I − V (1 − (1 + k)^−½) Vᵀ)."""
    known = getattr(posterior.gaussian, "whitened", None)
    if known is None or not known.exact:
        raise ValueError(f"a surrogate takes a posterior by Exact(), this one is by {posterior.diagnostics.method}")
    vectors = known.vectors
    inside = (vectors * (1 - (1 + known.values).rsqrt())) @ vectors.mT
    return known.std[:, None] * (torch.eye(len(inside), dtype=torch.float64) - inside)


def process_of(fitted: Any) -> Process:
    """The process of what was fitted."""
    if isinstance(fitted, Process):
        return fitted
    if isinstance(fitted, BayesianMLPRegressor):
        return TableProcess.of(fitted)
    if isinstance(fitted, Posterior | Mixture):
        return NetworkProcess.of(fitted)
    raise ValueError(
        f"a surrogate is made of a fitted BayesianMLPRegressor, or of what fit(model, data, Gaussian()) returns; given "
        f"{type(fitted).__name__}"
    )
