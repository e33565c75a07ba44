"""The structures that can stand for the Gauss-Newton matrix: a frozen choice each."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.storing import in_double
from lapwing.bayes.methods.structured import Structure
from lapwing.bayes.methods.structured_fits import EvidenceAt
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.statistics import in_units
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.truncated import leading, truncated


class Layered(Structure):
    """A structure that a network makes of its layers."""

    @abstractmethod
    def made_of(self, network: Any, scale: Tensor | None, seed: int) -> Any:
        """The structure, from what a network can make of itself: see `lapwing.network.kfac.Structures`."""

    def curvature(
        self, model: LinearModel, rows: GaussianSurrogate, prior: DiagonalPrior, seed: int  # noqa: ARG002
    ) -> tuple[Curvature, dict[str, Any]]:  # fmt: skip
        assert model.structure is not None
        found = self.made_of(model.structure, prior.scale, seed)
        return found.curvature, dict(found.diagnostics)


@final
@dataclass(frozen=True)
class Diagonal(Layered):
    """The diagonal of the Gauss-Newton matrix: exact, or from `probes` random combinations of every datum's outputs.

    Parameters
    ----------
    probes : int, optional
        Random combinations of the outputs per example. Exact by default.
    evidence_at : "mode" or "weights", optional
        Where the marginal likelihood is evaluated: at the optimum of the linearised model, or at the network's
        weights.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=Diagonal()).covariance.diagonal()
    tensor([0.2000, 0.2000, 0.1111], dtype=torch.float64)
    """

    probes: int | None = None
    evidence_at: EvidenceAt | None = None

    def __post_init__(self) -> None:
        _check_probes(self.probes)

    def made_of(self, network: Any, scale: Tensor | None, seed: int) -> Any:
        return network.diagonal(self.probes, scale, seed)


@final
@dataclass(frozen=True)
class KFAC(Layered):
    """A Kronecker product for every layer, its eigenvalues added to the prior's precision exactly.

    `sharing` says how weights used at several positions are treated (see `lapwing.network.kfac.factorise`), `probes`
    how many random combinations of the outputs are pulled back in place of all of them. Normalisation layers and
    parameters of no known layer get their exact block where it is small, else a diagonal: `diagnostics.structure` says
    which. A prior's scale is brought to the nearest that a Kronecker product can hold.

    Parameters
    ----------
    sharing : "expand" or "reduce"
        How weights that are used at several positions are treated.
    probes : int, optional
        Random combinations of the outputs that are pulled back. All outputs by default.
    evidence_at : "mode" or "weights", optional
        Where the marginal likelihood is evaluated: at the optimum of the linearised model, or at the network's
        weights.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).eval()
    >>> x, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    >>> posterior = lw.fit(model, (x, y), lw.Categorical(), prior=lw.Isotropic(1.0), method=KFAC())
    >>> posterior.diagnostics.structure["blocks"]
    {'kronecker': ['0', '2'], 'exact': ['1'], 'diagonal': []}
    """

    sharing: Literal["expand", "reduce"] = "expand"
    probes: int | None = None
    evidence_at: EvidenceAt | None = None

    def __post_init__(self) -> None:
        _check_sharing(self.sharing)
        _check_probes(self.probes)

    def made_of(self, network: Any, scale: Tensor | None, seed: int) -> Any:
        return network.kronecker(self.sharing, self.probes, scale, seed)


@final
@dataclass(frozen=True)
class EKFAC(Layered):
    """The eigenvectors of `KFAC` with exact second moments along them: a second pass over the data.

    Parameters
    ----------
    sharing : "expand" or "reduce"
        How weights that are used at several positions are treated.
    evidence_at : "mode" or "weights", optional
        Where the marginal likelihood is evaluated: at the optimum of the linearised model, or at the network's
        weights.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=EKFAC()).effective_dimension
    1.72308
    """

    sharing: Literal["expand", "reduce"] = "expand"
    evidence_at: EvidenceAt | None = None

    def __post_init__(self) -> None:
        _check_sharing(self.sharing)

    def made_of(self, network: Any, scale: Tensor | None, seed: int) -> Any:
        return network.eigencorrected(self.sharing, scale, seed)


@final
@dataclass(frozen=True)
class Hessian(Layered):
    """The true Hessian of −log p in the weights, dense, in place of the Gauss-Newton matrix: for small networks.

    It adds the curvature of the network itself, so it can be indefinite; a precision that does not make up for that is
    refused. Mode and evidence are those of the network's own weights, as in Laplace's approximation of MacKay (1992).

    Parameters
    ----------
    evidence_at : "mode" or "weights", optional
        Where the marginal likelihood is evaluated: at the optimum of the linearised model, or at the network's
        weights.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=Hessian()).covariance[0]
    tensor([ 0.4462,  0.2462, -0.3077], dtype=torch.float64)
    """

    evidence_at: EvidenceAt | None = "weights"

    def made_of(self, network: Any, scale: Tensor | None, seed: int) -> Any:  # noqa: ARG002
        return network.hessian(scale)


@final
@dataclass(frozen=True)
class EmpiricalFisher(Layered):
    """Σ over data of ∇log p ∇log pᵀ, dense, in place of the Gauss-Newton matrix: for comparison.

    It knows the residuals and not the noise: where the network fits its data exactly it is zero, so do not expect error
    bars of the right size (Kunstner et al. 2019).

    Parameters
    ----------
    evidence_at : "mode" or "weights", optional
        Where the marginal likelihood is evaluated: at the optimum of the linearised model, or at the network's
        weights.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=EmpiricalFisher()).covariance.shape
    torch.Size([3, 3])
    """

    evidence_at: EvidenceAt | None = "weights"

    def made_of(self, network: Any, scale: Tensor | None, seed: int) -> Any:  # noqa: ARG002
        return network.empirical_fisher(scale)


@final
@dataclass(frozen=True)
class LowRank(Structure):
    """The `rank` leading eigenpairs of the Gauss-Newton matrix, to a relative residual of `rtol`; else the prior.

    For any linear model. A rank below the number of observations is no judge of the noise: the mode can fit what the
    Occam factor has not paid for (`diagnostics.noise_at_floor`).

    Parameters
    ----------
    rank : int
        Number of eigenpairs.
    rtol : float
        Relative residual of the eigenpairs.
    evidence_at : "mode" or "weights", optional
        Where the marginal likelihood is evaluated: at the optimum of the linearised model, or at the network's
        weights.

    Raises
    ------
    ValueError
        If the rank is below one, or `rtol` is not between 0 and 1.

    Examples
    --------
    >>> import lapwing as lw
    >>> model = lw.LinearModel([[3.0, 0.0], [0.0, 1.0]], [1.0, 2.0], lw.Gaussian(1.0))
    >>> lw.infer(model, prior=lw.Isotropic(1.0), method=LowRank(1)).covariance.diagonal()
    tensor([0.1000, 1.0000], dtype=torch.float64)
    """

    rank: int
    rtol: float = 1e-3
    evidence_at: EvidenceAt | None = None
    by_layer = False

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.rtol < 1:
            raise ValueError(f"rank is {self.rank} and rtol {self.rtol}, expected rank ≥ 1 and 0 < rtol < 1")

    def check(self, model: LinearModel, prior: Prior) -> None:
        """Any linear model will do."""

    def curvature(
        self, model: LinearModel, rows: GaussianSurrogate, prior: DiagonalPrior, seed: int
    ) -> tuple[Curvature, dict[str, Any]]:
        """The leading eigenpairs, the prior outside their span."""
        features = rows.features if model.point is None else in_double(rows.features)
        scaled = in_units(features, prior.scale)
        found = leading(scaled, self.rank, generator=torch.Generator().manual_seed(seed), rtol=self.rtol)
        told = {
            "rank": len(found.values), "largest_left_out": found.dropped, "data_passes": found.passes,
            "largest_residual": float(found.residuals.max()) if len(found.values) else 0.0,
            "limited_by": found.limited_by,
        }  # fmt: skip
        return truncated(found, prior.scale), told


def _check_sharing(sharing: str) -> None:
    if sharing not in ("expand", "reduce"):
        raise ValueError(f"sharing is {sharing!r}, expected 'expand' or 'reduce'")


def _check_probes(probes: int | None) -> None:
    if probes is not None and probes < 1:
        raise ValueError(f"probes is {probes}, expected at least 1, or None for all outputs")
