"""Leading eigenpairs against `eigh`, and what they make with a prior against the dense matrix."""

import pytest
import torch
from torch import Tensor

from lapwing.linalg.operators import Dense
from lapwing.linalg.truncated import Truncated, leading
from tests.properties import check_covariance, check_operator

P, RANK = 7, 3


def features(n: int, d: int, seed: int, decay: float = 0.7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(n, d, generator=generator, dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ torch.diag(decay ** torch.arange(min(n, d)).double()) @ right


@pytest.mark.parametrize(("n", "d"), [(60, 40), (30, 50)])
def test_leading_pairs_are_the_largest_of_the_dense_matrix(n, d, generator):
    g = features(n, d, seed=1)
    found = leading(Dense(g), 5, generator=generator, rtol=1e-6)
    values, vectors = torch.linalg.eigh(g.mT @ g)
    torch.testing.assert_close(found.values, values.flip(0)[:5], rtol=1e-9, atol=0)
    overlap = found.vectors.mT @ vectors.flip(1)[:, :5]
    torch.testing.assert_close(overlap.abs(), torch.eye(5).double(), rtol=1e-5, atol=1e-5)
    residuals = (g.mT @ g @ found.vectors - found.vectors * found.values).norm(dim=0) / found.values
    torch.testing.assert_close(found.residuals, residuals, rtol=1e-3, atol=1e-9)
    assert float(residuals.max()) <= 1e-6
    # not asked to converge, but a Ritz value errs by the square of its vector
    assert found.dropped == pytest.approx(float(values[-6]), rel=1e-6)
    assert found.limited_by is None


def test_a_smaller_rank_gives_fewer_pairs(generator):
    g = features(9, 40, seed=2)
    found = leading(Dense(g), 20, generator=generator)
    assert len(found.values) == 9
    torch.testing.assert_close(
        found.vectors @ torch.diag(found.values) @ found.vectors.mT, g.mT @ g, rtol=1e-8, atol=1e-10
    )


def test_too_few_steps_are_said(generator):
    found = leading(Dense(features(300, 200, seed=3, decay=0.99)), 12, generator=generator, rtol=1e-9, max_steps=2)
    assert found.limited_by == "steps"
    assert float(found.residuals.max()) > 1e-9


def structure() -> Truncated:
    vectors = torch.linalg.qr(features(P, RANK, seed=4))[0]
    scale = torch.linspace(0.5, 2, P, dtype=torch.float64)
    return Truncated(vectors, torch.tensor([5.0, 2.0, 0.3]).double(), scale)


def dense() -> Tensor:
    s = structure()
    return s.vectors @ torch.diag(s.values) @ s.vectors.mT / (s.scale[:, None] * s.scale)


SEVERAL = torch.linspace(0.4, 3, P, dtype=torch.float64)


@pytest.mark.parametrize("precision", [0.8, SEVERAL], ids=["one", "several"])
def test_it_agrees_with_the_dense_matrix(precision, generator):
    s, prior = structure(), torch.as_tensor(precision, dtype=torch.float64).expand(P) / structure().scale.square()
    matrix = dense() + torch.diag(prior)
    inverse, close = torch.linalg.inv(matrix), {"rtol": 1e-11, "atol": 1e-13}
    check_operator(s, dense(), generator)
    check_operator(s.times(2.0), 2 * dense(), generator)
    assert float(s.log_det(precision)) == pytest.approx(float(torch.linalg.slogdet(matrix).logabsdet), rel=1e-12)
    x = torch.randn(P, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(s.solve(x, precision), inverse @ x, **close)
    torch.testing.assert_close(s.variance(x.mT, precision), (x * (inverse @ x)).sum(0), **close)
    torch.testing.assert_close(s.variances(precision), inverse.diagonal(), **close)
    torch.testing.assert_close(s.determined(precision), 1 - prior * inverse.diagonal(), rtol=1e-10, atol=1e-12)
    assert float(s.effective_dimension(precision)) == pytest.approx(float((inverse @ dense()).trace()), rel=1e-12)
    check_covariance(s.draw(torch.randn(P, 40_000, generator=generator, dtype=torch.float64), precision), inverse)


def test_a_rank_that_does_not_fit_is_refused(generator):
    for rank in (0, 41):
        with pytest.raises(ValueError, match=f"rank is {rank}, expected 1 to 40"):
            leading(Dense(features(60, 40, seed=1)), rank, generator=generator)
