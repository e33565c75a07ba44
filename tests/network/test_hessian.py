"""Three dense curvatures against autodiff of the whole loss, datum by datum."""

import pytest
import torch
from torch.func import functional_call

from benchmarks.networks import mlp
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.network.hessian import empirical_fisher, hessian, jacobian_rows
from lapwing.network.jacobian import Network
from lapwing.training import log_prob
from tests.network.networks import NETWORKS


def problem(name, kind):
    model, x = NETWORKS[name]()
    outputs = model(x).detach()
    if kind == "categorical":
        return model, x, torch.arange(len(x)) % outputs.shape[1], Categorical()
    if kind == "bernoulli":
        return model, x, (outputs > outputs.mean()).double(), Bernoulli()
    return model, x, outputs + torch.sin(torch.arange(outputs.numel())).reshape(outputs.shape), Gaussian(0.7)


def flat_loss(model, x, y, likelihood):
    names = [name for name, _ in model.named_parameters()]
    shapes = [weight.shape for weight in model.parameters()]
    flat = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])

    def loss(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return -log_prob(likelihood, functional_call(model, weights, (x,)), y)

    return loss, flat


@pytest.mark.parametrize("kind", ["gaussian", "categorical", "bernoulli"])
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_the_hessian_is_that_of_the_whole_loss_whatever_the_batches(name, kind):
    model, x, y, likelihood = problem(name, kind)
    loss, flat = flat_loss(model, x, y, likelihood)
    truth = torch.autograd.functional.hessian(loss, flat)
    pairs = [(x[:4], y[:4]), (x[4:], y[4:])]
    found = hessian(Network.of(model), pairs, lambda outputs, targets: -log_prob(likelihood, outputs, targets))
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10 * float(truth.abs().max()))


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_the_empirical_fisher_sums_outer_products_of_single_gradients(kind):
    model, x, y, likelihood = problem("mlp", kind)
    truth = 0
    for i in range(len(x)):
        loss, flat = flat_loss(model, x[i : i + 1], y[i : i + 1], likelihood)
        gradient = torch.autograd.functional.jacobian(loss, flat)
        truth = truth + torch.outer(gradient, gradient)
    pairs = [(x[:4], y[:4]), (x[4:], y[4:])]
    found = empirical_fisher(Network.of(model), pairs, lambda outputs, targets: -log_prob(likelihood, outputs, targets))
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-12)


def test_a_mask_takes_a_block_of_the_hessian():
    model, x, y, likelihood = problem("mlp", "categorical")

    def energy(outputs, targets):
        return -log_prob(likelihood, outputs, targets)

    whole = hessian(Network.of(model), [(x, y)], energy)
    mask = torch.arange(len(whole)) % 3 == 1
    part = hessian(Network.of(model, mask), [(x, y)], energy)
    torch.testing.assert_close(part, whole[mask][:, mask])


def test_passes_through_the_network_do_not_grow_with_the_data(generator):
    """One by one, the rows of a Jacobian took a hundred times as long."""
    model = mlp([3, 5, 2], seed=0).double().eval()

    def passes(count):
        calls, x = [], torch.randn(count, 3, generator=generator, dtype=torch.float64)
        handle = model.register_forward_hook(lambda *_: calls.append(1))
        network = Network.of(model)
        jacobian_rows(network, x, network.outputs(x))
        handle.remove()
        return len(calls)

    assert passes(400) == passes(40)
