"""Dense truth for networks of a table, one network at a time, by automatic differentiation."""

import math

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


def precision(weights, shapes, x, row_weights, prior_precision, noise_precision) -> Tensor:  # (p, p)
    """β JᵀWJ + A."""
    c = shapes[-1][0]
    J = jacobian(weights, shapes, x)
    return noise_precision * J.T @ (row_weights.repeat_interleave(c)[:, None] * J) + prior_precision.diag()


def log_evidence(weights, shapes, x, y, row_weights, prior_precision, noise_precision) -> Tensor:
    """Of rows that count as often as their weights say, at these weights."""
    count = float(row_weights.sum()) * y.shape[1]
    squares = (row_weights[:, None] * (y - output(weights, shapes, x)) ** 2).sum()
    log_likelihood = 0.5 * count * torch.log(noise_precision / (2 * math.pi)) - 0.5 * noise_precision * squares
    H = precision(weights, shapes, x, row_weights, prior_precision, noise_precision)
    penalty = 0.5 * (prior_precision * weights**2).sum()
    return log_likelihood - penalty + 0.5 * prior_precision.log().sum() - 0.5 * torch.linalg.slogdet(H)[1]
