"""What a deep image prior says of its errors without a posterior: dropout at test time, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from lapwing.runtime.progress import Report
from lapwing.studies.tomography.deep_image_prior import Reconstruction, Settings, deep_image_prior
from lapwing.studies.tomography.posterior import marginal_log_density
from lapwing.studies.tomography.scanning.projector import square_image
from lapwing.studies.tomography.scanning.scan import Scan

DROPOUT = 0.05  # of the publication


@final
@dataclass(frozen=True, eq=False)
class SampledImages:
    """An image with the spread of its samples."""

    reconstruction: Reconstruction
    samples: Tensor = field(repr=False)  # (draws, size, size)

    @property
    def mean(self) -> Tensor:  # (size, size)
        """Of the samples."""
        return self.samples.mean(0)

    @property
    def std(self) -> Tensor:  # (size, size)
        """Of the samples."""
        return self.samples.std(0)

    def log_density(self, truth: Any, *, floor: float = 0.0) -> float:
        """log N(truth; mean, std² + floor) per pixel."""
        error = square_image(truth, self.samples.shape[-1]) - self.mean
        return marginal_log_density(error.reshape(-1), self.std.square().reshape(-1) + floor)


def dropout_image_prior(
    scan: Scan, settings: Settings | None = None, *, draws: int = 100, seed: int = 0,
    progress: bool | Report | None = None,
) -> SampledImages:  # fmt: skip
    """A deep image prior fitted with dropout, and images with channels dropped at random (MC dropout).

    It takes all its steps: a loss that is random itself says nothing about the noise level.

    Parameters
    ----------
    scan : Scan
        What was measured.
    settings : Settings, optional
        Of the network and its fit.
    draws : int
        Number of draws.
    seed : int
        Of all random numbers.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    SampledImages
        With `mean` and `std`.

    Raises
    ------
    ValueError
        If there are fewer than two draws.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, Settings, projector, simulate
    >>> scan = simulate(torch.eye(6), projector(ParallelBeam.spread(5, 6), 6))
    >>> found = dropout_image_prior(scan, Settings((3, 3), (2,), steps=20, dropout=0.2), draws=4, progress=False)
    >>> found.samples.shape, found.std.shape
    (torch.Size([4, 6, 6]), torch.Size([6, 6]))
    """
    if draws < 2:
        raise ValueError(f"draws is {draws}, expected at least 2")
    chosen = settings or Settings()
    chosen = replace(chosen, dropout=chosen.dropout or DROPOUT, stop_at_noise=False)
    found = deep_image_prior(scan, chosen, seed=seed, progress=progress)
    weights = {name: weight.detach() for name, weight in found.model.named_parameters()}
    found.model.train()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(seed)
            images = [functional_call(found.model, weights, (found.input,))[0, 0] for _ in range(draws)]
    finally:
        found.model.eval()
    return SampledImages(found, torch.stack(images).double())


def unit_log_density(image: Tensor, truth: Any) -> float:
    """log N(truth; image, 1) per pixel: the density of a reconstruction that comes without error bars."""
    error = square_image(truth, len(image)) - image
    return marginal_log_density(error.reshape(-1), torch.ones(error.numel(), dtype=torch.float64))
