"""Posteriors by both matrices against the inverse of the dense precision."""

import pytest
import torch

from lapwing.tabular.curvature import (
    RowCurvature,
    RowPosterior,
    WeightCurvature,
    WeightMatrixPosterior,
    Workspace,
    _cholesky,
)
from lapwing.tabular.networks import LayerMatrices, linearised
from lapwing.tabular.training import LocalModel
from tests.properties import check_covariance
from tests.tabular import reference
from tests.tabular.problems import FEW, MANY, MEMBERS, problem

KINDS = {"rows": RowCurvature, "weights": WeightCurvature.of}


@pytest.fixture(params=[FEW, MANY], ids=["few rows", "many rows"])
def case(request):
    return problem(request.param)


@pytest.fixture(params=sorted(KINDS))
def known(request, case):
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    return KINDS[request.param](case.data.rows(jacobian)).at(case.state.variances(case.groups))


def covariance(case, member):
    weights, shapes, x, _, *rest = case.at(member)
    return torch.linalg.inv(reference.precision(weights, shapes, x, *rest))


def test_the_smaller_matrix_is_taken():
    for n, kind in ((FEW, RowPosterior), (MANY, WeightMatrixPosterior)):
        case = problem(n)
        curved = LocalModel.of(case.state.networks, case.data, Workspace()).curved
        assert isinstance(curved.at(case.state.variances(case.groups)), kind)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_squared_lengths_are_those_of_dense_products(case, kind, generator):
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    rows = case.data.rows(jacobian)
    flat = torch.randn(MEMBERS, case.state.networks.weights, generator=generator, dtype=torch.float64)
    found = KINDS[kind](rows).squared_length(case.state.networks.like(flat))
    truth = torch.einsum("bnp,bp->bn", rows.dense(), flat).square().sum(1)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=0)


def test_log_determinants(case, known):
    found = known.log_determinant()
    for member in range(MEMBERS):
        prior = case.prior_precision()[member]
        truth = -torch.linalg.slogdet(covariance(case, member))[1] - prior.log().sum()
        torch.testing.assert_close(found[member], truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_solves(case, kind, generator):
    gradient = torch.randn(MEMBERS, case.prior_precision().shape[1], generator=generator, dtype=torch.float64)
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    curved = KINDS[kind](case.data.rows(jacobian))
    variances = case.state.variances(case.groups)
    layers = case.state.networks.like(gradient)
    for found in (curved.at(variances).solve(layers).flat(), curved.solve(variances, layers).flat()):
        for member in range(MEMBERS):
            truth = case.state.noise_precision[member] * covariance(case, member) @ gradient[member]
            torch.testing.assert_close(found[member], truth, rtol=1e-8, atol=1e-9)


def test_memory_is_used_again_and_grows():
    memory = Workspace()
    first = memory.take("a", 3, 4).fill_(1)
    assert memory.take("a", 2, 5).data_ptr() == first.data_ptr()
    assert memory.take("b", 3, 4).data_ptr() != first.data_ptr()
    assert memory.take("a", 5, 4).shape == (5, 4)


def test_a_curvature_does_not_depend_on_what_the_memory_held(case):
    memory = Workspace()
    b, p = len(case.state.networks.of[0]), case.state.networks.weights
    for name, shape in {"gram": (b, p, p), "rows": (MANY, p)}.items():
        memory.take(name, *shape).fill_(torch.nan)
    found = LocalModel.of(case.state.networks, case.data, memory)
    fresh = LocalModel.of(case.state.networks, case.data, Workspace())
    variances = case.state.variances(case.groups)
    assert torch.equal(found.curved.at(variances).log_determinant(), fresh.curved.at(variances).log_determinant())


def test_determined_weights_by_group(case, known):
    """γ_g = size_g − α_g tr (H⁻¹)_gg."""
    found = case.groups.summed(known.determined())
    sizes = case.groups.summed(tuple(torch.full((1, w), float(h), dtype=torch.float64) for h, w in case.shapes))[0]
    group_of = LayerMatrices(
        tuple(group[None, None].expand(1, *shape) for group, shape in zip(case.groups.of, case.shapes, strict=True))
    ).flat()[0]
    for member in range(MEMBERS):
        left = case.prior_precision()[member] * covariance(case, member).diagonal()
        truth = sizes - torch.zeros_like(sizes).index_add(0, group_of, left)
        torch.testing.assert_close(found[member], truth, rtol=1e-8, atol=1e-9)


def test_output_variances(case, known, generator):
    new = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    _, jacobian = linearised(case.state.networks, new)
    found = known.output_variances(jacobian) / case.state.noise_precision[:, None]
    for member in range(MEMBERS):
        weights, shapes, *_ = case.at(member)
        J = reference.jacobian(weights, shapes, new)
        truth = (J @ covariance(case, member) @ J.T).diagonal()
        torch.testing.assert_close(found[member], truth, rtol=1e-8, atol=1e-10)


def test_draws_have_the_posterior_covariance(case, known, generator):
    draws = 20_000
    weights = case.prior_precision().shape[1]

    def normals(rows):
        return torch.randn(MEMBERS, rows, draws, generator=generator, dtype=torch.float64)

    found = known.draws(normals(weights), normals(known.rows_needed))
    for member in range(MEMBERS):
        truth = covariance(case, member) * case.state.noise_precision[member]
        check_covariance(found[member], truth)


def test_some_of_the_networks(case, known):
    chosen = torch.tensor([2, 0])
    torch.testing.assert_close(known[chosen].log_determinant(), known.log_determinant()[chosen])


def test_matrices_are_factorised_however_they_are_stored(generator):
    rows = torch.randn(3, 9, 6, generator=generator, dtype=torch.float64)
    gram = rows.mT @ rows
    truth = torch.linalg.cholesky(gram)
    for stored in (gram.contiguous(), gram.mT.contiguous().mT, gram.expand(2, 3, 6, 6)[1]):
        torch.testing.assert_close(_cholesky(stored.clone(memory_format=torch.preserve_format)), truth)
