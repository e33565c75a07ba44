"""Matrices of networks with several outputs against those of dense Jacobians."""

import pytest
import torch

from lapwing.tabular import blocks
from lapwing.tabular.curvature import RowCurvature, RowPosterior, WeightCurvature, WeightMatrixPosterior
from lapwing.tabular.networks import linearised
from tests.tabular import reference
from tests.tabular.problems import FEW, MANY, MEMBERS, problem

OUTPUTS = 3
SIZES = (4, 5, OUTPUTS)
DEEP = (4, 6, 5, OUTPUTS)


@pytest.fixture(params=[(FEW, SIZES), (MANY, SIZES), (MANY, DEEP)], ids=["few rows", "many rows", "two hidden layers"])
def case(request):
    n, sizes = request.param
    return problem(n, sizes=sizes)


def roots(case, generator):
    """Lower triangles, one for each datum."""
    n = len(case.data.inputs)
    return torch.randn(MEMBERS, n, OUTPUTS, OUTPUTS, generator=generator, dtype=torch.float64).tril()


def dense_rows(case, member, S):  # (n · k, p)
    weights, shapes, x, *_ = case.at(member)
    J = reference.jacobian(weights, shapes, x).reshape(len(x), OUTPUTS, -1)
    return (S[member].mT @ J).flatten(0, 1)


def variances(case):
    return case.groups.spread(1 / case.state.precision)


def test_rows_of_a_datum_are_mixed(case, generator):
    S = roots(case, generator)
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    found = blocks.mixed(jacobian, S).dense()
    for member in range(MEMBERS):
        torch.testing.assert_close(found[member], dense_rows(case, member, S), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("block", [2**22, 60], ids=["at once", "in blocks"])
def test_gram_matrices(case, generator, monkeypatch, block):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", block)
    S = roots(case, generator)
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    found = blocks.gram(blocks.mixed(jacobian, S), OUTPUTS)
    for member in range(MEMBERS):
        rows = dense_rows(case, member, S)
        torch.testing.assert_close(found[member], rows.mT @ rows, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("new", [2, 50], ids=["by solves", "by the inverse"])
@pytest.mark.parametrize("kind", ["rows", "weights"])
def test_covariances_of_outputs(case, generator, monkeypatch, kind, new):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 300)
    S = roots(case, generator)
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    rows = blocks.mixed(jacobian, S)
    curved = RowCurvature(rows) if kind == "rows" else WeightCurvature(blocks.gram(rows, OUTPUTS), rows.shapes)
    x = torch.randn(new, SIZES[0], generator=generator, dtype=torch.float64)
    _, asked = linearised(case.state.networks, x)
    found = blocks.covariances(curved.at(variances(case)), asked, OUTPUTS)
    for member in range(MEMBERS):
        R = dense_rows(case, member, S)
        covariance = torch.linalg.inv(R.mT @ R + case.prior_precision()[member].diag())
        weights, shapes, *_ = case.at(member)
        J = reference.jacobian(weights, shapes, x).reshape(new, OUTPUTS, -1)
        torch.testing.assert_close(found[member], J @ covariance @ J.mT, rtol=1e-7, atol=1e-9)


def test_the_smaller_matrix_is_taken():
    for n, kind in ((FEW, RowPosterior), (MANY, WeightMatrixPosterior)):
        case = problem(n, sizes=SIZES)
        _, jacobian = linearised(case.state.networks, case.data.inputs)
        assert isinstance(blocks.curvature(jacobian, OUTPUTS).at(variances(case)), kind)
