"""Kronecker blocks with a prior, against the dense matrix made of them."""

import pytest
import torch
from torch import Tensor

from lapwing.linalg.kronecker import Factors, Kronecker, fitting, kronecker, spectrum
from tests.properties import check_covariance, check_operator

P = 12 + 12 + 10 + 5 + 3 + 2


def spd(*shape: int, seed: int) -> Tensor:
    root = torch.randn(*shape, shape[-1] + 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT / shape[-1]


def positive(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


def factors() -> tuple[Factors, ...]:
    """A layer, a grouped one, an embedding, an exact block and a diagonal one, scattered; two weights are in none."""
    places = torch.randperm(P, generator=torch.Generator().manual_seed(8))
    layer, grouped, embedding, exact, diagonal, _ = places.split([12, 12, 10, 5, 3, 2])
    return (
        Factors("layer", "kronecker", layer.reshape(1, 3, 4), spd(1, 3, seed=1), spd(1, 4, seed=2)),
        Factors("grouped", "kronecker", grouped.reshape(2, 2, 3), spd(2, 2, seed=3), spd(2, 3, seed=4)),
        Factors("embedding", "kronecker", embedding.reshape(1, 2, 5), spd(1, 2, seed=5), positive(1, 5, seed=6)),
        Factors("exact", "exact", exact.reshape(1, 1, 5), torch.ones(1, 1).double(), spd(1, 5, seed=7)),
        Factors("diagonal", "diagonal", diagonal.reshape(1, 1, 3), torch.ones(1, 1).double(), positive(1, 3, seed=8)),
    )


def dense(parts: tuple[Factors, ...]) -> Tensor:
    matrix = torch.zeros(P, P, dtype=torch.float64)
    for part in parts:
        for left, right, index in zip(part.left, part.right, part.index, strict=True):
            right = torch.diag(right) if right.ndim == 1 else right
            left = torch.diag(left) if left.ndim == 1 else left
            matrix[index.reshape(-1, 1), index.reshape(1, -1)] = torch.kron(left, right)
    return matrix


def scale() -> Tensor:
    """One number per row times one per column of every block, as a separable prior has."""
    return fitting(factors(), positive(P, seed=9))


def precision() -> Tensor:
    """Equal within blocks that mix weights, different in the diagonal ones and from entry to entry of an embedding."""
    result = torch.full((P,), 2.0, dtype=torch.float64)
    layer, grouped, embedding, exact, diagonal = (part.index for part in factors())
    result[layer], result[grouped[1]], result[exact] = 0.7, 0.4, 1.5
    result[embedding] = positive(5, seed=10).expand(1, 2, 5)
    result[diagonal] = positive(1, 1, 3, seed=11)
    return result


def blocked() -> Tensor:
    return torch.cat([part.index.flatten() for part in factors()])


CASES = {
    "one precision": (None, torch.tensor(0.8)),
    "a number": (None, 0.8),
    "precisions": (None, precision()),
    "scaled": (scale(), torch.tensor(0.8)),
    "both": (scale(), precision()),
}


def case(name: str) -> tuple[Kronecker, Tensor, Tensor | float, Tensor]:
    given, shift = CASES[name]
    structure, matrix = kronecker(factors(), P, given), dense(factors())
    prior = torch.as_tensor(shift, dtype=torch.float64).expand(P) / (1 if given is None else given.square())
    keep = blocked()
    return structure, (matrix + torch.diag(prior))[keep][:, keep], shift, keep


def test_it_is_the_operator_of_the_dense_matrix(generator):
    for given in (None, scale()):
        check_operator(kronecker(factors(), P, given), dense(factors()), generator)
    check_operator(kronecker(factors(), P).times(3.0), 3 * dense(factors()), generator)


@pytest.mark.parametrize("name", CASES)
def test_determinant_solve_variance_and_dimension_are_the_dense_ones(name, generator):
    structure, matrix, shift, keep = case(name)
    inverse, curvature = torch.linalg.inv(matrix), dense(factors())[keep][:, keep]
    close = {"rtol": 1e-10, "atol": 1e-11}
    assert float(structure.log_det(shift)) == pytest.approx(float(torch.linalg.slogdet(matrix).logabsdet), rel=1e-11)
    x = torch.randn(P, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(structure.solve(x, shift)[keep], inverse @ x[keep], **close)
    torch.testing.assert_close(structure.variance(x.mT, shift), (x[keep] * (inverse @ x[keep])).sum(0), **close)
    torch.testing.assert_close(structure.variances(shift)[keep], inverse.diagonal(), **close)
    determined = (inverse @ curvature).diagonal()
    assert float(structure.effective_dimension(shift)) == pytest.approx(float(determined.sum()), rel=1e-11)
    prior = (matrix - curvature).diagonal()
    torch.testing.assert_close(structure.determined(shift)[keep], 1 - prior * inverse.diagonal(), **close)
    relative = torch.linalg.eigvalsh(curvature / (prior.sqrt()[:, None] * prior.sqrt()))
    torch.testing.assert_close(structure.ratios(shift).sort().values, relative, **close)


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_covariance(name, generator):
    structure, matrix, shift, keep = case(name)
    normals = torch.randn(P, 40_000, generator=generator, dtype=torch.float64)
    check_covariance(structure.draw(normals, shift)[keep], torch.linalg.inv(matrix))


@pytest.mark.parametrize("given", [None, scale()], ids=["plain", "scaled"])
def test_its_spectrum_is_that_of_the_matrix_in_units_of_the_scale(given, generator):
    found, keep = spectrum(kronecker(factors(), P, given)), blocked()
    vectors = found.vectors
    check_operator(found.right, vectors, generator)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(P - 2).double(), rtol=0, atol=1e-12)
    units = torch.ones(P).double() if given is None else given
    expected = units[:, None] * dense(factors()) * units
    torch.testing.assert_close(vectors @ torch.diag(found.values) @ vectors.mT, expected, rtol=1e-10, atol=1e-12)
    rows = torch.randn(3, P, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(found.coordinates(rows), rows @ vectors, rtol=1e-11, atol=1e-12)
    back = found.expand(found.coordinates(rows).mT)
    torch.testing.assert_close(back[keep], rows.mT[keep], rtol=1e-11, atol=1e-12)


def test_without_curvature_a_draw_is_the_prior_draw():
    nothing, normals = kronecker(factors(), P, scale()).times(0.0), positive(P, 2, seed=12)
    expected = (scale() / precision().sqrt())[:, None] * normals
    keep = blocked()
    torch.testing.assert_close(nothing.draw(normals, precision())[keep], expected[keep], rtol=1e-12, atol=0)


def test_infinite_precision_prunes_a_block():
    pruned = precision()
    pruned[factors()[0].index] = float("inf")
    structure, keep = kronecker(factors(), P), torch.cat([part.index.flatten() for part in factors()[1:]])
    matrix = (dense(factors()) + torch.diag(precision()))[keep][:, keep]
    assert float(structure.log_det(pruned)) == pytest.approx(float(torch.linalg.slogdet(matrix).logabsdet), rel=1e-11)
    assert not bool(structure.draw(torch.ones(P, 2).double(), pruned)[factors()[0].index].any())


def test_the_fitted_scale_is_a_projection():
    wanted = positive(P, seed=13)
    fitted = fitting(factors(), wanted)
    torch.testing.assert_close(fitting(factors(), fitted), fitted, rtol=1e-13, atol=0)
    layer, diagonal = factors()[0].index, factors()[4].index
    logs = (fitted / wanted).log()[layer][0]
    torch.testing.assert_close(logs.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(logs.mean(1), torch.zeros(3).double(), rtol=0, atol=1e-14)
    assert torch.equal(fitted[diagonal], wanted[diagonal])


def test_what_a_product_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="differs from weight to weight within 'layer' by a factor"):
        kronecker(factors(), P, positive(P, seed=13))
    with pytest.raises(ValueError, match="the prior precision differs .* 'layer'.*diagonal structure"):
        kronecker(factors(), P).log_det(positive(P, seed=13))
    with pytest.raises(ValueError, match="expected 44 positive"):
        kronecker(factors(), P, torch.zeros(P))
