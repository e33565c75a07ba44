"""Which angle to measure next: the one whose rays are expected to say most about the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg.operators import as_tensor
from lapwing.studies.tomography.scanning.geometry import ParallelBeam
from lapwing.studies.tomography.scanning.projector import projector


@final
@dataclass(frozen=True, eq=False)
class ChosenAngles:
    """Angles in the order they were chosen, what each is expected to bring, and what is left of the covariance."""

    angles: Tensor  # (count,), radians
    gains: Tensor  # (count,), nats
    covariance: Tensor  # (size², size²)


def next_angles(
    covariance: Tensor, candidates: Any, count: int, *, noise_std: float, bins: int | None = None
) -> ChosenAngles:
    """The `count` candidates with the largest information gain ½ log det(I + A Σ Aᵀ / noise²), one after the other.

    `covariance` (size², size²) is that of the image, `ImagePosterior.covariance()` after a first scan. It is
    conditioned on each chosen angle, which needs no data: it does not depend on them. No angle is taken twice.

    Parameters
    ----------
    covariance : Tensor
        Of the image, (size², size²).
    candidates : sequence of float
        Angles in radians.
    count : int
        How many to choose.
    noise_std : float
        Standard deviation of a line integral.
    bins : int, optional
        Rays of an angle; those that cover the image by default.

    Returns
    -------
    ChosenAngles
        In the order of choice, with what each is expected to bring.

    Raises
    ------
    ValueError
        If the covariance is not of a square image, or a number is out of range.

    Examples
    --------
    >>> columns = torch.kron(torch.ones(4, 4), torch.eye(4)).double()  # every column of pixels constant, but unknown
    >>> float(next_angles(columns, [0.0, 0.8, 1.5707963], 1, noise_std=0.1).angles)
    0.0
    """
    angles, size = as_tensor(candidates).double().reshape(-1), round(len(covariance) ** 0.5)
    if covariance.shape != (size * size, size * size):
        raise ValueError(f"the covariance has shape {tuple(covariance.shape)}, expected that of a square image, flat")
    if not 1 <= count <= len(angles):
        raise ValueError(f"{count} of {len(angles)} candidates were asked for: expected 1 to {len(angles)}")
    if not noise_std > 0:
        raise ValueError(f"noise_std is {noise_std}, expected a positive number")
    width = ParallelBeam.spread(1, size).bins if bins is None else bins
    rows = [projector(ParallelBeam(angle[None], width), size).operator.dense() for angle in angles]
    rows = [part[part.abs().sum(1) > 0] for part in rows]  # rays that miss the image say nothing
    left, found, gains, rest = list(range(len(angles))), [], [], covariance.double()
    for _ in range(count):
        expected = torch.stack([information_gain(rest, rows[number], noise_std) for number in left])
        best = left.pop(int(expected.argmax()))
        found.append(best)
        gains.append(expected.max())
        rest = conditioned(rest, rows[best], noise_std)
    return ChosenAngles(angles[found], torch.stack(gains), rest)


def information_gain(covariance: Tensor, rows: Tensor, noise_std: float) -> Tensor:  # ()
    """½ log det(I + A Σ Aᵀ / noise²): how many nats these rays are expected to say about the image."""
    seen = rows @ covariance @ rows.mT / noise_std**2
    return torch.linalg.cholesky(torch.eye(len(rows), dtype=seen.dtype) + seen).diagonal().log().sum()


def conditioned(covariance: Tensor, rows: Tensor, noise_std: float) -> Tensor:
    """The covariance once these rays have been measured."""
    cross = covariance @ rows.mT
    seen = rows @ cross + noise_std**2 * torch.eye(len(rows), dtype=cross.dtype)
    found = covariance - cross @ torch.linalg.solve(seen, cross.mT)
    return (found + found.mT) / 2
