"""Second moments of a convolution's inputs in strips, against torch's own unfolding and against autograd's gradients."""

import pytest
import torch
from torch import nn

from lapwing.network.jacobian import Network
from lapwing.network.kfac.layers import KnownLayer, find, in_strips, second_moment
from lapwing.network.kfac.tape import record
from lapwing.network.layers.recorder import Use
from tests.network.networks import normal

CONVOLUTIONS = {
    "plain": ((4, 6, (3, 2)), {}),
    "padded": ((4, 6, 3), {"padding": 1, "bias": False}),
    "circular": ((4, 6, 3), {"padding": (1, 2), "padding_mode": "circular"}),
    "same": ((4, 6, (2, 3)), {"padding": "same", "padding_mode": "reflect"}),
    "groups": ((4, 6, 3), {"padding": 1, "groups": 2}),
    "strides along": ((4, 6, (3, 2)), {"stride": (1, 2), "dilation": (1, 2), "padding": (2, 1)}),
    "taller than the picture": ((4, 6, (6, 2)), {"padding": (0, 1)}),
}


def recorded(module: nn.Module, x: torch.Tensor) -> tuple[KnownLayer, Use]:
    network = Network.of(nn.Sequential(module, nn.Flatten()).eval())
    (use,) = record(network, x).calls
    (layer,) = find([use], network.layout, {name: weight.shape for name, weight in network.chosen().items()})
    return layer, use


def moment(module: nn.Module, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    layer, use = recorded(module, x)
    assert in_strips(layer, [use])
    return second_moment(layer, use, counts)


def truth(module: nn.Module, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Every input patch is the gradient of one output in the weights of its own channel."""
    g, o = module.groups, module.out_channels // module.groups
    total = []
    for group in range(g):
        rows = []
        for datum, count in zip(x, counts, strict=True):
            for output in module(datum[None])[0, group * o].flatten():
                parts = torch.autograd.grad(output, list(module.parameters()), retain_graph=True)
                rows.append(count.sqrt() * torch.cat([part[group * o].flatten() for part in parts]))
        total.append(torch.stack(rows).mT @ torch.stack(rows))
    return torch.stack(total)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_strips_give_the_second_moment_of_every_patch(name, weighted):
    given, more = CONVOLUTIONS[name]
    with torch.random.fork_rng():
        module = nn.Conv2d(*given, **more).double()
    x = normal(3, 4, 7, 5, seed=1)
    counts = torch.tensor([1.0, 2.5, 0.5]).double() if weighted else torch.ones(3).double()
    torch.testing.assert_close(moment(module, x, counts), truth(module, x, counts), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dims", [1, 3])
def test_strips_of_sequences_and_volumes(dims):
    with torch.random.fork_rng():
        module = (nn.Conv1d if dims == 1 else nn.Conv3d)(2, 3, 3, padding=1).double()
    x = normal(2, 2, *(5, 4, 3)[:dims], seed=2)
    counts = torch.tensor([1.0, 3.0]).double()
    torch.testing.assert_close(moment(module, x, counts), truth(module, x, counts), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("more", [{"stride": 2}, {"dilation": 2}, {"kernel_size": 1}])
def test_other_convolutions_are_unfolded(more):
    with torch.random.fork_rng():
        module = nn.Conv2d(2, 3, **{"kernel_size": 3, **more}).double()
    layer, use = recorded(module, normal(2, 2, 7, 5, seed=1))
    assert not in_strips(layer, [use])
