"""Affine transformations of the plane from their generators: T_η = exp(Σ η_i G_i), inverses, products, logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Generator, Tensor

# entries (row, column, value) of generators, on coordinates (across, down, 1) with the picture in [−1, 1]
GENERATORS: dict[str, tuple[tuple[int, int, float], ...]] = {
    "shift_x": ((0, 2, 1.0),),
    "shift_y": ((1, 2, 1.0),),
    "rotation": ((1, 0, 1.0), (0, 1, -1.0)),
    "scale": ((0, 0, 1.0), (1, 1, 1.0)),
    "scale_x": ((0, 0, 1.0),),
    "scale_y": ((1, 1, 1.0),),
    "shear_x": ((0, 1, 1.0),),
    "shear_y": ((1, 0, 1.0),),
}
SHIFTS = frozenset({"shift_x", "shift_y"})


@final
@dataclass(frozen=True)
class Affine:
    """Transformations spanned by some generators; `bounds` is the half-range over which pictures are made alike.

    Rotations are in radians, shifts in half widths of the picture, scales act as e^η. A picture is read backwards,
    x(p) = x̂(T p), so the product for "A, then B" is A B: what is applied first stands on the left.

    Parameters
    ----------
    names : tuple of str
        Of the generators.
    bounds : tuple of float
        Half-range of each.

    Raises
    ------
    ValueError
        If a generator is not known, or a bound is out of range.

    Examples
    --------
    >>> group = Affine.of(rotation=math.pi, scale=0.3)
    >>> group.names, len(group), group.is_closed
    (('rotation', 'scale'), 2, True)
    """

    names: tuple[str, ...]
    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in GENERATORS]
        if unknown or not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"generators {self.names}: expected different ones of {', '.join(GENERATORS)}")
        if "scale" in self.names and {"scale_x", "scale_y"} & set(self.names):
            raise ValueError("scale is scale_x and scale_y together: choose either it or those")
        if len(self.bounds) != len(self.names) or not all(0 < bound < math.inf for bound in self.bounds):
            raise ValueError(f"bounds {self.bounds} for {self.names}: expected a positive number for each generator")
        if any(bound > math.pi + 1e-9 for bound, turns in zip(self.bounds, self.is_angle, strict=True) if turns):
            raise ValueError("the bound of rotation is in radians, at most π")

    @staticmethod
    def of(**bounds: float) -> Affine:
        """The group with these generators and bounds."""
        return Affine(tuple(bounds), tuple(float(bound) for bound in bounds.values()))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_angle(self) -> tuple[bool, ...]:
        """Which coordinates are circular."""
        return tuple(name == "rotation" for name in self.names)

    @cached_property
    def is_closed(self) -> bool:
        """Whether every product is again the exponential of some η, which `coordinates` finds."""
        names = set(self.names)
        if names <= {"scale_x", "scale_y"} | SHIFTS:
            return True
        return names <= {"rotation", "scale"} | SHIFTS and ("rotation" not in names or len(names & SHIFTS) != 1)

    def generators(self, like: Tensor) -> Tensor:
        """The matrices G: (generators, 3, 3)."""
        found = torch.zeros(len(self), 3, 3)
        for place, name in enumerate(self.names):
            for row, column, value in GENERATORS[name]:
                found[place, row, column] = value
        return found.to(like)

    def matrix(self, eta: Tensor) -> Tensor:
        """T_η for η (…, generators): (…, 3, 3); in closed form where there is one.

        >>> quarter = Affine.of(rotation=math.pi).matrix(torch.tensor([math.pi / 2]))
        >>> quarter[:2, :2].round().int().tolist()
        [[0, -1], [1, 0]]
        """
        self._check(eta)
        if not self.is_closed:
            return self.exponential(eta)
        part = {name: eta[..., place] for place, name in enumerate(self.names)}
        zero = torch.zeros_like(eta[..., 0])
        shift = [part.get(name, zero) for name in ("shift_x", "shift_y")]
        if {"rotation", "scale"} & set(self.names):
            w = torch.complex(part.get("scale", zero), part.get("rotation", zero))
            factor, move = w.exp(), _phi(w) * torch.complex(*shift) if SHIFTS & set(self.names) else None
            b = [zero, zero] if move is None else [move.real, move.imag]
            return _rows([factor.real, -factor.imag, b[0]], [factor.imag, factor.real, b[1]])
        w_x, w_y = (part.get(name, zero) for name in ("scale_x", "scale_y"))
        return _rows([w_x.exp(), zero, _phi(w_x) * shift[0]], [zero, w_y.exp(), _phi(w_y) * shift[1]])

    def exponential(self, eta: Tensor) -> Tensor:
        """T_η by the matrix exponential, whatever the generators."""
        return torch.linalg.matrix_exp(torch.einsum("...g,gij->...ij", eta, self.generators(eta)))

    def inverse(self, eta: Tensor) -> Tensor:
        """T_η⁻¹ = T_{−η}: (…, 3, 3)."""
        return self.matrix(-eta)

    def coordinates(self, matrix: Tensor) -> Tensor:
        """η with T_η = matrix, for products of a closed group; angles in (−π, π]: (…, generators).

        >>> group = Affine.of(rotation=math.pi, shift_x=1, shift_y=1)
        >>> eta = torch.tensor([0.5, 0.2, -0.1], dtype=torch.float64)
        >>> torch.allclose(group.coordinates(group.matrix(eta)), eta)
        True
        """
        if not self.is_closed:
            raise ValueError(f"products of {', '.join(self.names)} leave their span, so that they have no coordinates")
        b = matrix[..., :2, 2]
        if {"rotation", "scale"} & set(self.names):
            w = torch.complex(matrix[..., 0, 0], matrix[..., 1, 0]).log()
            shift = torch.complex(b[..., 0], b[..., 1]) / _phi(w)
            part = {"rotation": w.imag, "scale": w.real, "shift_x": shift.real, "shift_y": shift.imag}
        else:
            w = matrix[..., :2, :2].diagonal(dim1=-2, dim2=-1).log()
            shift = b / _phi(w)
            part = {"scale_x": w[..., 0], "scale_y": w[..., 1], "shift_x": shift[..., 0], "shift_y": shift[..., 1]}
        return torch.stack([part[name] for name in self.names], dim=-1)

    def draw(self, count: int, generator: Generator, like: Tensor) -> Tensor:
        """η uniform within the bounds: (count, generators)."""
        unit = torch.rand(count, len(self), generator=generator, dtype=torch.float64, device=generator.device)
        return ((2 * unit - 1) * torch.tensor(self.bounds, device=unit.device)).to(like)

    def wrap(self, eta: Tensor) -> Tensor:
        """η with angles in [−π, π)."""
        angle = torch.tensor(self.is_angle, device=eta.device)
        return torch.where(angle, torch.remainder(eta + math.pi, 2 * math.pi) - math.pi, eta)

    def _check(self, eta: Tensor) -> None:
        if eta.shape[-1] != len(self):
            raise ValueError(f"η of shape {tuple(eta.shape)}: expected {len(self)} numbers, {', '.join(self.names)}")


def _phi(w: Tensor) -> Tensor:
    """(e^w − 1) / w, by its series near zero."""
    small = w.abs() < 1e-2
    safe = torch.where(small, torch.ones_like(w), w)
    series = 1 + w / 2 * (1 + w / 3 * (1 + w / 4 * (1 + w / 5)))
    return torch.where(small, series, (safe.exp() - 1) / safe)


def _rows(first: list[Tensor], second: list[Tensor]) -> Tensor:
    zero = torch.zeros_like(first[0])
    rows = (first, second, [zero, zero, zero + 1])
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
