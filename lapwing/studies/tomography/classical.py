"""Reconstructions without a network: filtered back-projection, least squares, total variation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from lapwing.linalg.operators import LinearOperator
from lapwing.studies.tomography.scanning.geometry import FanBeam, ParallelBeam
from lapwing.studies.tomography.scanning.scan import Scan
from lapwing.studies.tomography.total_variation import differences

Window = Literal["ramp", "hann"]


def fbp(scan: Scan, window: Window = "hann") -> Tensor:  # (size, size)
    """Filtered back-projection of a parallel scan over half a turn, or of a fan over a whole one (Kak and Slaney 1988).

    "hann" damps the high frequencies, where noise is, and "ramp" keeps them. Of angles that are not spread evenly,
    `cgls` makes a better start.

    Parameters
    ----------
    scan : Scan
        What was measured.
    window : "hann" or "ramp"
        Filter of the frequencies.

    Returns
    -------
    Tensor
        (size, size).

    Raises
    ------
    ValueError
        If the window or the geometry is of another kind.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector, simulate
    >>> A = projector(ParallelBeam.spread(40, 16), 16)
    >>> truth = torch.zeros(16, 16); truth[5:11, 4:9] = 1
    >>> float(fbp(simulate(truth, A, noise=1e-6), "ramp")[7, 6].round(decimals=1))
    1.0
    """
    geometry = scan.projector.geometry
    if window not in ("ramp", "hann"):
        raise ValueError(f"window is {window!r}, expected 'ramp' or 'hann'")
    if isinstance(geometry, FanBeam):
        return _fan(scan, geometry, window)
    if not isinstance(geometry, ParallelBeam):
        raise ValueError(
            f"filtered back-projection is for ParallelBeam and FanBeam, got {type(geometry).__name__}: use cgls"
        )
    filtered = _filtered(scan.sinogram, geometry.spacing, window)
    # rays a distance `spacing` apart cross a pixel of unit area with a total length of 1 / spacing
    return scan.projector.back_project(filtered) * (math.pi / len(filtered) * geometry.spacing)


def _fan(scan: Scan, geometry: FanBeam, window: Window) -> Tensor:  # (size, size)
    """Weighted, filtered and back-projected with the inverse square of the distance (Kak and Slaney 1988, §3.4.2)."""
    far = geometry.source
    spacing = geometry.spacing * far / (far + geometry.detector)  # as seen at the centre
    places = (torch.arange(geometry.bins, dtype=torch.float64) - (geometry.bins - 1) / 2) * spacing
    weighted = scan.sinogram * (far / (far**2 + places.square()).sqrt())
    filtered = 0.5 * _filtered(weighted, spacing, window)
    axis = torch.arange(scan.size, dtype=torch.float64) - (scan.size - 1) / 2
    x, y = axis[None, :], -axis[:, None]
    total = torch.zeros(scan.size, scan.size, dtype=torch.float64)
    for angle, row in zip(geometry.angles, filtered, strict=True):
        depth = 1 - (x * angle.cos() + y * angle.sin()) / far  # distance from the source over that of the centre
        total += _between(row, (y * angle.cos() - x * angle.sin()) / depth / spacing) / depth.square()
    return total * (2 * math.pi / len(filtered))


def _between(row: Tensor, place: Tensor) -> Tensor:
    """Values of a detector row at places in bins from its middle, linear between them and zero outside."""
    at = place + (len(row) - 1) / 2
    left = at.floor().clamp(0, len(row) - 2).long()
    value = torch.lerp(row[left], row[left + 1], at - left)
    return torch.where((at >= 0) & (at <= len(row) - 1), value, 0.0)


def _filtered(sinogram: Tensor, spacing: float, window: Window) -> Tensor:  # (angles, bins)
    """Every row convolved with the ramp filter."""
    bins = sinogram.shape[1]
    length = 2 ** math.ceil(math.log2(2 * bins))
    response = torch.fft.rfft(_ramp(length, spacing)).real
    if window == "hann":
        response = response * (0.5 + 0.5 * torch.cos(torch.linspace(0, math.pi, len(response), dtype=torch.float64)))
    return torch.fft.irfft(torch.fft.rfft(sinogram, n=length) * response, n=length)[:, :bins] * spacing


def _ramp(length: int, spacing: float) -> Tensor:  # (length,)
    """The band-limited ramp filter sampled in space, wrapped around (Kak and Slaney 1988, eq. 3.61)."""
    place = torch.arange(length, dtype=torch.float64)
    place = torch.minimum(place, length - place)
    kernel = torch.where(place % 2 == 1, -1 / (math.pi * place.clamp_min(1) * spacing) ** 2, 0.0)
    kernel[0] = 1 / (4 * spacing**2)
    return kernel


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """An image found by iteration, and how.

    Parameters
    ----------
    image : Tensor
        (size, size).
    steps : int
        Made.
    misfit : float
        Root mean square of y − A x.
    converged : bool
        Whether it stopped by itself.
    weight : float
        Of total variation.

    Examples
    --------
    >>> Fitted(torch.zeros(2, 2), steps=3, misfit=0.1, converged=True).converged
    True
    """

    image: Tensor  # (size, size)
    steps: int
    misfit: float  # root mean square of y − A x
    converged: bool
    weight: float = 0.0  # of total variation


def cgls(scan: Scan, *, steps: int = 50) -> Fitted:
    """Least squares by conjugate gradients from zero, stopped where the misfit falls to the noise.

    The early stop is what regularises: without a noise level all `steps` are made.

    Parameters
    ----------
    scan : Scan
        What was measured.
    steps : int
        At most.

    Returns
    -------
    Fitted
        The image, and how it was found.

    Raises
    ------
    ValueError
        If `steps` is below one.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector, simulate
    >>> A = projector(ParallelBeam.spread(12, 8), 8)
    >>> found = cgls(simulate(torch.eye(8), A, noise=0.02))
    >>> found.converged, found.misfit <= 0.02 * float(A.project(torch.eye(8)).mean())
    (True, True)
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}, expected at least 1")
    A, target = scan.projector.operator, 0.0 if scan.noise_std is None else scan.noise_std
    x = torch.zeros(A.shape[1], dtype=torch.float64)
    residual = scan.flat.clone()
    gradient = A.T @ residual
    direction, energy, taken = gradient, gradient.square().sum(), 0
    while taken < steps and _rms(residual) > target and energy > 0:
        image = A @ direction
        length = energy / image.square().sum()
        x, residual = x + length * direction, residual - length * image
        gradient = A.T @ residual
        energy, before = gradient.square().sum(), energy
        direction, taken = gradient + energy / before * direction, taken + 1
    return Fitted(x.reshape(scan.size, scan.size), taken, _rms(residual), _rms(residual) <= target)


