"""Gradients of single data by hooks, against dense Jacobians."""

import pytest
import torch

from lapwing.network.jacobian import Network
from lapwing.network.kfac import column_squares, row_squares
from lapwing.network.kfac.tape import discover_layers
from tests.network.layers import LAYERS
from tests.network.networks import NETWORKS
from tests.network.test_linearisation import dense_jacobian

ALL = {**NETWORKS, **LAYERS}


@pytest.mark.parametrize("name", ALL)
def test_column_squares_are_those_of_the_dense_jacobian(name):
    model, inputs = ALL[name]()
    jacobian = dense_jacobian(model, inputs)
    weights = torch.linspace(0.5, 2, len(jacobian), dtype=torch.float64)
    network = Network.of(model)
    for batches in ([inputs], [inputs[:2], inputs[2:]]):
        found = column_squares(network, batches, weights)
        torch.testing.assert_close(found.value, weights @ jacobian.square(), rtol=1e-10, atol=1e-12)
        assert float(found.standard_error.max()) == 0


@pytest.mark.parametrize("name", ALL)
def test_row_squares_are_those_of_the_dense_jacobian(name):
    model, inputs = ALL[name]()
    jacobian = dense_jacobian(model, inputs)
    weights = torch.linspace(0.5, 2, jacobian.shape[1], dtype=torch.float64)
    mask = torch.arange(len(weights)) % 3 != 1
    found = row_squares(Network.of(model), [inputs[:2], inputs[2:]], weights)
    torch.testing.assert_close(found, jacobian.square() @ weights, rtol=1e-10, atol=1e-12)
    part = row_squares(Network.of(model, mask), [inputs], weights[mask])
    torch.testing.assert_close(part, jacobian[:, mask].square() @ weights[mask], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        row_squares(Network.of(model), [inputs]), jacobian.square().sum(1), rtol=1e-10, atol=1e-12
    )


OTHERS = {
    "attention": {"layer.self_attn.in_proj_weight", "layer.self_attn.in_proj_bias", "layer.self_attn.out_proj.weight", "layer.self_attn.out_proj.bias"},
    "owned": {"scale"},
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_only_what_no_layer_explains_is_left_to_autograd(name):
    model, inputs = ALL[name]()
    assert set(discover_layers(Network.of(model), inputs).others) == OTHERS.get(name, set())


@pytest.mark.parametrize("name", ["mlp", "residual", "text", "owned", "tied"])
def test_random_signs_are_unbiased_and_their_errors_honest(name):
    model, inputs = ALL[name]()
    jacobian = dense_jacobian(model, inputs)
    weights = torch.linspace(0.5, 2, len(jacobian), dtype=torch.float64)
    network, truth = Network.of(model), weights @ jacobian.square()
    found = column_squares(network, [inputs[:2], inputs[2:]], weights, probes=400)
    alive = truth > 1e-12
    z = (found.value - truth)[alive] / found.standard_error[alive]
    assert float(z.abs().max()) < 5
    # a probe has variance 2 Σ_n [(Σ_c x²)² − Σ_c x⁴]; two thirds of its fourth moment are 2/3 Σ_n Σ_c x⁴ more
    squares = (weights[:, None] * jacobian.square()).reshape(len(inputs), -1, jacobian.shape[1])
    expected = 2 * squares.sum(1).square().sum() - 4 / 3 * squares.square().sum()
    assert float(400 * found.standard_error.square().sum()) == pytest.approx(float(expected), rel=0.1)


def test_batches_do_not_change_the_signs():
    model, inputs = ALL["cnn"]()
    one = column_squares(Network.of(model), [inputs], probes=3, seed=4)
    two = column_squares(Network.of(model), [inputs[:3], inputs[3:]], probes=3, seed=4)
    torch.testing.assert_close(one.value, two.value, rtol=1e-12, atol=1e-14)


def test_a_mask_or_a_choice_of_names_takes_those_columns():
    model, inputs = ALL["cnn"]()
    jacobian = dense_jacobian(model, inputs)
    mask = torch.arange(jacobian.shape[1]) % 3 == 1
    names = [name for name, weight in model.named_parameters() for _ in range(weight.numel())]
    biases = torch.tensor([name.endswith("bias") for name in names])
    for select, kept in ((mask, mask), (lambda name: name.endswith("bias"), biases)):
        found = column_squares(Network.of(model, select), [inputs]).value
        torch.testing.assert_close(found, jacobian.square().sum(0)[kept], rtol=1e-10, atol=1e-12)


class Stops(torch.nn.Module):
    def __init__(self, error):
        super().__init__()
        self.inner, self.error, self.calls = torch.nn.Linear(3, 2), error, 0

    def forward(self, x):
        self.calls += 1
        x = self.inner(x)
        if self.calls > 1:
            raise self.error
        return x


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_hooks_are_taken_off_whatever_happens(error):
    with torch.random.fork_rng():
        model = Stops(error).eval()
    with pytest.raises(type(error)):
        column_squares(Network.of(model), [torch.ones(4, 3)])
    assert not model.inner._forward_hooks
    assert not model.inner._forward_hooks_with_kwargs


def test_the_model_is_read_never_written():
    model, inputs = ALL["residual"]()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    column_squares(Network.of(model), [inputs], probes=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert model.stem.weight.grad is None
    assert not any(module._forward_hooks or module.training for module in model.modules())
