"""Does peak memory depend on the number of data where features are made on the fly?

The features are the hidden layer of a random network, max(0, x W + b), with inputs x made from the number of their block: no
row is ever stored. What grows with n are single columns of n numbers: targets, noise, and the blocks of a product. Memory
is the largest resident size of a fresh process, less its size before the fit; from it those columns are taken off that
the method cannot do without: the targets (1), the noise of the draws (k) and the block that a product with Φ makes (2k + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import harness
import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import LinearOperator

ROWS, INPUTS = 500, 8  # of a block, and of a datum


@dataclass(frozen=True, eq=False)
class HiddenLayer(LinearOperator):
    """max(0, x W + b) / √d for inputs that exist only while their block is worked on."""

    n: int
    weights: Tensor  # (inputs, d)
    offsets: Tensor  # (d,)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n, self.weights.shape[1])

    @property
    def like(self) -> Tensor:
        return self.weights

    def block(self, number: int) -> Tensor:
        """All rows of one block, the same at every call."""
        generator = Generator().manual_seed(number)
        inputs = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
        rows = torch.addmm(self.offsets, inputs, self.weights).clamp_min_(0)
        return rows.mul_(self.shape[1] ** -0.5)[: self.n - number * ROWS]

    def matmat(self, x: Tensor) -> Tensor:
        product = x.new_empty(self.n, x.shape[1])
        for number, part in enumerate(product.split(ROWS)):
            torch.mm(self.block(number), x, out=part)
        return product

    def rmatmat(self, y: Tensor) -> Tensor:
        total = y.new_zeros(self.shape[1], y.shape[1])
        for number, part in enumerate(y.split(ROWS)):
            total.addmm_(self.block(number).mT, part)
        return total

    def rows(self, start: int, stop: int) -> Tensor:
        first, last = start // ROWS, -(-stop // ROWS)
        parts = [self.block(number) for number in range(first, last)]
        return torch.cat(parts)[start - first * ROWS : stop - first * ROWS]


def measure(n: int, d: int, draws: int, seed: int) -> dict:
    from problems import normals

    import lapwing as lw
    from lapwing.linalg.operators import check_adjoint

    features = HiddenLayer(n, normals(INPUTS, d, seed=seed), normals(d, seed=seed + 1))
    targets = (features.matmat(normals(d, 1, seed=seed + 2)) + 3.0 * normals(n, 1, seed=seed + 3))[:, 0]
    check_adjoint(features, generator=Generator().manual_seed(seed))
    before = harness.peak_memory()
    model = lw.LinearModel(features, targets, lw.Gaussian())
    posterior = lw.infer(model, prior=lw.Isotropic(), method=lw.Krylov(), draws=draws, seed=seed, progress=False)
    peak, found = harness.peak_memory(), posterior.diagnostics
    needed = 1 + draws + (2 * draws + 1)
    return {
        "peak_bytes": peak,
        "peak_before_bytes": before,
        "fit_bytes": peak - before,
        "fit_columns": (peak - before) / (8 * n),
        "needed_columns": needed,
        "needed_bytes": 8 * n * needed,
        "fit_above_needed_bytes": peak - before - 8 * n * needed,
        "peak_above_needed_bytes": peak - 8 * n * needed,
        "basis_bytes": 8 * d * found["directions"],
        "stored_features_bytes": 8 * n * d,
        "passes": found["data_passes"] / 2,
        "block_steps": found["block_steps"],
        "converged": found["converged"],
        "prior_precision": float(posterior.prior.precision[0]),
        "noise_precision": float(posterior.noise_precision[0]),
        "effective_dimension": float(posterior.effective_dimension),
        "largest_residual": max(found["residuals"]),
    }


CELLS = {
    "n = 2,000, d = 200": {"n": 2_000, "d": 200, "draws": 8, "seed": 0},
    "n = 20,000": {"n": 20_000, "d": 2_000, "draws": 8, "seed": 0},
    "n = 200,000": {"n": 200_000, "d": 2_000, "draws": 8, "seed": 0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
