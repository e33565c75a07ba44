"""What looks at numbers on its way, on a device that is not there: nothing is left on the CPU, and results agree with it."""

import pytest
import torch
from torch import Tensor

from lapwing import KFAC, Categorical, EmpiricalFisher, Exact, Gaussian, Hessian, Isotropic, Krylov, fit
from lapwing.bayes.linear_model import Observed
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense
from lapwing.linalg.solvers import ConjugateGradients, Nystrom
from lapwing.linalg.spectral import decompose
from lapwing.linalg.truncated import leading
from lapwing.network.batches import Inputs
from lapwing.network.hessian import DenseCurvatures, empirical_fisher, hessian
from lapwing.network.jacobian import Jacobian, Network, prepared
from lapwing.network.kfac import bernoulli, categorical, diagonal, factorise, row_squares
from tests.far import DEVICE, Far, far_away, moved
from tests.network.layers import LAYERS
from tests.network.networks import normal
from tests.network.test_jacobian import MORE

EVERY = {**MORE, **LAYERS}
SQUARE = normal(6, 9, seed=2) @ normal(6, 9, seed=2).mT


def agree(compute, *given: Tensor) -> None:
    """What is computed far away is far away, and the same."""
    expected = compute(*given)
    with far_away():
        found = compute(*(Far(part) for part in given))
        assert all(part.device == DEVICE for part in found)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other.near)


def test_devices_do_not_mix():
    with far_away(), pytest.raises(RuntimeError, match="same device"):
        Far(SQUARE) + SQUARE


def of_krylov(matrix: Tensor) -> list[Tensor]:
    operator, (n, d) = Dense(matrix), matrix.shape
    block = krylov.StartBlock(normal(d, 2, seed=3).to(matrix), normal(n, 2, seed=4).to(matrix))
    space = krylov.grow(operator, block, 2)
    draws, mean = krylov.draws_and_mean(space, alpha=1.0, operator=operator)
    bounds = krylov.variances(space, matrix[:3], alpha=1.0, operator=operator)
    return [draws, mean, bounds.lower, bounds.upper, krylov.explicit(operator, space).ritz]


SOLVERS = {
    "conjugate gradients": lambda a: [ConjugateGradients().solve(Dense(a), a[:, :2]).x],
    "Nystrom": lambda a: [Nystrom.of(Dense(a), rank=3, shift=0.1, generator=torch.Generator().manual_seed(0)).solve(a)],
    "leading": lambda a: [leading(Dense(a), 2, generator=torch.Generator().manual_seed(0)).values],
    "primal": lambda a: [decompose(Dense(a), "primal").values],
    "dual": lambda a: [decompose(Dense(a), "dual").values],
    "singular values": lambda a: [decompose(Dense(a), "svd").values],
    "Krylov, tall": lambda a: of_krylov(a[:, :4]),
    "Krylov, wide": lambda a: of_krylov(a[:4]),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(name):
    agree(SOLVERS[name], SQUARE)


def here_and_there(name: str, compute) -> None:
    """What is computed of a network and its inputs is the same far away."""
    expected = compute(*EVERY[name]())
    model, x = EVERY[name]()
    with far_away():
        found = compute(moved(model), Far(x))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, getattr(other, "near", other))


def with_mask(model, x: Tensor) -> list[Tensor]:
    size = sum(weight.numel() for weight in model.parameters())
    network = Network.of(model, torch.arange(size) % 3 == 0)
    jacobian = prepared(Jacobian(network, Inputs.of((x,)), 2))
    n, p = jacobian.shape
    squares = row_squares(network, [x], normal(p, seed=1).square().to(x))
    return [
        jacobian @ normal(p, 2, seed=2).to(x),
        jacobian.T @ normal(n, 2, seed=3).to(x),
        jacobian.rows(0, 3),
        squares,
    ]


def test_single_weights_are_chosen():
    here_and_there("mlp", with_mask)


@pytest.mark.parametrize("name", ["cnn", "attention", "text", "owned"])
def test_curvature(name):
    def compute(model, x: Tensor) -> list[Tensor]:
        network = Network.of(model)
        factors = factorise(network, [x], categorical()).factors
        scale = torch.ones(network.layout.size, dtype=torch.float64)  # as a prior has it, on the CPU
        matrix = factorise(network, [x], bernoulli(), probes=2).structure(scale)
        product = matrix @ normal(network.layout.size, 1, seed=1).to(x if x.is_floating_point() else matrix.like)
        return [
            *(part.left for part in factors),
            *(part.right for part in factors),
            diagonal(network, [x], bernoulli()).value,
            product,
        ]

    here_and_there(name, compute)


@pytest.mark.parametrize("curvature", [hessian, empirical_fisher])
def test_dense_curvature(curvature):
    def compute(model, x: Tensor) -> list[Tensor]:
        pairs = [(x, x[:, :2])]
        return [curvature(Network.of(model), pairs, lambda outputs, targets: (outputs - targets).pow(4).sum())]

    here_and_there("mlp", compute)


@pytest.mark.parametrize("method", [Hessian(), EmpiricalFisher()], ids=repr)
@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Categorical()], ids=repr)
def test_dense_curvature_of_a_likelihood(method, likelihood):
    def compute(model, x: Tensor) -> list[Tensor]:
        targets = x[:, :2] if isinstance(likelihood, Gaussian) else (x[:, 0] > 0).long()
        network, inputs = Network.of(model), Inputs.of((x,))
        scale = torch.ones(network.layout.size, dtype=torch.float64)
        made = DenseCurvatures(network, inputs, likelihood, Observed(inputs, targets, None))
        return [method.made_of(made, scale, 0).values]

    here_and_there("mlp", compute)


@pytest.mark.parametrize("method", [Exact(), KFAC(), Krylov()], ids=repr)
@pytest.mark.parametrize("labels", [False, True])
def test_whole_fit(method, labels):
    def compute(model, x: Tensor) -> list[Tensor]:
        targets, likelihood = (x[:, 0] > 0).long() if labels else x[:, :2], Categorical() if labels else Gaussian(0.5)
        return [fit(model, (x, targets), likelihood, prior=Isotropic(1.0), method=method).predict(x).mean]

    here_and_there("mlp", compute)
