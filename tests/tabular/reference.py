"""Dense truth for networks of a table, one network at a time, by automatic differentiation."""

import torch
from torch import Tensor


def output(weights: Tensor, shapes: list[tuple[int, int]], x: Tensor) -> Tensor:  # (n, c)
    """A tanh network; each layer's matrix has its bias as last column."""
    parts = weights.split([high * wide for high, wide in shapes])
    for position, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        matrix = part.reshape(shape)
        x = x @ matrix[:, :-1].T + matrix[:, -1]
        if position < len(shapes) - 1:
            x = torch.tanh(x)
    return x


def jacobian(weights: Tensor, shapes: list[tuple[int, int]], x: Tensor) -> Tensor:  # (n c, p)
    return torch.func.jacrev(output)(weights, shapes, x).flatten(0, 1)


def precision(weights, shapes, x, row_weights, prior_precision, noise_precision, row_noise) -> Tensor:  # (p, p)
    """Jᵀ W B J + A, the noise of a row having the precision β / row_noise."""
    each = (row_weights * noise_precision / row_noise).repeat_interleave(shapes[-1][0])
    J = jacobian(weights, shapes, x)
    return J.T @ (each[:, None] * J) + prior_precision.diag()


def log_evidence(weights, shapes, x, y, row_weights, prior_precision, noise_precision, row_noise) -> Tensor:
    """Of rows that count as often as their weights say, at these weights."""
    std = (row_noise / noise_precision).sqrt()[:, None]
    densities = torch.distributions.Normal(output(weights, shapes, x), std).log_prob(y)
    log_likelihood = (row_weights[:, None] * densities).sum()
    H = precision(weights, shapes, x, row_weights, prior_precision, noise_precision, row_noise)
    penalty = 0.5 * (prior_precision * weights**2).sum()
    return log_likelihood - penalty + 0.5 * prior_precision.log().sum() - 0.5 * torch.linalg.slogdet(H)[1]
