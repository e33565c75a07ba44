"""Ways to infer a posterior, as values: what has parameters is passed to `infer` as one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final


@final
@dataclass(frozen=True)
class Exact:
    """An eigen-decomposition of the weights' side (d × d) or the data's (n·m × n·m), the smaller one by default."""

    side: Literal["primal", "dual"] | None = None


@final
@dataclass(frozen=True)
class Krylov:
    """The shared block-Krylov space: matrix products only, one space for every draw and every precision.

    It grows until the relative function error of every draw on the data is at most `rtol` at the precisions in use,
    for at most `steps` block steps and `memory_bytes` of memory (by default half of what is free).
    """

    steps: int | None = None
    rtol: float = 1e-2
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rtol < 1:
            raise ValueError(f"rtol must lie between 0 and 1, got {self.rtol}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


@final
@dataclass(frozen=True)
class CG:
    """Conjugate gradients from the prior draw, for several precisions or noises at sizes beyond `Exact`.

    Precisions are found by MacKay's fixed point on the draws, the same noise and warm starts at every step. `rank`
    is that of a Nyström preconditioner, made once per step at the cost of as many columns; 0 is none.
    """

    rtol: float = 1e-4
    max_steps: int = 1000
    rank: int = 0


@final
@dataclass(frozen=True)
class SGD:
    """Stochastic gradients, for data too many for whole passes: the published sample-then-optimise EM loop.

    `objective` says where the noise of a draw stands: "L" in the targets, "L'" in the anchor (less gradient noise
    where the data determine less than half of what they could), "mixed" shared out by leverage (never worse than
    either). Step lengths come from a short power iteration.
    """

    objective: Literal["L", "L'", "mixed"] = "mixed"
    batch_size: int = 128
    steps: int | None = None  # minibatches per solve; None is 20 epochs, at least 2,000
    em_steps: int = 10

    def __post_init__(self) -> None:
        if self.objective not in ("L", "L'", "mixed"):
            raise ValueError(f"objective is {self.objective!r}, expected 'L', \"L'\" or 'mixed'")
        if self.batch_size < 1 or self.em_steps < 1 or (self.steps is not None and self.steps < 1):
            raise ValueError(
                f"batch_size is {self.batch_size}, steps {self.steps}, em_steps {self.em_steps}: all must be positive"
            )


@final
@dataclass(frozen=True)
class Diagonal:
    """The diagonal of the Gauss-Newton matrix: exact, or from `probes` random combinations of every datum's outputs.

    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=Diagonal()).covariance.diagonal()
    tensor([0.2000, 0.2000, 0.1111], dtype=torch.float64)
    """

    probes: int | None = None

    def __post_init__(self) -> None:
        _check_probes(self.probes)


@final
@dataclass(frozen=True)
class KFAC:
    """A Kronecker product for every layer, its eigenvalues added to the prior's precision exactly.

    `sharing` says how weights used at several positions are treated (see `lapwing.network.kfac.factorise`), `probes`
    how many random combinations of the outputs are pulled back in place of all of them. Normalisation layers and
    parameters of no known layer get their exact block where it is small, else a diagonal: `diagnostics["blocks"]` says
    which. A prior's scale is brought to the nearest that a Kronecker product can hold.

    >>> import torch, lapwing as lw
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).eval()
    >>> x, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    >>> posterior = lw.fit(model, (x, y), lw.Categorical(), prior=lw.Isotropic(1.0), method=KFAC())
    >>> posterior.diagnostics["blocks"]
    {'kronecker': ['0', '2'], 'exact': ['1'], 'diagonal': []}
    """

    sharing: Literal["expand", "reduce"] = "expand"
    probes: int | None = None

    def __post_init__(self) -> None:
        _check_sharing(self.sharing)
        _check_probes(self.probes)


@final
@dataclass(frozen=True)
class EKFAC:
    """The eigenvectors of `KFAC` with exact second moments along them: a second pass over the data.

    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=EKFAC()).effective_dimension
    1.72308
    """

    sharing: Literal["expand", "reduce"] = "expand"

    def __post_init__(self) -> None:
        _check_sharing(self.sharing)


@final
@dataclass(frozen=True)
class LowRank:
    """The `rank` leading eigenpairs of the Gauss-Newton matrix, to a relative residual of `rtol`; else the prior.

    For any linear model. A rank below the number of observations is no judge of the noise: the mode can fit what the
    Occam factor has not paid for (`diagnostics["noise_at_floor"]`).

    >>> import lapwing as lw
    >>> model = lw.LinearModel([[3.0, 0.0], [0.0, 1.0]], [1.0, 2.0], lw.Gaussian(1.0))
    >>> lw.infer(model, prior=lw.Isotropic(1.0), method=LowRank(1)).covariance.diagonal()
    tensor([0.1000, 1.0000], dtype=torch.float64)
    """

    rank: int
    rtol: float = 1e-3

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.rtol < 1:
            raise ValueError(f"rank is {self.rank} and rtol {self.rtol}, expected rank ≥ 1 and 0 < rtol < 1")


@final
@dataclass(frozen=True)
class Hessian:
    """The true Hessian of −log p in the weights, dense, in place of the Gauss-Newton matrix: for small networks.

    It adds the curvature of the network itself, so it can be indefinite; a precision that does not make up for that is
    refused. Mode and evidence are those of the network's own weights, as in Laplace's approximation of MacKay (1992).

    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=Hessian()).covariance[0]
    tensor([ 0.4462,  0.2462, -0.3077], dtype=torch.float64)
    """


@final
@dataclass(frozen=True)
class EmpiricalFisher:
    """Σ over data of ∇log p ∇log pᵀ, dense, in place of the Gauss-Newton matrix: for comparison.

    It knows the residuals and not the noise: where the network fits its data exactly it is zero, so do not expect error
    bars of the right size (Kunstner et al. 2019).

    >>> import torch, lapwing as lw
    >>> model, x, y = torch.nn.Linear(2, 1).double().eval(), torch.eye(2).double(), torch.ones(2, 1).double()
    >>> lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(1.0), method=EmpiricalFisher()).covariance.shape
    torch.Size([3, 3])
    """


def _check_sharing(sharing: str) -> None:
    if sharing not in ("expand", "reduce"):
        raise ValueError(f"sharing is {sharing!r}, expected 'expand' or 'reduce'")


def _check_probes(probes: int | None) -> None:
    if probes is not None and probes < 1:
        raise ValueError(f"probes is {probes}, expected at least 1, or None for all outputs")


AtTheWeights = Hessian | EmpiricalFisher  # dense matrices that belong to the network at its own weights
Structural = Diagonal | KFAC | EKFAC | LowRank | AtTheWeights
Method = Exact | Krylov | CG | SGD | Structural
