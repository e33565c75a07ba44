"""A reconstruction linearised at its weights: h(θ) = f + J (θ − w̄), seen through the projector: features A J."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel
from lapwing.linalg.operators import Dense, LinearOperator, Sparse
from lapwing.network.batches import Inputs
from lapwing.network.jacobian import CHUNK, Jacobian, Network, ProductPlan
from lapwing.runtime.memory import check_memory
from lapwing.studies.tomography.deep_image_prior import Reconstruction
from lapwing.studies.tomography.filter_prior import FilterBlock, FilterPrior, blocks_of, is_filter
from lapwing.studies.tomography.scanning.projector import Projector


@final
@dataclass(frozen=True, eq=False)
class Linearised:
    """The linear model of a reconstruction, but for its prior and noise.

    `targets` are y − A f + A J w̄: what A J θ is to explain. Where the Jacobian is stored, `jacobian` is Dense.

    Parameters
    ----------
    reconstruction : Reconstruction
        A fitted network.
    jacobian : LinearOperator
        (size², p).
    weights : Tensor
        Those of the network, (p,).
    blocks : tuple of FilterBlock
        Filters that share a prior.
    shift : Tensor
        J w̄, (size²,).
    targets : Tensor
        What A J θ is to explain, (n,).

    Examples
    --------
    >>> import lapwing.studies.tomography as ct
    >>> scan = ct.simulate(torch.eye(6), ct.projector(ct.ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = ct.deep_image_prior(scan, ct.Settings((3, 3), (2,), steps=20), progress=False)
    >>> linear = ct.linearise(reconstruction)
    >>> prior = ct.FilterPrior.start(linear.blocks)
    >>> linear.targets.shape, linear.stored
    (torch.Size([45]), True)
    """

    reconstruction: Reconstruction
    jacobian: LinearOperator  # (size², p)
    weights: Tensor = field(repr=False)  # (p,), w̄
    blocks: tuple[FilterBlock, ...]
    shift: Tensor = field(repr=False)  # (size²,), J w̄
    targets: Tensor = field(repr=False)  # (n,)

    @property
    def projector(self) -> Projector:
        """That of the scan."""
        return self.reconstruction.scan.projector

    @property
    def stored(self) -> bool:
        """Whether the Jacobian is a matrix in memory."""
        return isinstance(self.jacobian, Dense)

    def double(self) -> Linearised:
        """The same with products in float64: eigenvalues of A J Σ Jᵀ Aᵀ over the noise reach 1e8 and more."""
        exact = self.jacobian.like.dtype == torch.float64
        return self if exact else replace(self, jacobian=_jacobian(self.reconstruction, torch.float64))

    def model(self, prior: FilterPrior, noise_std: float) -> LinearModel:
        """y ~ N(A h(θ), noise²), θ = L z with z standard normal: features A J L over z, for `infer` with precision 1.

        `features_at(None)` are those of the image, and of a `Projector` those of its sinogram.
        """
        root, image = prior.root().to(self.jacobian.like), self.reconstruction.image.reshape(-1)
        seen = self.jacobian @ root

        def features_at(where: Any) -> LinearOperator:
            return seen if where is None else _in_precision(where.operator, self.jacobian.like) @ seen

        def outputs_at(where: Any) -> Tensor:
            return image if where is None else where.operator @ image

        point = LinearisationPoint(outputs_at, prior.root().inverse(self.weights[:, None])[:, 0])
        features = features_at(self.projector)
        return LinearModel(features, self.targets, Gaussian(noise_std), features_at=features_at, point=point)


def linearise(reconstruction: Reconstruction, *, store: bool | None = None) -> Linearised:
    """The reconstruction as a linear function of its filters.

    With `store` the Jacobian is worked out once and kept, which takes one reverse pass per pixel; by default where it
    has at most 1,500 rows.

    Parameters
    ----------
    reconstruction : Reconstruction
        A fitted network.
    store : bool, optional
        Whether to keep the Jacobian as a matrix; chosen by size by default.

    Returns
    -------
    Linearised
        The linear model, but for its prior and noise.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, Settings, deep_image_prior, projector, simulate
    >>> scan = simulate(torch.eye(6), projector(ParallelBeam.spread(5, 6), 6))
    >>> reconstruction = deep_image_prior(scan, Settings((3, 3), (2,), steps=20), progress=False)
    >>> linearise(reconstruction).jacobian.shape[0]
    36
    """
    products = _jacobian(reconstruction, reconstruction.input.dtype)
    jacobian: LinearOperator = products
    pixels, weights = products.shape[0], products.network.weights.double()
    shift = jacobian @ weights
    scan = reconstruction.scan
    targets = scan.flat - scan.projector.operator @ (reconstruction.image.reshape(-1) - shift)
    if store or (store is None and pixels <= 1500):
        check_memory(
            8.0 * pixels * len(weights), f"the Jacobian of {pixels:,} pixels and {len(weights):,} weights",
            "use store=False",
        )  # fmt: skip
        jacobian = Dense(_all_rows(jacobian))
    return Linearised(reconstruction, jacobian, weights, blocks_of(reconstruction.model), shift, targets)


def _jacobian(reconstruction: Reconstruction, dtype: torch.dtype) -> Jacobian:
    """∂ image / ∂ filters, (size², p), by passes through the network: one forward or reverse pass a column."""
    model = deepcopy(reconstruction.model).to(dtype)
    inputs = Inputs.of((reconstruction.input.to(dtype),))
    return Jacobian(Network.of(model, is_filter(model)), inputs, reconstruction.scan.size**2, ProductPlan(chunk=CHUNK))


def _all_rows(operator: LinearOperator, height: int = 64) -> Tensor:
    found = torch.empty(operator.shape, dtype=torch.float64)
    for start in range(0, len(found), height):
        found[start : start + height] = operator.rows(start, min(start + height, len(found)))
    return found


def _in_precision(operator: Sparse, like: Tensor) -> Sparse:
    return Sparse(operator.matrix.astype(torch.zeros((), dtype=like.dtype).numpy().dtype, copy=False))


def rows_through(operator: LinearOperator, right: LinearOperator) -> Tensor:
    """The matrix of a product, by blocks of its rows."""
    return _all_rows(operator @ right)
