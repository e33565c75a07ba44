"""What is known of a precision before the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True)
class GammaHyperprior:
    """A Gamma hyperprior on a precision τ, as a density over log τ: shape · log τ − rate · τ + constant.

    Parameters
    ----------
    shape : float
        Shape of the Gamma distribution.
    rate : float
        Rate of the Gamma distribution.

    Examples
    --------
    >>> import lapwing as lw
    >>> lw.Isotropic(hyperprior=GammaHyperprior(2.0, 0.5)).hyperprior
    GammaHyperprior(shape=2.0, rate=0.5)
    """

    shape: float = 1e-6
    rate: float = 1e-6

    def log_density(self, precision: Tensor) -> Tensor:
        """The log density over the log precision, without its constant."""
        return self.shape * precision.log() - self.rate * precision
