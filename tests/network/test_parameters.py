import pytest
import torch
from torch import nn

from lapwing.network.parameters import Layout, last_layer
from tests.network.networks import NETWORKS


def test_flat_and_back_again():
    model, _ = NETWORKS["residual"]()
    weights = dict(model.named_parameters())
    layout = Layout.of(model)
    flat = layout.flatten(weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in layout.unflatten(flat).items())
    mask = torch.arange(layout.size) % 4 == 2
    part = Layout.of(model, mask)
    assert torch.equal(part.flatten(weights), flat[mask])
    assert torch.equal(Layout.of(model).flatten(part.unflatten(flat[mask])), torch.where(mask, flat, 0))


def test_layers_partition_the_weights_by_their_owner():
    model, _ = NETWORKS["residual"]()
    layers = Layout.of(model).layers()
    assert list(layers) == ["stem", "norm", "inner", "inner_norm", "head"]
    assert torch.equal(torch.cat(list(layers.values())).sort().values, torch.arange(Layout.of(model).size))
    assert len(layers["head"]) == 4 * 3 + 3


class HeadFirst(nn.Module):
    """A head that is defined before the body and applied at every position."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(4, 2), nn.Linear(3, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight


def names(model, select):
    return [name for name, _ in model.named_parameters() if select(name)]


def test_the_last_layer_is_found():
    model, inputs = NETWORKS["cnn"]()
    assert names(model, last_layer(model)) == ["4.weight", "4.bias"]
    assert names(model, last_layer(model, inputs)) == ["4.weight", "4.bias"]
    with torch.random.fork_rng():
        convolutional = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3)).eval()
        first, tied = HeadFirst().eval(), TiedHead().eval()
    assert names(convolutional, last_layer(convolutional)) == ["2.weight", "2.bias"]
    assert names(first, last_layer(first, torch.ones(2, 5, 3))) == ["head.weight", "head.bias"]
    assert names(tied, last_layer(tied)) == ["embed.weight", "head.bias"]
    assert not any(module._forward_pre_hooks for module in first.modules())


def test_a_network_without_such_a_layer_is_told_to_select_by_name():
    with pytest.raises(ValueError, match="LayerNorm has no linear or convolutional layer"):
        last_layer(nn.LayerNorm(3).eval())
    with torch.random.fork_rng():
        unused = TiedHead().eval()
    unused.forward = lambda x: unused.embed(x)
    with pytest.raises(ValueError, match="none of the network's .* was called"):
        last_layer(unused, torch.tensor([1, 2]))
