"""The laws that every member of a family obeys."""

import pytest
import torch
from torch import Generator, Tensor

from lapwing.linalg.operators import LinearOperator, check_adjoint, gram


def check_operator(operator: LinearOperator, dense: Tensor, generator: Generator) -> None:
    n, d = dense.shape
    x, y = (torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in (d, n))
    close = {"rtol": 1e-12, "atol": 1e-12 * float(dense.abs().max() + 1)}
    assert operator.shape == (n, d)
    torch.testing.assert_close(operator @ x, dense @ x, **close)
    torch.testing.assert_close(operator.T @ y, dense.mT @ y, **close)
    torch.testing.assert_close(operator @ x[:, 0], dense @ x[:, 0], **close)
    torch.testing.assert_close(operator.dense(), dense, **close)
    torch.testing.assert_close(operator.T.dense(), dense.mT, **close)
    torch.testing.assert_close(operator.rows(1, n), dense[1:], **close)
    torch.testing.assert_close(operator.columns(1, d), dense[:, 1:], **close)
    torch.testing.assert_close(operator.row_squares(), dense.square().sum(1), **close)
    torch.testing.assert_close(operator.column_squares(), dense.square().sum(0), **close)
    weights = torch.linspace(0.5, 2, d, dtype=torch.float64), torch.linspace(0.5, 2, n, dtype=torch.float64)
    torch.testing.assert_close(operator.row_squares(weights[0]), dense.square() @ weights[0], **close)
    torch.testing.assert_close(operator.column_squares(weights[1]), weights[1] @ dense.square(), **close)
    torch.testing.assert_close(torch.cat([part.dense() for _, part in operator.parts()]), dense, **close)
    torch.testing.assert_close(gram(operator), dense.mT @ dense, rtol=1e-11, atol=1e-11 * float(dense.norm() ** 2 + 1))
    torch.testing.assert_close(operator @ (2 * x + 1), 2 * (operator @ x) + operator @ torch.ones_like(x), **close)
    assert check_adjoint(operator, generator=generator) < 1e-13
    assert (operator @ x).dtype == torch.float64
    for wrong in (torch.zeros(d + 1, 2).double(), torch.zeros(d, 2, 2).double()):
        with pytest.raises(ValueError, match="cannot multiply"):
            operator @ wrong


def check_covariance(draws: Tensor, covariance: Tensor) -> None:
    """Every entry of the second moment of zero-mean draws (d, n) within five standard errors of its expectation."""
    n = draws.shape[1]
    variance = covariance.diagonal()
    standard_error = ((covariance.square() + torch.outer(variance, variance)) / n).sqrt()
    z = (draws @ draws.mT / n - covariance) / standard_error
    assert z.abs().max() <= 5
