import torch

from lapwing.network.parameters import Layout
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
