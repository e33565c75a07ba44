"""What a search for hyperparameters starts from and leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, final

import torch
from torch import Tensor

from lapwing.studies.tomography.expected_tv import DifferenceMoments, TvPredCp, sweep
from lapwing.studies.tomography.filter_prior import FilterPrior
from lapwing.studies.tomography.linear import Linearised

EvidenceAt = Literal["mode", "weights"]
LOWEST_LOG_VARIANCE, HIGHEST_LOG_VARIANCE = -6.9, 14.0
LOG_LENGTHSCALES = (math.log(1e-2), math.log(1e2))


@final
@dataclass(frozen=True, eq=False)
class Setting:
    """Hyperparameters with the objective there; `objective` is NaN where only its gradient is known."""

    prior: FilterPrior
    noise_std: float
    objective: float = float("nan")


@final
@dataclass(frozen=True, eq=False)
class TypeII:
    """The hyperparameters found, the way there, and what is to be said about them.

    Parameters
    ----------
    prior : FilterPrior
        Variances and lengthscales.
    noise_std : float
        Of a line integral.
    trace : tuple of Setting
        The way there.
    method : str
        How they were found.
    evaluations : int
        Of the evidence or its gradient.
    converged : bool
        Whether the search ended by itself.
    notes : tuple of str
        What is to be said about them.

    Examples
    --------
    >>> from lapwing.studies.tomography import FilterPrior, UNet
    >>> from lapwing.studies.tomography.filter_prior import blocks_of
    >>> TypeII(FilterPrior.start(blocks_of(UNet((4, 4), (2,)))), 0.1, (), "exact", 12, True).converged
    True
    """

    prior: FilterPrior
    noise_std: float
    trace: tuple[Setting, ...] = field(repr=False)
    method: str
    evaluations: int
    converged: bool
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Hyperprior:
    """TV-PredCP on the blocks whose κ is monotone in the lengthscale, as the change of variables needs."""

    density: TvPredCp
    moments: DifferenceMoments
    blocks: tuple[int, ...]
    left_out: tuple[int, ...] = ()

    @staticmethod
    def of(density: TvPredCp, moments: DifferenceMoments, prior: FilterPrior) -> Hyperprior:
        """On every block of k × k filters, but those whose sweep turns."""
        filters = [number for number, block in enumerate(prior.blocks) if block.side > 1]
        monotone = [number for number in filters if sweep(moments, prior, number, 30).monotone]
        return Hyperprior(density, moments, tuple(monotone), tuple(sorted(set(filters) - set(monotone))))

    def log_density(self, prior: FilterPrior) -> Tensor:  # ()
        """The sum over its blocks; differentiable."""
        terms = [self.density.log_density(self.moments, prior, number) for number in self.blocks]
        return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)


@final
@dataclass(frozen=True, eq=False)
class Parameters:
    """Log variances, log lengthscales and the log noise variance as one vector, and their bounds."""

    like: FilterPrior
    noise: float | None  # a noise variance that is given

    @property
    def filters(self) -> list[int]:
        """Blocks that have a lengthscale."""
        return [number for number, block in enumerate(self.like.blocks) if block.side > 1]

    def pack(self, noise_variance: float) -> Tensor:
        """The vector to begin with."""
        tail = [] if self.noise is not None else [math.log(noise_variance)]
        lengths = self.like.log_lengthscale[self.filters]
        return torch.cat([self.like.log_variance, lengths, torch.tensor(tail, dtype=torch.float64)]).detach()

    def unpack(self, vector: Tensor) -> tuple[FilterPrior, Tensor]:
        """The prior and the noise variance, differentiable in the vector."""
        count, filters = len(self.like.blocks), self.filters
        lengths = self.like.log_lengthscale.index_put(
            (torch.tensor(filters, dtype=torch.long),), vector[count : count + len(filters)]
        )
        prior = FilterPrior(self.like.blocks, vector[:count], lengths)
        given = vector.new_tensor(self.noise) if self.noise is not None else vector[-1].exp()
        return prior, given

    def bounds(self, scale: float) -> list[tuple[float, float]]:
        """Of every entry; the noise variance within twelve decades of `scale`."""
        middle = math.log(scale)
        return (
            [(LOWEST_LOG_VARIANCE, HIGHEST_LOG_VARIANCE)] * len(self.like.blocks)
            + [LOG_LENGTHSCALES] * len(self.filters)
            + ([] if self.noise is not None else [(middle - 14, middle + 14)])
        )


def notes(prior: FilterPrior, hyperprior: Hyperprior | None) -> tuple[str, ...]:
    """What a user should know about these hyperparameters."""
    found = []
    names = [block.name for block in prior.blocks]
    low = [name for name, value in zip(names, prior.log_variance, strict=True) if value <= LOWEST_LOG_VARIANCE + 1e-3]
    if low:
        found.append(
            f"the prior variance of {', '.join(low)} is at its lower bound, exp({LOWEST_LOG_VARIANCE}): the data can "
            "do without these filters being uncertain (automatic relevance determination), which is not a failure"
        )
    high = [name for name, value in zip(names, prior.log_variance, strict=True) if value >= HIGHEST_LOG_VARIANCE - 1e-3]
    if high:
        found.append(f"the prior variance of {', '.join(high)} is at its upper bound: the data do not limit it")
    if hyperprior is not None and hyperprior.left_out:
        turned = ", ".join(names[number] for number in hyperprior.left_out)
        found.append(
            f"the expected TV of {turned} is not monotone in the lengthscale, so it defines no density of it: there "
            "the evidence alone decides"
        )
    return tuple(found)


def starting_noise(linear: Linearised) -> float:
    """A noise variance to begin with: the misfit of the reconstruction."""
    return max(linear.reconstruction.misfit**2, 1e-12)