def tv(
    scan: Scan, weight: float | None = None, *, steps: int = 2000, rtol: float = 1e-3, positive: bool = True
) -> Fitted:
    """argmin_x ½‖y − A x‖² + weight · TV(x), anisotropic, by the primal–dual method of Chambolle and Pock (2011).

    Without a `weight`, the one whose misfit is the noise level (Morozov) is looked for by bisection, which costs about
    eight solutions. Stopped where the duality gap is `rtol` of the objective.

    Parameters
    ----------
    scan : Scan
        What was measured.
    weight : float, optional
        Of total variation; looked for by default.
    steps : int
        At most.
    rtol : float
        Duality gap at which it stops, relative to the objective.
    positive : bool
        Whether pixels may not be negative.

    Returns
    -------
    Fitted
        The image, and how it was found.

    Raises
    ------
    ValueError
        If the weight is negative, or neither it nor the noise is known.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector, simulate
    >>> truth = torch.zeros(12, 12); truth[3:9, 4:8] = 1
    >>> scan = simulate(truth, projector(ParallelBeam.spread(6, 12), 12), noise=0.02)
    >>> float((tv(scan).image - truth).square().mean().sqrt()) < 0.05
    True
    """
    if weight is not None and not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"weight is {weight}, expected zero or a positive number")
    problem = _Tv.of(scan, positive)
    if weight is not None:
        return problem.solve(weight, steps, rtol, None)[0]
    if scan.noise_std is None:
        raise ValueError("give a weight of total variation, or a scan whose noise_std is known: neither is there")
    low, high = math.log(1e-3 * scan.noise_std), math.log(1e3 * scan.noise_std)
    found, state = problem.solve(math.exp((low + high) / 2), steps, rtol, None)
    for _ in range(8):
        middle = math.log(found.weight)
        low, high = (low, middle) if found.misfit > scan.noise_std else (middle, high)
        if abs(found.misfit / scan.noise_std - 1) < 0.02:
            break
        found, state = problem.solve(math.exp((low + high) / 2), steps, rtol, state)
    return found


