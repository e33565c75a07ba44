"""A scan: a sinogram with the projector that it was taken by, and what is known of its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from lapwing.bayes.noise import DATA, Noise
from lapwing.studies.tomography.scanning.projector import Projector, square_image


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """Line integrals as measured; `truth` is the image behind them, where it is known, and is used for scores only.

    Parameters
    ----------
    projector : Projector
        Of the scan.
    sinogram : Tensor
        (angles, bins).
    noise_std : float, optional
        Of every line integral, if it is known.
    truth : Tensor, optional
        (size, size), for scores only.

    Raises
    ------
    ValueError
        If the sinogram does not fit the projector, or the noise is not positive.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector
    >>> A = projector(ParallelBeam.spread(3, 4), 4)
    >>> Scan(A, [[0.0] * 7] * 3, noise_std=0.1).size
    4
    """

    projector: Projector
    sinogram: Any  # (angles, bins)
    noise_std: float | None = None  # of every line integral; None where it is not known
    truth: Any = None  # (size, size)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sinogram", self.projector.checked(self.sinogram))
        if self.truth is not None:
            object.__setattr__(self, "truth", square_image(self.truth, self.projector.size))
        if self.noise_std is not None and not (math.isfinite(self.noise_std) and self.noise_std > 0):
            raise ValueError(
                f"noise_std is {self.noise_std}, expected a positive number: without noise nothing is uncertain but "
                "what no ray sees; leave it out to have it tuned"
            )

    @property
    def size(self) -> int:
        """Pixels along one side of the image."""
        return self.projector.size

    @property
    def flat(self) -> Tensor:  # (angles · bins,)
        """The sinogram as a vector, in the order of the projector's rows."""
        return self.sinogram.reshape(-1)


def simulate(image: Any, projector: Projector, *, noise: float = 0.05, seed: int = 0) -> Scan:
    """A scan of a known image with white noise, whose standard deviation is `noise` times the mean of |A x|.

    Parameters
    ----------
    image : Tensor or array
        The truth, (size, size).
    projector : Projector
        Of the scan.
    noise : float
        Share of the mean line integral.
    seed : int
        Of all random numbers.

    Returns
    -------
    Scan
        With its truth.

    Raises
    ------
    ValueError
        If the noise is not positive, or the image is zero or of another size.

    Examples
    --------
    >>> import torch
    >>> from lapwing.studies.tomography import ParallelBeam, projector
    >>> scan = simulate(torch.ones(4, 4), projector(ParallelBeam.spread(3, 4), 4), noise=0.1)
    >>> scan.sinogram.shape, round(scan.noise_std, 3)
    (torch.Size([3, 7]), 0.229)
    """
    if not (math.isfinite(noise) and noise > 0):
        raise ValueError(
            f"noise is {noise}, expected a positive share of the mean line integral, such as 0.05: data without noise "
            "leave nothing for a likelihood to weigh"
        )
    truth = square_image(image, projector.size)
    clean = projector.project(truth)
    noise_std = noise * float(clean.abs().mean())
    if noise_std == 0:
        raise ValueError("the image is zero everywhere, so a noise relative to its line integrals is zero too")
    normals = Noise(seed, DATA).rows(0, clean.numel(), 1).reshape(clean.shape)
    return Scan(projector, clean + noise_std * normals, noise_std, truth)
