"""What a structured curvature M can do with a prior D added to it, whatever the structure."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from lapwing.linalg.spectral import Spectrum


class Curvature(Protocol):
    """M, symmetric and positive semi-definite (p, p), known in a form that also solves with M + λD, D = diag(scale⁻²).

    λ is a number, or one per weight where the structure can hold it.
    """

    @property
    def scale(self) -> Tensor:  # (p,)
        """s, the prior's standard deviations at λ = 1."""

    def times(self, factor: float) -> Curvature:
        """The same with M multiplied, as by a noise precision."""

    def ratios(self, precision: Tensor | float) -> Tensor:  # (directions,)
        """Eigenvalues of M relative to λD; directions left out have none."""

    def log_det(self, precision: Tensor | float) -> Tensor:  # ()
        """log det(M + λD)."""

    def effective_dimension(self, precision: Tensor | float) -> Tensor:  # ()
        """tr M (M + λD)⁻¹."""

    def determined(self, precision: Tensor | float) -> Tensor:  # (p,)
        """How far each weight is determined by the data, 0 to 1; sums to the effective dimension."""

    def variances(self, precision: Tensor | float) -> Tensor:  # (p,)
        """The diagonal of (M + λD)⁻¹."""

    def solve(self, x: Tensor, precision: Tensor | float) -> Tensor:  # (p, k) -> (p, k)
        """(M + λD)⁻¹ x."""

    def draw(self, normals: Tensor, precision: Tensor | float) -> Tensor:  # (p, k) -> (p, k)
        """Columns of N(0, (M + λD)⁻¹) from standard normals."""

    def whitened(self, precision: Tensor | float) -> Spectrum:
        """M in units of the prior's standard deviations, (λD)^-½ M (λD)^-½, by its eigenvectors and `ratios`."""

    def variance(self, rows: Tensor, precision: Tensor | float) -> Tensor:  # (r, p) -> (r,)
        """φ (M + λD)⁻¹ φᵀ for every row φ."""
