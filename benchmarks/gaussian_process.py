"""scikit-learn's Gaussian process with a length scale per column, its marginal likelihood at the cost of a Cholesky root.

scikit-learn keeps the derivative of the kernel by each length scale as a matrix of its own: for 1,000 rows and ten columns most of the
time of a fit. The derivatives of the likelihood are sums over these matrices, and need none of them: with S = ½ (ααᵀ − K⁻¹) ∘ K and the
inputs of a column over their length scale, z, that by the logarithm of the length scale is Σ Sᵢⱼ (zᵢ − zⱼ)² = 2 (Σ (S1)ᵢ zᵢ² − zᵀSz). The
model, its starts, its optimiser and its predictions are scikit-learn's.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel


class RelevanceProcess(GaussianProcessRegressor):
    """Of an RBF kernel with a length scale per column and white noise; standardised inputs are asked for."""

    def __init__(self, columns: int = 1, n_restarts_optimizer: int = 2, random_state: int = 0) -> None:
        self.columns = columns
        scales = RBF(np.full(columns, 2.0), (1e-2, 1e4))
        kernel = ConstantKernel(1.0, (1e-3, 1e5)) * scales + WhiteKernel(0.1, (1e-8, 10))
        super().__init__(kernel, normalize_y=True, n_restarts_optimizer=n_restarts_optimizer, random_state=random_state)

    def log_marginal_likelihood(self, theta=None, eval_gradient=False, clone_kernel=True):
        """Of the training rows at the logarithms of the kernel's parameters, and its gradient by them."""
        if theta is None or not eval_gradient:
            return super().log_marginal_likelihood(theta, eval_gradient, clone_kernel)
        if not clone_kernel:
            self.kernel_.theta = theta
        return likelihood(self.X_train_, self.y_train_, theta, self.alpha)


def likelihood(x: np.ndarray, y: np.ndarray, theta: np.ndarray, jitter: float) -> tuple[float, np.ndarray]:
    """Log marginal likelihood and its gradient by the logarithms of amplitude, length scales and noise variance."""
    amplitude, *lengths, noise = np.exp(theta)
    z = x / lengths
    kernel = amplitude * np.exp(-0.5 * cdist(z, z, "sqeuclidean"))
    total = kernel.copy()
    total[np.diag_indices_from(total)] += noise + jitter
    root, failed = dpotrf(total, lower=1)
    if failed:
        return -np.inf, np.zeros_like(theta)
    weights, _ = dpotrs(root, y, lower=1)
    value = -0.5 * y @ weights - np.log(root.diagonal()).sum() - 0.5 * len(y) * np.log(2 * np.pi)
    inverse, _ = dpotri(root, lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    slope = 0.5 * (np.outer(weights, weights) - inverse)
    shared = slope * kernel
    by_length = 2 * (shared.sum(1) @ z**2 - (z * (shared @ z)).sum(0))
    return value, np.array([shared.sum(), *by_length, noise * slope.trace()])