State = tuple[Tensor, Tensor, Tensor]  # image, dual of the data, dual of the differences


@final
@dataclass(frozen=True, eq=False)
class _Tv:
    """A TV problem: the projector, the differences, and step lengths that preconditioning makes safe."""

    scan: Scan
    A: LinearOperator
    D: LinearOperator
    primal: Tensor  # (size²,), step lengths 1 / Σ_i |K_ij| (Pock and Chambolle 2011, α = 1)
    dual_data: Tensor
    dual_differences: Tensor
    positive: bool

    @staticmethod
    def of(scan: Scan, positive: bool) -> _Tv:
        A, D = scan.projector.operator, differences(scan.size)
        columns = torch.from_numpy(abs(A.matrix).sum(0) + abs(D.matrix).sum(0))
        rows = torch.from_numpy(abs(A.matrix).sum(1))
        half = torch.full((D.shape[0],), 0.5, dtype=torch.float64)
        return _Tv(scan, A, D, 1 / columns, 1 / rows.clamp_min(1e-12), half, positive)

    def solve(self, weight: float, steps: int, rtol: float, start: State | None) -> tuple[Fitted, State]:
        y = self.scan.flat
        zeros = torch.zeros(self.A.shape[1], dtype=torch.float64)
        x, p, q = start or (zeros, torch.zeros_like(y), torch.zeros(self.D.shape[0], dtype=torch.float64))
        q, ahead, done = q.clamp(-weight, weight), x, 0
        for done in range(1, steps + 1):
            p = (p + self.dual_data * (self.A @ ahead - y)) / (1 + self.dual_data)
            q = (q + self.dual_differences * (self.D @ ahead)).clamp(-weight, weight)
            before = x
            x = x - self.primal * (self.A.T @ p + self.D.T @ q)
            x = x.clamp_min(0) if self.positive else x
            ahead = 2 * x - before
            if done % 25 == 0 and self._gap(x, p, q, weight) <= rtol:
                break
        gap, misfit = self._gap(x, p, q, weight), _rms(self.A @ x - y)
        image = x.reshape(self.scan.size, self.scan.size)
        return Fitted(image, done, misfit, gap <= rtol, weight), (x, p, q)

    def _gap(self, x: Tensor, p: Tensor, q: Tensor, weight: float) -> float:
        """A bound on the relative excess of the objective, where images no larger than twice this one are meant."""
        y = self.scan.flat
        primal = 0.5 * (self.A @ x - y).square().sum() + weight * (self.D @ x).abs().sum()
        dual = -0.5 * p.square().sum() - p @ y
        slack = self.A.T @ p + self.D.T @ q  # zero, or not negative for a positive x, at the optimum
        slack = slack.clamp_max(0) if self.positive else slack
        room = 2 * float(x.abs().max())
        return float((primal - dual + room * slack.abs().sum()) / primal.clamp_min(1e-300))


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
