"""Networks side by side, and their factored Jacobians, against automatic differentiation of one at a time."""

import pytest
import torch

from lapwing.tabular.networks import LayerMatrices, initial, linearised, outputs
from tests.tabular import reference
from tests.tabular.problems import FEW, MEMBERS, problem

DEEP = (4, 5, 3, 2)  # nothing is special about one hidden layer


@pytest.fixture(params=[(4, 5, 2), DEEP], ids=["one hidden layer", "two"])
def case(request):
    sizes = request.param
    return problem(FEW, sizes=sizes)


def test_outputs_are_those_of_each_network(case):
    found = outputs(case.state.networks, case.data.inputs)
    for member in range(MEMBERS):
        weights, shapes, x, *_ = case.at(member)
        torch.testing.assert_close(found[member], reference.output(weights, shapes, x), rtol=1e-13, atol=1e-13)


def test_the_jacobian_is_that_of_each_network(case, generator):
    values, jacobian = linearised(case.state.networks, case.data.inputs)
    dense = jacobian.dense()
    torch.testing.assert_close(values, outputs(case.state.networks, case.data.inputs), rtol=0, atol=0)
    for member in range(MEMBERS):
        weights, shapes, x, *_ = case.at(member)
        truth = reference.jacobian(weights, shapes, x)
        torch.testing.assert_close(dense[member], truth, rtol=1e-12, atol=1e-13)


def test_products_and_kernels_are_those_of_the_dense_jacobian(case, generator):
    _, jacobian = linearised(case.state.networks, case.data.inputs)
    dense = jacobian.dense()
    step = torch.randn(dense.shape[0], dense.shape[2], generator=generator, dtype=torch.float64)
    values = torch.randn(dense.shape[:2], generator=generator, dtype=torch.float64)
    layers = case.state.networks.like(step)
    torch.testing.assert_close(jacobian.times(layers), (dense @ step[:, :, None])[:, :, 0])
    torch.testing.assert_close(jacobian.transposed(values).flat(), (dense.mT @ values[:, :, None])[:, :, 0])
    variances = case.state.variances(case.groups)
    by_weight = case.state.noise_precision[:, None] / case.prior_precision()
    kernel = (dense * by_weight[:, None, :]) @ dense[:, :3].mT
    torch.testing.assert_close(jacobian.kernel(jacobian[:3], variances), kernel)
    whole = (dense * by_weight[:, None, :]) @ dense.mT
    torch.testing.assert_close(jacobian.kernel_diagonal(variances), whole.diagonal(dim1=1, dim2=2))


def test_layers_are_vectors():
    one, other = (initial((4, 5, 2), [torch.Generator().manual_seed(k)] * 3) for k in (1, 2))
    torch.testing.assert_close((one + other).flat(), one.flat() + other.flat())
    torch.testing.assert_close((one - other).flat(), one.flat() - other.flat())
    assert torch.equal(one.like(other.flat()).flat(), other.flat())
    mixed = one.replaced(torch.tensor([1]), other[torch.tensor([0])])
    assert torch.equal(mixed.flat()[1], other.flat()[0])
    assert torch.equal(mixed.flat()[2], one.flat()[2])
    assert isinstance(mixed, LayerMatrices)


def test_a_network_starts_the_same_whatever_stands_beside_it():
    alone = initial((4, 5, 2), [torch.Generator().manual_seed(7)])
    among = initial((4, 5, 2), [torch.Generator().manual_seed(k) for k in (3, 7)])
    assert torch.equal(alone.flat()[0], among.flat()[1])
