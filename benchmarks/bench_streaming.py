"""Does peak memory depend on the number of data where features are made on the fly?

The features are the hidden layer of a random network, max(0, x W + b), with inputs x made from the number of their block: no
row is ever stored. What is computed goes block by block too, the noise of the draws included, so that single vectors of n
numbers are all that grows: the targets, their weights and their noise. Memory is the largest resident size of a fresh
process, less its size before the fit.
"""

from __future__ import annotations

import harness
import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import Dense, Stacked

ROWS, INPUTS = 500, 8  # of a block, and of a datum


def hidden_layer(n: int, weights: Tensor, offsets: Tensor) -> Stacked:
    """max(0, x W + b) / √d for inputs that exist only while their block is worked on."""

    def block(number: int, height: int) -> Dense:
        inputs = torch.randn(height, INPUTS, generator=Generator().manual_seed(number), dtype=torch.float64)
        return Dense(torch.addmm(offsets, inputs, weights).clamp_min_(0).mul_(len(offsets) ** -0.5))

    heights = tuple(min(ROWS, n - first) for first in range(0, n, ROWS))
    return Stacked(block, list(enumerate(heights)), heights, len(offsets), weights)


def measure(n: int, d: int, draws: int, seed: int) -> dict:
    from problems import normals

    import lapwing as lw

    features = hidden_layer(n, normals(INPUTS, d, seed=seed), normals(d, seed=seed + 1))
    targets = (features.matmat(normals(d, 1, seed=seed + 2)) + 3.0 * normals(n, 1, seed=seed + 3))[:, 0]
    before = harness.peak_memory()
    model = lw.LinearModel(features, targets, lw.Gaussian())
    posterior = lw.infer(model, prior=lw.Isotropic(), method=lw.Krylov(), draws=draws, seed=seed, progress=False)
    peak, found = harness.peak_memory(), posterior.diagnostics
    return {
        "peak_bytes": peak,
        "peak_before_bytes": before,
        "fit_bytes": peak - before,
        "fit_columns": (peak - before) / (8 * n),
        "targets_bytes": 8 * n,
        "basis_bytes": 8 * d * found.directions,
        "stored_features_bytes": 8 * n * d,
        "passes": found.data_passes / 2,
        "block_steps": found.block_steps,
        "converged": found.converged,
        "prior_precision": float(posterior.prior.precision[0]),
        "noise_precision": float(posterior.gaussian.noise_precision[0]),
        "effective_dimension": float(posterior.effective_dimension),
        "largest_residual": max(found.residuals),
    }


CELLS = {
    "n = 2,000, d = 200": {"n": 2_000, "d": 200, "draws": 8, "seed": 0},
    "n = 20,000": {"n": 20_000, "d": 2_000, "draws": 8, "seed": 0},
    "n = 200,000": {"n": 200_000, "d": 2_000, "draws": 8, "seed": 0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)
